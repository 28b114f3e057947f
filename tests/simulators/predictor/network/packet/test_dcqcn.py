"""DCQCN (Zhu et al., SIGCOMM 2015) against a closed form of its rules."""

import numpy as np
import pytest
from scipy.optimize import brentq

from tests.simulators.predictor.network.packet.ports import port_report, queued_bytes
from trainscout.simulators.predictor.network.packet.engine import PacketEngine
from trainscout.simulators.predictor.network.packet.settings import Dcqcn, PacketSettings
from trainscout.simulators.predictor.network.topology.routing import Routes

RATE, PACKET, SENDERS = 5e9, 1000, 4
# Its paper's, at 40 Gb/s: timers of 55 us, steps of 40 Mb/s, 1 % of packets marked at 200 KB.
# Thresholds are declared for 100 Gb/s; no hyper increase, as in the paper's own analysis.
PAPER = Dcqcn(
    increase_interval_s=55e-6,
    hyper_bytes_per_s=5e6,
    mark_from_bytes=12.5e3,
    mark_all_bytes=500e3,
    mark_at_most=0.01,
)


def marked_at_rest() -> float:
    """The share of marked packets at which a sender is cut as much as it rises between notices.

    Notices come tau and an exponential time of mean 1/(p R) apart. Alpha, moved little by each,
    is 1 over 1 plus how often its timer rings between; a cut takes alpha/2 of the rate. Each of k
    rises halves the way to the target, which moves up by a step in those after the first F.
    """
    sends = RATE / PACKET / SENDERS
    step = PAPER.additive_bytes_per_s / PACKET
    k = np.arange(4000)
    late = np.maximum(0, k - PAPER.fast_recoveries)

    def surplus(p: float) -> float:
        def still_none(after_s: np.ndarray) -> np.ndarray:
            return np.exp(-p * sends * np.maximum(0, after_s - PAPER.cnp_interval_s))

        alpha = 1 / (1 + still_none(k[1:] * PAPER.alpha_interval_s).sum())
        chance = -np.diff(still_none(k * PAPER.increase_interval_s), append=0)
        risen = step * (late - 1 + 0.5**late) * (late > 0)
        return float((chance * (risen - sends * alpha / 2 * 0.5**k)).sum())

    return float(brentq(surplus, 1e-5, 0.1))


def test_marks_and_queue_are_those_at_which_cuts_and_rises_balance():
    settings = PacketSettings(
        congestion="dcqcn", dcqcn=PAPER, window=1000, packet_bytes=PACKET, pause_bytes=None
    )
    links = np.stack([np.arange(SENDERS), np.full(SENDERS, SENDERS)], axis=1)
    engine = PacketEngine(np.full(SENDERS + 1, RATE), 1e-6, 2, settings)
    engine.add(Routes(links, np.zeros(SENDERS)), 1e9, np.arange(SENDERS) * 1e-6)
    engine.advance(0.05)
    before, depths = port_report(engine), []
    for at in range(400):
        engine.advance(0.05 + (at + 1) * 0.15e-3)
        depths.append(queued_bytes(engine)[SENDERS])
    after = port_report(engine)
    sent = int((after.bytes_sent - before.bytes_sent)[SENDERS])
    share = (after.marks - before.marks)[SENDERS] * PACKET / sent
    expected = marked_at_rest()
    assert share == pytest.approx(expected, rel=0.1)
    ramp = PAPER.mark_all_bytes - PAPER.mark_from_bytes
    depth = RATE / 12.5e9 * (PAPER.mark_from_bytes + expected / PAPER.mark_at_most * ramp)
    assert np.mean(depths) == pytest.approx(depth, rel=0.1)
    assert sent > 0.99 * RATE * 0.06
