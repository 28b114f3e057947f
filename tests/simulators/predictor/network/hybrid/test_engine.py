"""The hybrid engine against the packet engine it skips the packets of."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulators.predictor.network.packet.fabrics import DELAY_S, RATE, LeafSpine, alone_s
from tests.simulators.predictor.network.packet.ports import port_report
from trainscout.simulators.predictor.network.hybrid.engine import HybridEngine
from trainscout.simulators.predictor.network.hybrid.settings import HybridSettings
from trainscout.simulators.predictor.network.packet.engine import PacketEngine
from trainscout.simulators.predictor.network.packet.settings import Dcqcn, PacketSettings
from trainscout.simulators.predictor.question.errors import InputError

FABRIC = LeafSpine()
MB = 1_000_000
RING = [(host, (host + 1) % 16, host % 4) for host in range(16)]
# Two flows on some uplinks, one on others.
COLLIDING = [(host, (host + 4) % 16, host % 3) for host in range(16)]


def engines(hybrid=None, mode=None, fabric=FABRIC):
    rates = np.full(fabric.links, RATE)
    return (
        PacketEngine(rates, DELAY_S, 4, mode),
        HybridEngine(rates, DELAY_S, 4, mode, hybrid),
    )


def ends_of(engine, flows, sizes, starts=0.0):
    numbers = engine.add(FABRIC.routes(flows), sizes, starts)
    engine.advance()
    return engine.completion_s(numbers)


@pytest.mark.parametrize("flows", [RING, COLLIDING])
def test_long_transfers_end_when_they_would_with_a_fraction_of_the_packets(flows):
    packet, hybrid = engines()
    truth, ends = (ends_of(engine, flows, 64 * MB) for engine in (packet, hybrid))
    assert np.abs(ends / truth - 1).mean() < 0.002
    assert ends.max() == pytest.approx(truth.max(), rel=0.002)
    assert hybrid.packet_hops < packet.packet_hops / 5
    assert hybrid.skips > 0


def test_rates_that_pauses_swing_stand_for_a_while():
    """Flows of one NIC over crowded uplinks and free ones: some wait behind others' pauses. Seeds
    are the first ones drawn; in the second who gets ahead is chance, for every packet too."""
    most, shares = [], []
    for seed in (100, 101, 102):
        random = np.random.default_rng(seed)
        flows = [
            (host, int(4 + random.integers(12)), int(random.integers(4)))
            for host in range(4)
            for _ in range(4)
        ]
        truth, swinging = engines()
        ends, found = (ends_of(each, flows, 32 * MB) for each in (truth, swinging))
        assert port_report(truth).pauses.sum() > 100
        assert found.max() == pytest.approx(ends.max(), rel=0.005)
        most.append(np.abs(found / ends - 1).max())
        shares.append(swinging.packet_hops / truth.packet_hops)
    assert np.median(most) < 0.02
    assert max(shares) < 0.5


def test_flows_that_come_and_go_under_pauses_send_trains():
    """Less than half of the packets, and the means that every packet has."""
    random = np.random.default_rng(0)
    there = (np.arange(64) + 4 + random.integers(0, 9, 64)) % 16
    flows = [(host % 16, int(to), int(random.integers(2))) for host, to in enumerate(there)]
    starts = random.uniform(0, 2e-3, 64)
    mode = PacketSettings(header_bytes=62)
    truth, coupled = engines(mode=mode)
    ends, found = (ends_of(each, flows, 8 * MB, starts) for each in (truth, coupled))
    assert port_report(truth).pauses.sum() > 50
    assert coupled.packet_hops < 0.5 * truth.packet_hops
    assert (found - starts).mean() == pytest.approx((ends - starts).mean(), rel=0.01)
    assert found.max() == pytest.approx(ends.max(), rel=0.02)


def test_short_transfers_are_all_packets():
    packet, hybrid = engines()
    truth, ends = (ends_of(engine, RING, 2 * MB) for engine in (packet, hybrid))
    assert ends.tolist() == truth.tolist()
    assert hybrid.skips == 0


@pytest.mark.parametrize("late_s", [1.1e-3, 1.5e-3, 2.5e-3])
def test_a_flow_that_starts_over_a_resting_link_wakes_its_component(late_s):
    """And no other: the ring's other half keeps standing still."""
    flows = [(0, 5, 0), (1, 6, 0), (8, 13, 2), (0, 6, 1)]
    sizes, starts = [64 * MB, 64 * MB, 64 * MB, 8 * MB], [0, 0, 0, late_s]
    packet, hybrid = engines()
    truth, ends = (ends_of(engine, flows, sizes, starts) for engine in (packet, hybrid))
    np.testing.assert_allclose(ends, truth, rtol=0.004)
    assert hybrid.packet_hops < packet.packet_hops / 3


