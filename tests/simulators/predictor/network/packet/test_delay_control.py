"""Senders that go by delays: alone they are as fast as without, together the queue is theirs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.simulators.predictor.network.packet.ports import port_report, queued_bytes
from trainscout.simulators.predictor.network.hybrid.engine import HybridEngine
from trainscout.simulators.predictor.network.packet.engine import PacketEngine
from trainscout.simulators.predictor.network.packet.settings import PacketSettings, Swift, Timely
from trainscout.simulators.predictor.network.topology.routing import Routes
from trainscout.simulators.predictor.question.errors import InputError

# 100 Gb/s; senders' windows are wide open, so that nothing but their control holds them back.
RATE, DELAY_S, MANY = 12.5e9, 1e-6, 8
OPEN = PacketSettings(window=40.0, pause_bytes=None)


def incast(settings: PacketSettings, senders: int) -> tuple[PacketEngine, float]:
    """Senders over links of their own into one port; the engine half-way, and the rate there."""
    size = 40e6
    engine = PacketEngine([RATE] * (senders + 1), DELAY_S, 2, settings)
    links = np.stack([np.arange(senders), np.full(senders, senders)], axis=1)
    engine.add(Routes(links, np.zeros(senders)), size)
    engine.advance(senders * size / RATE / 2)
    return engine, float(port_report(engine).bytes_sent[-1] / engine.now_s)


def queues_s(engine: PacketEngine, samples: int = 200) -> np.ndarray:
    """How long the last packet of the shared queue waits, sampled over some milliseconds."""
    found = []
    for _ in range(samples):
        engine.advance(engine.now_s + 23e-6)
        found.append(queued_bytes(engine)[-1] / RATE)
    return np.array(found)


@pytest.mark.parametrize("congestion", ["timely", "swift"])
def test_alone_nothing_holds_a_sender_back(congestion: str) -> None:
    ends = [
        incast(replace(OPEN, congestion=each), 1)[0].advance().completion_s
        for each in ("window", congestion)
    ]
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("target_s", [30e-6, 60e-6])
def test_swift_keeps_round_trips_at_their_target(target_s: float) -> None:
    settings = replace(OPEN, congestion="swift", swift=Swift(target_s=target_s))
    engine, rate = incast(settings, MANY)
    assert rate > 0.97 * RATE
    # The round trip but for its queue: two hops' sending, four of propagation.
    idle_s = 2 * 4096 / RATE + 4 * DELAY_S
    waiting = queues_s(engine)
    # Cuts are of some part of what is above the target, so the mean is near and no queue far off.
    assert waiting.mean() + idle_s == pytest.approx(target_s, rel=0.25)
    assert waiting.max() + idle_s < 1.5 * target_s


def test_timely_keeps_a_port_busy_with_short_queues() -> None:
    """At the rate it was made for, 10 Gb/s, with the constants of its paper: delays stay far below
    the upper threshold, where windows alone would fill the queue to theirs."""
    rate, senders = 1.25e9, 8
    links = np.stack([np.arange(senders), np.full(senders, senders)], axis=1)
    found = {}
    for congestion in ("window", "timely"):
        settings = PacketSettings(1024, window=10.0, congestion=congestion, pause_bytes=None)
        engine = PacketEngine([rate] * (senders + 1), 5e-6, 2, settings)
        engine.add(Routes(links, np.zeros(senders)), 50e6)
        engine.advance(0.1)
        before = port_report(engine).bytes_sent[-1]
        engine.advance(0.2)
        share = (port_report(engine).bytes_sent[-1] - before) / 0.1 / rate
        waits_s = []
        for _ in range(100):
            engine.advance(engine.now_s + 23e-6)
            waits_s.append(queued_bytes(engine)[-1] / rate)
        found[congestion] = share, np.array(waits_s)
    assert found["window"][0] == pytest.approx(1.0, rel=1e-3)
    assert found["timely"][0] > 0.88
    assert found["timely"][1].max() < 100e-6 < 500e-6 < found["window"][1].min()


def test_what_goes_by_delays_is_not_skipped() -> None:
    with pytest.raises(InputError) as refused:
        HybridEngine([RATE], DELAY_S, 1, replace(OPEN, congestion="swift", pause_bytes=2**19))
    assert refused.value.field == "network.packet.congestion"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"congestion": "cubic"}, "network.packet.congestion"),
        ({"timely": Timely(beta=0.0)}, "network.packet.timely.beta"),
        ({"timely": Timely(low_s=1.0)}, "network.packet.timely.low_s"),
        ({"swift": Swift(target_s=-1.0)}, "network.packet.swift.target_s"),
        ({"swift": Swift(most_cut=1.0)}, "network.packet.swift.most_cut"),
    ],
)
def test_impossible_constants_are_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as refused:
        replace(OPEN, **changes).check()  # type: ignore[arg-type]
    assert refused.value.field == field
