"""Packets against closed forms, and what must hold whatever is sent."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.predictor.network.packet.fabrics import DELAY_S, RATE, LeafSpine, alone_s
from tests.simulators.predictor.network.packet.ports import port_report
from trainscout.simulators.predictor.network.flow.engine import FlowEngine
from trainscout.simulators.predictor.network.packet.engine import DroppedPacketError, PacketEngine
from trainscout.simulators.predictor.network.packet.settings import Dcqcn, PacketSettings
from trainscout.simulators.predictor.network.topology.routing import Routes
from trainscout.simulators.predictor.question.errors import InputError

FABRIC = LeafSpine()
MB = 1_000_000


def play(flows, sizes, starts=0.0, fabric=FABRIC, given_settings=None, **more):
    engine = fabric.engine(given_settings)
    numbers = engine.add(fabric.routes(flows), sizes, starts, **more)
    engine.advance()
    return engine, engine.completion_s(numbers)


@pytest.mark.parametrize("size", [1, 4096, 5000, 16 * MB])
@pytest.mark.parametrize(("flow", "hops"), [((0, 1), 2), ((0, 5), 4)])
def test_a_flow_alone_takes_its_wire_time(size, flow, hops):
    _, (end,) = play([flow], size)
    # A whole packet before the last may still be ahead of a shorter last one.
    assert alone_s(size, hops) - 1e-12 <= end <= alone_s(size, hops) + (hops - 1) * 4096 / RATE


def test_a_ring_runs_as_if_each_flow_were_alone():
    flows = [(host, (host + 1) % 16, host % 4) for host in range(16)]
    _, ends = play(flows, 4096 * 1000)
    hops = np.array([2 if a // 4 == b // 4 else 4 for a, b, _ in flows])
    np.testing.assert_allclose(ends, [alone_s(4096 * 1000, n) for n in hops], rtol=1e-12)


@pytest.mark.parametrize("senders", [2, 3, 5])
def test_flows_into_one_host_share_its_link(senders):
    flows = [(host, 0, host % 4) for host in range(4, 4 + senders)]
    _, ends = play(flows, 4 * MB)
    total = senders * 4 * MB / RATE
    assert ends.max() == pytest.approx(total + 4 * DELAY_S, rel=0.01)
    # Fairly: no one is done long before the rest.
    assert ends.min() > 0.9 * ends.max()


def test_flows_of_one_host_take_turns():
    _, ends = play([(0, 5, 0), (0, 9, 1), (0, 13, 2)], 4096 * 100)
    assert np.ptp(ends) <= 3 * 4096 / RATE
    assert ends.max() == pytest.approx(alone_s(3 * 4096 * 100, 4), rel=1e-6)


def test_a_flow_waits_for_those_before_it():
    engine = FABRIC.engine()
    first = engine.add(FABRIC.routes([(0, 5)]), MB)
    second = engine.add(FABRIC.routes([(5, 9)]), MB, after=[(1, 0)], delay_s=3e-6)
    engine.advance()
    assert engine.start_s(second)[0] == pytest.approx(engine.completion_s(first)[0] + 3e-6)
    late = engine.add(FABRIC.routes([(5, 9)]), MB, engine.now_s, after=[(2, 0)])
    engine.advance()
    assert engine.completion_s(late)[0] > engine.completion_s(second)[0]


def test_pauses_keep_queues_short_and_lose_nothing():
    flows = [(host, 0, host % 4) for host in range(1, 16)]
    pausing = PacketSettings(window=8, pause_bytes=100_000, resume_bytes=50_000)
    engine, _ = play(flows, 2 * MB, given_settings=pausing)
    report = port_report(engine)
    assert report.pauses.sum() > 0
    assert report.paused_s.max() > 0
    # Each of a port's input links may hold as much, and what was on its way when it was paused.
    links_in = 3 + 4
    on_the_way = 2 * DELAY_S * RATE + 3 * 4096
    assert report.most_queued_bytes.max() <= links_in * (100_000 + on_the_way)


def test_without_pauses_an_overflow_is_an_error():
    flows = [(host, 0, host % 4) for host in range(1, 16)]
    small = PacketSettings(window=8, pause_bytes=None, queue_bytes=200_000)
    with pytest.raises(DroppedPacketError, match="do not fit"):
        play(flows, 2 * MB, given_settings=small)


def test_dcqcn_marks_slow_senders_and_shortens_queues():
    flows = [(host, 0, host % 4) for host in range(4, 12)]
    low = Dcqcn(mark_from_bytes=20e3, mark_all_bytes=100e3)
    plain, ends = play(flows, 16 * MB, given_settings=PacketSettings(window=4))
    marked, later = play(
        flows, 16 * MB, given_settings=PacketSettings(window=4, congestion="dcqcn", dcqcn=low)
    )
    assert port_report(plain).marks.sum() == 0
    assert port_report(marked).marks.sum() > 0
    # Rates that were cut recover slowly, and never finish sooner than a full link would.
    assert later.max() >= ends.max() * (1 - 1e-3)


def test_dcqcn_leaves_a_flow_alone_at_line_rate():
    dcqcn = PacketSettings(congestion="dcqcn")
    _, (end,) = play([(0, 5)], 4096 * 1000, given_settings=dcqcn)
    assert end == pytest.approx(alone_s(4096 * 1000, 4), rel=1e-6)


def test_headers_take_their_share_of_the_wire():
    _, (bare,) = play([(0, 5)], 4096 * 1000)
    _, (framed,) = play([(0, 5)], 4096 * 1000, given_settings=PacketSettings(header_bytes=62))
    assert framed / bare == pytest.approx((4096 + 62) / 4096, rel=0.01)


pairs = st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(0, 3)).filter(
    lambda flow: flow[0] != flow[1]
)
sending = st.lists(
    st.tuples(pairs, st.integers(1, 400_000), st.floats(0, 50e-6)), min_size=1, max_size=25
)
modes = st.sampled_from(
    [
        PacketSettings(),
        PacketSettings(congestion="dcqcn", dcqcn=Dcqcn(mark_from_bytes=10e3, mark_all_bytes=50e3)),
        PacketSettings(window=6, pause_bytes=30_000, resume_bytes=20_000, header_bytes=50),
    ]
)


@given(sending, modes)
def test_every_byte_crosses_every_link_of_its_route_once(what, mode):
    flows, sizes, starts = map(list, zip(*what, strict=True))
    engine, ends = play(flows, sizes, starts, given_settings=mode)
    assert np.isfinite(ends).all()
    packets = np.ceil(np.array(sizes) / mode.packet_bytes)
    expected = np.zeros(FABRIC.links)
    for flow, size, count in zip(flows, sizes, packets, strict=True):
        route = [link for link in FABRIC.route(*flow) if link >= 0]
        expected[route] += size + count * mode.header_bytes
    np.testing.assert_array_equal(port_report(engine).bytes_sent, expected)


@given(sending, modes)
def test_nothing_beats_the_wire_and_pieces_make_the_whole(what, mode):
    flows, sizes, starts = map(list, zip(*what, strict=True))
    _, ends = play(flows, sizes, starts, given_settings=mode)
    for flow, size, start, end in zip(flows, sizes, starts, ends, strict=True):
        hops = sum(link >= 0 for link in FABRIC.route(*flow))
        assert end - start >= alone_s(size, hops) - 2e-12
    engine = FABRIC.engine(mode)
    numbers = engine.add(FABRIC.routes(flows), sizes, starts)
    told = {}
    for until_s in (7e-6, 20e-6, 20e-6, 61e-6, None):
        arrivals = engine.advance(until_s)
        told |= dict(zip(arrivals.flows.tolist(), arrivals.completion_s.tolist(), strict=True))
    assert [told[flow] for flow in numbers.tolist()] == ends.tolist()


@given(sending)
def test_what_shares_no_link_does_not_matter(what):
    """Hosts 0 to 7 under spines 0 and 1, and hosts 8 to 15 under spines 2 and 3."""
    near = [((a % 8, b % 8, s % 2), size, at) for (a, b, s), size, at in what if a % 8 != b % 8]
    if not near:
        return
    far = [((a + 8, b + 8, s + 2), size, at) for (a, b, s), size, at in near[::-1]]
    alone = play(*map(list, zip(*near, strict=True)))[1]
    both = play(*map(list, zip(*near, *far, strict=True)))[1]
    assert both[: len(near)].tolist() == alone.tolist()


def test_other_seeds_mark_other_packets():
    flows = [(host, 0, host % 4) for host in range(4, 12)]
    low = Dcqcn(mark_from_bytes=20e3, mark_all_bytes=400e3, mark_at_most=0.05)
    ends = [
        play(
            flows,
            4 * MB,
            given_settings=PacketSettings(window=4, congestion="dcqcn", dcqcn=low, seed=seed),
        )[1].tolist()
        for seed in (0, 0, 1)
    ]
    assert ends[0] == ends[1] != ends[2]


def test_long_uncontended_transfers_agree_with_the_flow_engine():
    flows = [(host, (host + 4) % 16, host % 4) for host in range(16)]
    routes = FABRIC.routes(flows)
    fluid = FlowEngine(np.full(FABRIC.links, RATE), 4)
    numbers = fluid.add(Routes(routes.links, np.full(16, 4 * DELAY_S)), 64.0 * MB)
    fluid.advance()
    _, ends = play(flows, 64 * MB)
    np.testing.assert_allclose(ends, fluid.completion_s(numbers), rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"size_bytes": 0}, "flow.size_bytes"),
        ({"size_bytes": float("nan")}, "flow.size_bytes"),
        ({"start_s": -1.0}, "flow.start_s"),
        ({"delay_s": float("inf")}, "flow.delay_s"),
        ({"after": [(0, 0)]}, "flow.after"),
        ({"after": [(5, 0)]}, "flow.after"),
    ],
)
def test_what_cannot_be_sent_is_refused(changes, field):
    arguments = {"size_bytes": 1000, **changes}
    with pytest.raises(InputError) as refused:
        FABRIC.engine().add(FABRIC.routes([(0, 1)]), **arguments)
    assert refused.value.field == field


def test_links_that_failed_or_do_not_exist_are_refused():
    engine = PacketEngine([RATE, 0.0], DELAY_S, 2)
    with pytest.raises(InputError, match="has failed"):
        engine.add(Routes(np.array([[0, 1]]), np.zeros(1)), 1000)
    with pytest.raises(InputError, match="is no link"):
        engine.add(Routes(np.array([[7, -1]]), np.zeros(1)), 1000)


def test_a_start_in_the_past_is_refused():
    engine = FABRIC.engine()
    engine.add(FABRIC.routes([(0, 1)]), MB)
    engine.advance()
    with pytest.raises(InputError, match="was played already"):
        engine.add(FABRIC.routes([(0, 1)]), MB, 0.0)


@pytest.mark.parametrize(
    ("settings_", "field"),
    [
        (PacketSettings(packet_bytes=0), "network.packet.packet_bytes"),
        (PacketSettings(window=0.5), "network.packet.window"),
        (PacketSettings(congestion="tcp"), "network.packet.congestion"),
        (PacketSettings(resume_bytes=10**9), "network.packet.resume_bytes"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings_, field):
    with pytest.raises(InputError) as refused:
        PacketEngine([RATE], DELAY_S, 1, settings_)
    assert refused.value.field == field
