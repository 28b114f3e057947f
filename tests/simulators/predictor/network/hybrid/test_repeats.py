"""Playing from memory gives what playing every packet gives."""

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.simulators.predictor.network.packet.fabrics import DELAY_S, RATE, LeafSpine
from trainscout.simulators.predictor.network.hybrid import repeats
from trainscout.simulators.predictor.network.hybrid.repeats import RepeatingEngine
from trainscout.simulators.predictor.network.packet.engine import PacketEngine
from trainscout.simulators.predictor.network.packet.settings import Dcqcn, PacketSettings
from trainscout.simulators.predictor.network.topology.routing import Routes

FABRIC = LeafSpine()
MB = 1_000_000
RING = [(host, (host + 1) % 16, host % 4) for host in range(16)]


def engines(mode=None, fabric=FABRIC):
    rates = np.full(fabric.links, RATE)
    return PacketEngine(rates, DELAY_S, 4, mode), RepeatingEngine(rates, DELAY_S, 4, mode)


def picoseconds(seconds):
    return np.rint(np.where(np.isfinite(seconds), seconds, -1e-12) * 1e12).tolist()


def assert_same(engine, truth):
    flows = np.arange(truth.next_flow)
    assert picoseconds(engine.completion_s(flows)) == picoseconds(truth.completion_s(flows))
    assert picoseconds(engine.start_s(flows)) == picoseconds(truth.start_s(flows))


def test_what_comes_again_is_played_once():
    truth, engine = engines()
    for each in (truth, engine):
        last = None
        for _ in range(8):
            after = (
                None
                if last is None
                else [(each.next_flow + row, flow) for row in range(16) for flow in last.tolist()]
            )
            last = each.add(FABRIC.routes(RING), 2 * MB, after=after, delay_s=5e-6)
        each.advance()
    # Under a leaf, or to the next one; each alone on its links.
    assert len(engine._memory) == 2
    assert engine.recalls == 16 * 8
    assert engine.packet_hops * 8 * 16 / 3 < truth.packet_hops
    assert_same(engine, truth)


def test_the_same_on_other_links_is_the_same():
    """Hosts 0 to 3 under one leaf, then hosts 8 to 11 under another."""
    truth, engine = engines()
    for each in (truth, engine):
        for first, start_s in ((0, 0.0), (8, 1e-3)):
            flows = [(first + host, first + (host + 1) % 4) for host in range(4)]
            each.add(FABRIC.routes(flows), 2 * MB, start_s)
        each.advance()
    assert engine.recalls == 8
    assert engine.packet_hops * 8 == truth.packet_hops
    assert_same(engine, truth)


@pytest.mark.parametrize("late_s", [0.0, 1e-6, 17e-6, 40e-6, 90e-6, 1e-3])
def test_who_is_met_plays_its_packets_after_all(late_s):
    truth, engine = engines()
    incast = [(host, 0, host % 4) for host in range(4, 10)]
    for each in (truth, engine):
        each.add(FABRIC.routes(incast), 400_000)
        each.add(FABRIC.routes(incast), 400_000, 1e-3)
        each.add(FABRIC.routes([(12, 0, 1)]), 300_000, 1e-3 + late_s)
        each.advance()
    assert engine.recalls in (2, 3)
    assert engine.disturbed == (1 if late_s < 1e-4 else 0)
    assert_same(engine, truth)


def test_who_is_met_again_and_again_plays_its_packets_each_time():
    truth, engine = engines()
    for each in (truth, engine):
        for start_s in (0.0, 1e-3):
            each.add(FABRIC.routes(RING), 2 * MB, start_s)
            each.add(FABRIC.routes([(0, 9, 0)]), 2 * MB, start_s + 3e-6)
        each.advance()
    # Who sends from host 0, over the same spine from its leaf, and to host 9.
    assert engine.disturbed == 2 * 2
    assert_same(engine, truth)