def test_pieces_make_the_whole():
    _, whole = engines()
    _, parts = engines()
    ends = ends_of(whole, COLLIDING, 32 * MB)
    numbers = parts.add(FABRIC.routes(COLLIDING), 32 * MB)
    for until_s in (0.3e-3, 0.9e-3, 1.1e-3, 2e-3, None):
        parts.advance(until_s)
    assert parts.completion_s(numbers).tolist() == ends.tolist()


def test_a_stricter_queue_test_skips_less():
    loose = engines(HybridSettings(queue_bytes=10**9))[1]
    strict = engines(HybridSettings(queue_bytes=1))[1]
    for engine in (loose, strict):
        ends_of(engine, COLLIDING, 32 * MB)
    assert strict.packet_hops >= loose.packet_hops


def test_rates_that_still_recover_are_not_taken_for_steady():
    """After a cut DCQCN's rates barely move between samples, far below what the links carry."""
    low = Dcqcn(mark_from_bytes=20e3, mark_all_bytes=80e3)
    mode = PacketSettings(congestion="dcqcn", dcqcn=low, window=4)
    flows = [(host, 0, host % 4) for host in range(4, 12)]
    careful, careless = (engines(HybridSettings(used=used), mode)[1] for used in (0.95, 1e-6))
    (truth,) = (ends_of(engines(mode=mode)[0], flows, 8 * MB),)
    errors = [
        np.abs(ends_of(engine, flows, 8 * MB) / truth - 1).max() for engine in (careful, careless)
    ]
    assert errors[0] < 0.05 < errors[1]


pairs = st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(0, 3)).filter(
    lambda flow: flow[0] != flow[1]
)


@given(
    st.lists(
        st.tuples(pairs, st.integers(1, 40 * MB), st.floats(0, 2e-3)), min_size=1, max_size=12
    ),
)
def test_everything_arrives_and_nothing_beats_the_wire(what):
    flows, sizes, starts = map(list, zip(*what, strict=True))
    _, hybrid = engines()
    ends = ends_of(hybrid, flows, sizes, starts)
    for flow, size, start, end in zip(flows, sizes, starts, ends, strict=True):
        hops = sum(link >= 0 for link in FABRIC.route(*flow))
        assert np.isfinite(end)
        # A measured rate may be off by a packet in some hundred.
        assert end - start >= alone_s(size, hops) * (1 - 0.005)


@pytest.mark.parametrize(
    ("given_settings", "field"),
    [
        (HybridSettings(sample_s=0), "network.hybrid.sample_s"),
        (HybridSettings(samples=5), "network.hybrid.samples"),
        (HybridSettings(used=1.5), "network.hybrid.used"),
        (HybridSettings(swing_tolerance=-1), "network.hybrid.swing_tolerance"),
        (HybridSettings(train_share=2), "network.hybrid.train_share"),
    ],
)
def test_settings_that_mean_nothing_are_refused(given_settings, field):
    with pytest.raises(InputError) as refused:
        engines(given_settings)
    assert refused.value.field == field


@pytest.mark.parametrize("late_s", [None, 0.7e-3, 1.2e-3, 1.6e-3])
def test_what_is_remembered_with_its_skips_is_what_would_have_been(late_s):
    """Both times begin as long before a sample; the late flow comes while all stand still."""
    both = []
    for memory in (True, False):
        hybrid = engines(HybridSettings(memory=memory))[1]
        for start_s in (5e-6, 10.005e-3):
            hybrid.add(FABRIC.routes(COLLIDING), 64 * MB, start_s)
        if late_s is not None:
            hybrid.add(FABRIC.routes([(0, 4, 0)]), MB, 10.005e-3 + late_s)
        hybrid.advance()
        both.append(hybrid)
    remembering, other = both
    assert remembering.recalls >= 13
    assert other.recalls == 0
    assert remembering.disturbed == (late_s is not None)
    flows = np.arange(other.next_flow)
    assert remembering.completion_s(flows).tolist() == other.completion_s(flows).tolist()


