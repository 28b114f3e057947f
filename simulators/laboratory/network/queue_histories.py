"""Histories of queues, from packets: what predictors are judged on, and what one learns from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.network.packet.engine import PacketEngine
from trainscout.simulators.predictor.network.packet.engine_arrays import Floats, Ints
from trainscout.simulators.predictor.network.packet.settings import PacketSettings
from trainscout.simulators.predictor.network.topology.routing import Routes

_HOSTS, _LEAVES, _SPINES = 32, 4, 4
_RATE, _DELAY_S = 25e9, 10e-6


@dataclass(frozen=True)
class Windows:
    """``history``, shape (n, samples), oldest first; ``target`` the depth one horizon later,
    shape (n,), both in bytes; ``port`` each was seen at."""

    history: Floats
    target: Floats
    port: Ints

    def of(self, ports: Ints) -> Windows:
        kept = np.isin(self.port, ports)
        return Windows(self.history[kept], self.target[kept], self.port[kept])


def queue_trace(seed: int, settings: PacketSettings, sample_s: float, steps: int) -> Ints:
    """Depths of all queues of a leaf-spine under random transfers, shape (steps, links).

    Each of 32 hosts sends 1 to 32 MB to random others, over random spines, from random moments of
    the first quarter on: uplinks collide and hosts are sent to by several.
    """
    random = np.random.default_rng(seed)
    flows = 3 * _HOSTS
    source = random.integers(0, _HOSTS, flows)
    destination = (source + random.integers(1, _HOSTS, flows)) % _HOSTS
    spine = random.integers(0, _SPINES, flows)
    per = _HOSTS // _LEAVES
    up = 2 * _HOSTS + source // per * _SPINES + spine
    down = 2 * _HOSTS + (_LEAVES + destination // per) * _SPINES + spine
    last = _HOSTS + destination
    inside = source // per == destination // per
    links = np.where(
        inside[:, None],
        np.stack([source, last, 0 * up - 1, 0 * up - 1], axis=1),
        np.stack([source, up, down, last], axis=1),
    )
    engine = PacketEngine(
        np.full(2 * _HOSTS + 2 * _LEAVES * _SPINES, _RATE), _DELAY_S, 4, settings
    )
    sizes = np.rint(random.uniform(1e6, 32e6, flows))
    starts = random.uniform(0, steps * sample_s / 4, flows)
    engine.add(Routes(links, np.zeros(flows)), sizes, starts)
    depths = []
    for step in range(1, steps + 1):
        engine.advance(step * sample_s)
        depths.append(engine.queued_bytes())
    return np.array(depths)


def windows(trace: Ints, samples: int, horizon: int) -> Windows:
    """All histories in which something waits, and what came ``horizon`` steps later."""
    last = len(trace) - horizon
    starts = np.arange(0, last - samples + 1)
    # (windows, samples, ports)
    seen = trace[starts[:, None] + np.arange(samples)]
    target = trace[starts + samples - 1 + horizon]
    history = seen.transpose(0, 2, 1).reshape(-1, samples).astype(np.float64)
    port = np.tile(np.arange(trace.shape[1]), len(starts))
    busy = history.any(axis=1)
    return Windows(history[busy], target.reshape(-1).astype(np.float64)[busy], port[busy])
