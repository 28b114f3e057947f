"""Buffers that drop: what is sent again, and that everything arrives once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.predictor.network.packet.fabrics import DELAY_S, RATE, LeafSpine
from tests.simulators.predictor.network.packet.ports import port_report, resent_bytes
from tests.simulators.predictor.network.packet.test_engine import sending
from trainscout.simulators.predictor.network.packet.engine import PacketEngine
from trainscout.simulators.predictor.network.packet.settings import PacketSettings
from trainscout.simulators.predictor.network.topology.routing import Routes

FABRIC = LeafSpine()
MB = 1_000_000
RECOVERY = ("go_back_n", "selective_repeat")


def lossy(recovery, **more):
    more = {"pause_bytes": None, "queue_bytes": 60_000, "timeout_s": 100e-6} | more
    return PacketSettings(recovery=recovery, **more)


def incast(settings, senders=8, size=2 * MB):
    """Senders on other leaves into host 0; the engine, and what its last link carried."""
    flows = [(host, 0, host % 4) for host in range(4, 4 + senders)]
    engine = FABRIC.engine(settings)
    engine.add(FABRIC.routes(flows), size)
    engine.advance()
    return engine, int(port_report(engine).bytes_sent[FABRIC.hosts])


@pytest.mark.parametrize("recovery", RECOVERY)
def test_queues_never_hold_more_than_they_may(recovery):
    engine, _ = incast(lossy(recovery, window=4))
    report = port_report(engine)
    assert report.drops.sum() > 0
    assert report.most_queued_bytes.max() <= 60_000


def test_selective_repeat_sends_again_what_was_lost_and_nothing_else():
    engine, carried = incast(lossy("selective_repeat"))
    assert carried == 8 * 2 * MB
    # Packets are full but for a flow's last.
    drops = port_report(engine).drops.sum()
    assert drops * 4096 * 0.99 <= resent_bytes(engine) <= drops * 4096


def test_going_back_carries_what_receivers_refuse():
    """IRN's finding (Mittal et al. 2018, section 4.2): without pauses going back costs more."""
    back, carried = incast(lossy("go_back_n"))
    repeat, _ = incast(lossy("selective_repeat"))
    assert carried > 8 * 2 * MB
    assert resent_bytes(back) > resent_bytes(repeat)
    assert back.now_s > repeat.now_s


@pytest.mark.parametrize("recovery", RECOVERY)
def test_what_one_lost_packet_costs(recovery):
    """A burst of 22 packets into a link half as fast whose queue holds ten: of every two that come
    one has left, so that the 21st finds no room; the 22nd does, and is refused where nothing is
    taken out of order."""
    packet, burst = 4096, 22
    settings = PacketSettings(
        packet, window=1000, recovery=recovery, pause_bytes=None, queue_bytes=10 * packet
    )
    engine = PacketEngine([RATE, RATE / 2], DELAY_S, 2, settings)
    engine.add(Routes(np.array([[0, 1]]), np.zeros(1)), burst * packet)
    engine.advance()
    assert port_report(engine).drops.tolist() == [0, 1]
    behind = {"selective_repeat": 1, "go_back_n": 2}[recovery]
    assert resent_bytes(engine) == behind * packet
    assert port_report(engine).bytes_sent.tolist() == [
        (burst + behind) * packet,
        (burst - 1 + behind) * packet,
    ]


def test_without_losses_recovery_changes_nothing():
    flows = [(host, (host + 5) % 16, host % 4) for host in range(16)]
    found = []
    for recovery in ("none", *RECOVERY):
        engine = FABRIC.engine(PacketSettings(recovery=recovery))
        numbers = engine.add(FABRIC.routes(flows), MB)
        engine.advance()
        found.append(engine.completion_s(numbers).tolist())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("recovery", RECOVERY)
def test_a_lost_tail_waits_for_the_timeout(recovery):
    """Two bursts into a port that holds one packet: of the last packets nothing comes back."""
    settings = lossy(recovery, queue_bytes=4096, timeout_s=300e-6)
    engine = PacketEngine([RATE, RATE, RATE], DELAY_S, 2, settings)
    engine.add(Routes(np.array([[0, 2], [1, 2]]), np.zeros(2)), 2 * 4096)
    engine.advance()
    assert port_report(engine).drops.sum() > 0
    assert 300e-6 < engine.now_s < 300e-6 + 20e-6


@given(sending, st.sampled_from(RECOVERY), st.sampled_from(["window", "dcqcn", "swift"]))
def test_everything_arrives_whatever_is_dropped(what, recovery, congestion):
    flows, sizes, starts = map(list, zip(*what, strict=True))
    engine = FABRIC.engine(lossy(recovery, queue_bytes=12_000, window=2, congestion=congestion))
    numbers = engine.add(FABRIC.routes(flows), sizes, starts)
    engine.advance()
    assert np.isfinite(engine.completion_s(numbers)).all()
    into = np.zeros(FABRIC.hosts)
    np.add.at(into, [flow[1] for flow in flows], sizes)
    carried = port_report(engine).bytes_sent[FABRIC.hosts : 2 * FABRIC.hosts]
    if recovery == "selective_repeat":
        assert carried.tolist() == into.tolist()
    else:
        assert (carried >= into).all()