@pytest.mark.parametrize("by", [0.5, 1.02, 2.3])
def test_what_is_remembered_lasts_as_many_times_as_long_as_it_has_bytes(by):
    truth, hybrid = engines()
    ends_of(hybrid, COLLIDING, 64 * MB)
    hops = hybrid.packet_hops
    ends = ends_of(hybrid, COLLIDING, by * 64 * MB, 0.1)
    assert hybrid.packet_hops == hops
    np.testing.assert_allclose(ends - 0.1, ends_of(truth, COLLIDING, by * 64 * MB), rtol=0.01)


@pytest.mark.parametrize("memory", [None, {}], ids=["own", "others'"])
def test_what_is_far_larger_or_not_in_proportion_or_in_others_memory_is_played(memory):
    """Answers would else depend on what an engine of the same memory happened to play before."""
    far = [64 * MB * 3, 64 * MB + MB * np.arange(16)]
    for sizes in far if memory is None else [96 * MB]:
        hybrid = HybridEngine(np.full(FABRIC.links, RATE), DELAY_S, 4, memory=memory)
        ends_of(hybrid, COLLIDING, 64 * MB)
        hops = hybrid.packet_hops
        ends_of(hybrid, COLLIDING, sizes, 0.1)
        assert hybrid.packet_hops > hops


@given(st.floats(0, 3e-3), st.floats(0.4, 2.5), pairs, st.integers(1, 4 * MB))
@settings(max_examples=6)
def test_whom_somebody_meets_meanwhile_arrives_once(late_s, by, flow, size):
    """Whether its packets would have arrived before it was said to have, or have not."""
    hybrid = engines()[1]
    ends_of(hybrid, COLLIDING, 24 * MB)
    begin_s = 0.1
    own = hybrid.add(FABRIC.routes(COLLIDING), int(by * 24 * MB), begin_s)
    after = [(hybrid.next_flow, int(own[3]))]
    late = [
        hybrid.add(FABRIC.routes([(9, 14, 3)]), MB, begin_s, after=after),
        hybrid.add(FABRIC.routes([flow]), size, begin_s + late_s),
        hybrid.add(FABRIC.routes([flow]), size, begin_s + late_s + 1e-3),
    ]
    arrived = []
    while len(found := hybrid.advance_to_arrival(np.inf).flows):
        arrived += found.tolist()
    assert sorted(arrived) == list(range(own[0], hybrid.next_flow))
    ends = hybrid.completion_s(own)
    assert hybrid.start_s(late[0])[0] == pytest.approx(ends[3], abs=2e-12)
    packet = engines()[0]
    packet.add(FABRIC.routes(COLLIDING), int(by * 24 * MB), begin_s)
    packet.add(FABRIC.routes([(9, 14, 3)]), MB, begin_s, after=[(16, 3)])
    packet.add(FABRIC.routes([flow]), size, begin_s + late_s)
    packet.add(FABRIC.routes([flow]), size, begin_s + late_s + 1e-3)
    packet.advance()
    np.testing.assert_allclose(ends - begin_s, packet.completion_s(range(16)) - begin_s, rtol=0.05)


def test_tables_that_grow_meanwhile_leave_what_stands_still_alone():
    alone, crowded = engines()[1], engines()[1]
    near = [(host, host + 1) for host in (0, 2)]
    far = [(8 + host % 4, 12 + host % 4, host % 4) for host in range(300)]
    ends = []
    for engine in (alone, crowded):
        numbers = engine.add(FABRIC.routes(near), 64 * MB)
        engine.advance(1e-3)
        if engine is crowded:
            engine.add(FABRIC.routes(far), 200_000, 1.1e-3)
        engine.advance()
        ends.append(engine.completion_s(numbers).tolist())
    assert ends[0] == ends[1]


def test_what_is_alike_is_played_once_wherever_it_is():
    """A ring through 256 hosts costs the packets of two flows: under a leaf, and to the next."""
    fabric = LeafSpine(hosts=256, leaves=16, spines=16)
    ring = [(host, (host + 1) % 256, host % 16) for host in range(256)]
    small, large = (
        HybridEngine(np.full(each.links, RATE), DELAY_S, 4) for each in (FABRIC, fabric)
    )
    for engine, links, flows in ((small, FABRIC, RING), (large, fabric, ring)):
        engine.add(links.routes(flows), 64 * MB)
        engine.advance()
    assert large.packet_hops == small.packet_hops
    assert set(large.completion_s(np.arange(256))) == set(small.completion_s(np.arange(16)))
