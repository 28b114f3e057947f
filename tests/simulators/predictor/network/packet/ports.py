"""What the ports of a packet engine did so far, read from its tables."""

from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.network.packet import engine_arrays as t
from trainscout.simulators.predictor.network.packet.engine import PacketEngine


@dataclass(frozen=True)
class PortReport:
    """What each port did; shape (links,).

    ``bytes_sent`` with headers; ``most_queued_bytes`` the deepest its queue was; ``marks`` packets
    it marked, ``pauses`` how often it was paused and ``paused_s`` how long; ``drops`` packets that
    found no room in it.
    """

    bytes_sent: np.ndarray
    most_queued_bytes: np.ndarray
    marks: np.ndarray
    pauses: np.ndarray
    paused_s: np.ndarray
    drops: np.ndarray


def port_report(engine: PacketEngine) -> PortReport:
    ports = engine._ports.reshape(engine.settings.classes, engine._links, -1)
    sent, marks, pauses, paused, drops = (
        ports[:, :, column].sum(axis=0)
        for column in (t.BYTES_SENT, t.MARKS, t.PAUSES, t.PAUSED_FOR, t.DROPS)
    )
    most = ports[:, :, t.MOST_QUEUED].max(axis=0)
    return PortReport(sent, most, marks, pauses, paused / t.PICOSECONDS, drops)


def queued_bytes(engine: PacketEngine) -> np.ndarray:
    """How deep each port's queues are now, shape (links,)."""
    return engine._ports[:, t.QUEUE_BYTES].reshape(-1, engine._links).sum(axis=0)


def resent_bytes(engine: PacketEngine) -> int:
    """Payload sent more than once so far."""
    return int(engine._flows[: engine.next_flow, t.RESENT].clip(min=0).sum())