def test_what_is_marked_by_chance_is_not_remembered():
    low = Dcqcn(mark_from_bytes=20e3, mark_all_bytes=400e3)
    truth, engine = engines(PacketSettings(congestion="dcqcn", dcqcn=low, window=4))
    incast = [(host, 0, host % 4) for host in range(4, 10)]
    for each in (truth, engine):
        for start_s in (0.0, 0.02):
            each.add(FABRIC.routes(incast), MB, start_s)
        each.add(FABRIC.routes([(1, 2)]), 4 * MB, 0.001)
        each.add(FABRIC.routes([(1, 2)]), 4 * MB, 0.002)
        each.advance()
    # The flow alone was not marked.
    assert engine.recalls == 2
    assert_same(engine, truth)


hosts = st.tuples(st.integers(0, 15), st.integers(1, 15), st.integers(0, 3)).map(
    lambda flow: (flow[0], (flow[0] + flow[1]) % 16, flow[2])
)


@st.composite
def patterns(draw):
    """Flows announced together, some waiting for earlier ones."""
    count = draw(st.integers(1, 6))
    flows = [draw(hosts) for _ in range(count)]
    sizes = [draw(st.integers(1, 200_000)) for _ in range(count)]
    starts = [draw(st.sampled_from([0.0, 1e-6, 5e-6])) for _ in range(count)]
    ties = [
        (child, draw(st.integers(0, child - 1)))
        for child in range(1, count)
        if draw(st.booleans())
    ]
    return flows, sizes, starts, ties, draw(st.sampled_from([0.0, 2e-6]))


@st.composite
def schedules(draw):
    """Few patterns, announced again and again: at times, or after some flow of the one before."""
    few = draw(st.lists(patterns(), min_size=1, max_size=3))
    calls, start_s = [], 0.0
    for _ in range(draw(st.integers(2, 10))):
        start_s += draw(st.sampled_from([0.0, 3e-6, 20e-6, 60e-6, 200e-6]))
        after = draw(st.sampled_from(["nobody", "nobody", "all", "first"]))
        advance = draw(st.booleans())
        calls.append((draw(st.sampled_from(few)), start_s, after, advance))
    return calls


def announce(engine, calls):
    last = np.empty(0, dtype=np.int64)
    for (flows, sizes, starts, ties, lag_s), start_s, after, advance in calls:
        if advance:
            engine.advance(start_s)
        first = engine.next_flow
        pairs = [(first + child, first + parent) for child, parent in ties]
        waits_for = {"nobody": [], "all": last.tolist(), "first": last[:1].tolist()}[after]
        pairs += [(first + row, flow) for row in range(len(flows)) for flow in waits_for]
        # Not before what has been played, whatever an engine was busy with last.
        last = engine.add(
            FABRIC.routes(flows), sizes, start_s + np.array(starts) + 1e-9, after=pairs,
            delay_s=lag_s,
        )  # fmt: skip
    engine.advance()


MODES = [
    PacketSettings(),
    PacketSettings(window=6, pause_bytes=30_000, resume_bytes=20_000, header_bytes=50),
    PacketSettings(
        congestion="dcqcn", window=4, dcqcn=Dcqcn(mark_from_bytes=20e3, mark_all_bytes=90e3)
    ),
]


@given(schedules(), st.sampled_from(MODES))
def test_memory_changes_nothing(calls, mode):
    truth, engine = engines(mode)
    announce(truth, calls)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "_LEAST_WORK", 0)
        announce(engine, calls)
    event(f"recalled {min(engine.recalls, 3)}, disturbed {min(engine.disturbed, 2)}")
    assert_same(engine, truth)


def test_routes_of_any_length_are_known_again():
    truth, engine = engines()
    for each in (truth, engine):
        for start_s in (0.0, 1e-3):
            each.add(Routes(np.array([[0, 16, -1, -1]]), np.zeros(1)), 4 * MB, start_s)
        each.advance()
    assert engine.recalls == 2
    assert engine.packet_hops * 2 == truth.packet_hops
    assert_same(engine, truth)
