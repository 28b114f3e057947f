"""Rounds on a full mesh: the note's worked examples, closed forms, and what must always hold."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.expert_exchange.communication import (
    communicate,
    even_load_time_ms,
    one_round,
    packets_of,
    play,
)
from trainscout.simulators.expert_exchange.mesh import Mesh
from trainscout.simulators.predictor.moe.router import Counts
from trainscout.simulators.predictor.question.errors import InputError

FIRST = Mesh(
    num_nodes=8,
    num_links=1,
    base_delay=2,
    initial_cpu_delay=0,
    intra_bw=100,
    packet_size=20,
    packet_prep_delay=1,
)
SECOND = Mesh(
    num_nodes=8,
    num_links=2,
    base_delay=2,
    initial_cpu_delay=1,
    intra_bw=150,
    packet_size=15,
    packet_prep_delay=2,
)


def even(nodes: int, each: int) -> Counts:
    load = np.full((nodes, nodes), each)
    np.fill_diagonal(load, 0)
    return load


@pytest.mark.parametrize(
    ("mesh", "each", "round_ms", "rounds", "total_ms"),
    [(FIRST, 1600, 8.0, 32, 256.0), (SECOND, 1500, 23.0, 10, 231.0)],
)
@pytest.mark.parametrize("quota", [1, 2, 5, 1000])
def test_the_worked_examples_of_the_note(
    mesh: Mesh, each: int, round_ms: float, rounds: int, total_ms: float, quota: int
) -> None:
    mesh = replace(mesh, round_robin_max_packets=quota)
    mesh.check()
    exchange = communicate(even(8, each), mesh)
    assert mesh.round_time_ms() == round_ms
    assert exchange.rounds == exchange.least_rounds == rounds
    assert mesh.initial_cpu_delay + exchange.time_ms == total_ms
    closed = even_load_time_ms(even(8, each), mesh)
    assert closed is not None
    assert mesh.initial_cpu_delay + closed == total_ms


def test_the_closed_formula_has_fractional_rounds_where_packets_do_not_fit() -> None:
    """Five packets of 20 bytes leave 10 of 110 unused; 1607 bytes need a part of a packet."""
    narrow = replace(FIRST, intra_bw=110)
    assert even_load_time_ms(even(8, 1600), narrow) == pytest.approx(230.08, abs=0.005)
    assert communicate(even(8, 1600), narrow).time_ms == pytest.approx(253.09, abs=0.005)
    assert even_load_time_ms(even(8, 1607), FIRST) == pytest.approx(257.12, abs=0.005)
    # 162 packets of both directions share a link: 33 rounds.
    assert communicate(even(8, 1607), FIRST).time_ms == 264


def test_a_round_that_prepares_more_packets_takes_longer_though_few_are_sent() -> None:
    load = np.array([[0, 20], [0, 0]])
    pair = replace(FIRST, num_nodes=2)
    assert communicate(load, pair).time_ms == 8
    assert communicate(load, replace(pair, intra_bw=200)).time_ms == pytest.approx(13)


def test_a_link_is_shared_by_both_directions() -> None:
    load = np.array([[0, 100], [0, 0]])
    pair = replace(FIRST, num_nodes=2)
    assert communicate(load, pair).rounds == 1
    assert communicate(load + load.T, pair).rounds == 2


def test_what_stays_on_its_node_does_not_travel() -> None:
    load = np.diag([10**6] * 8)
    assert communicate(load, FIRST).rounds == 0
    assert even_load_time_ms(load, FIRST) == 0


def test_a_nic_limits_what_a_node_sends_and_receives() -> None:
    scatter = np.zeros((4, 4), np.int64)
    scatter[0, 1:] = 100
    mesh = replace(FIRST, num_nodes=4)
    assert communicate(scatter, mesh).rounds == 1
    # 15 packets: four a round out of node 0.
    tight = replace(mesh, nic_rate=99.0)
    assert communicate(scatter, tight).rounds == 4
    assert communicate(scatter.T, tight).rounds == 4
    # Sending and receiving are limited separately.
    ring = np.roll(np.diag([80] * 4), 1, axis=1)
    assert communicate(ring, tight).rounds == 1


def test_turns_share_a_nic_between_destinations() -> None:
    """Node 0 sends to three others: two packets to each in turn, as the note draws it."""
    waiting = np.zeros((4, 4), np.int64)
    waiting[0, 1:] = 10
    link = np.full((4, 4), 100)
    assert one_round(waiting, link, 12, 2)[0].tolist() == [0, 4, 4, 4]
    assert one_round(waiting, link, 9, 2)[0].tolist() == [0, 4, 3, 2]
    assert one_round(waiting, link, 12, 50)[0].tolist() == [0, 10, 2, 0]


def test_a_slower_link_between_clusters_sets_the_pace() -> None:
    clusters = replace(FIRST, nodes_per_cluster=4, inter_bw=50.0)
    clusters.check()
    # Two packets of 20 bytes fit in 50; the 160 of a pair take 80 rounds, inside clusters 32.
    assert communicate(even(8, 1600), clusters).rounds == 80
    inside = even(8, 1600) * (np.arange(8)[:, None] // 4 == np.arange(8) // 4)
    assert communicate(inside, clusters).rounds == 32
    # A round lasts as long as on the links that carry most packets.
    assert clusters.round_time_ms() == 8
    apart = replace(FIRST, nodes_per_cluster=1, inter_bw=50.0)
    assert apart.round_time_ms() == 2 + 2 * (1 + 0.4)
    assert even_load_time_ms(even(8, 1600), clusters) is None
    assert replace(FIRST, nodes_per_cluster=8).one_cluster


def test_preparing_hides_behind_sending() -> None:
    """Fully overlapped, five packets take one preparation after another and the last one's 0.2."""
    assert replace(FIRST, parallelization_multiplier=1).round_time_ms() == pytest.approx(7.2)
    assert replace(FIRST, parallelization_multiplier=0.5).round_time_ms() == pytest.approx(7.6)
    slow = replace(FIRST, packet_prep_delay=0.1, parallelization_multiplier=1.0)
    assert slow.round_time_ms() == pytest.approx(2 + 0.1 + 5 * 0.2)


def plain_round(waiting: Counts, mesh: Mesh) -> Counts:
    """Packet by packet, turn by turn, with nothing skipped."""
    nodes = len(waiting)
    left, sent = waiting.copy(), np.zeros_like(waiting)
    link = {(a, b): int(mesh.link_packets()[a, b]) for a in range(nodes) for b in range(a, nodes)}
    out, into = [mesh.nic_packets] * nodes, [mesh.nic_packets] * nodes
    moved = True
    while moved:
        moved = False
        for distance in range(1, nodes):
            for source in range(nodes):
                to = (source + distance) % nodes
                pair = (min(source, to), max(source, to))
                for _ in range(mesh.round_robin_max_packets):
                    if min(left[source, to], link[pair], out[source], into[to]) == 0:
                        break
                    left[source, to] -= 1
                    link[pair] -= 1
                    out[source] -= 1
                    into[to] -= 1
                    sent[source, to] += 1
                    moved = True
    return sent


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[Counts, Mesh]:
    nodes = draw(st.integers(2, 6))
    packet = draw(st.integers(1, 9))
    clusters = draw(st.sampled_from([size for size in range(1, nodes + 1) if nodes % size == 0]))
    wide = st.integers(packet, 60)
    mesh = Mesh(
        num_nodes=nodes,
        nodes_per_cluster=clusters,
        num_links=draw(st.integers(1, 3)),
        base_delay=draw(st.floats(0, 3)),
        intra_bw=draw(wide),
        inter_bw=draw(wide) if clusters < nodes or draw(st.booleans()) else None,
        packet_size=packet,
        packet_prep_delay=draw(st.floats(0, 3)),
        parallelization_multiplier=draw(st.floats(0, 1)),
        round_robin_max_packets=draw(st.integers(1, 5)),
        nic_rate=draw(st.none() | wide),
    )
    mesh.check()
    cells = st.integers(0, 400) | st.just(0)
    load = [[draw(cells) for _ in range(nodes)] for _ in range(nodes)]
    return np.array(load), mesh


@given(exchanges())
def test_rounds_are_those_played_packet_by_packet(exchange: tuple[Counts, Mesh]) -> None:
    load, mesh = exchange
    waiting = packets_of(load, mesh)
    for run in play(load, mesh):
        for _ in range(run.rounds):
            assert (plain_round(waiting, mesh) == run.packets).all()
            waiting = waiting - run.packets
    assert not waiting.any()


@given(exchanges())
def test_all_bytes_arrive_within_the_limits_and_no_sooner_than_possible(
    exchange: tuple[Counts, Mesh],
) -> None:
    load, mesh = exchange
    sent, rounds = np.zeros_like(load), 0
    for run in play(load, mesh):
        assert run.first == rounds
        assert (run.packets + run.packets.T <= mesh.link_packets()).all()
        assert max(run.packets.sum(axis=0).max(), run.packets.sum(axis=1).max()) <= (
            mesh.nic_packets
        )
        sent += run.packets * run.rounds
        rounds += run.rounds
    assert (sent == packets_of(load, mesh)).all()
    result = communicate(load, mesh)
    assert result.rounds == rounds
    assert result.time_ms >= result.least_time_ms
    if mesh.nic_rate is None:
        assert result.rounds == result.least_rounds
    closed = even_load_time_ms(load, mesh)
    if closed is not None:
        assert result.time_ms >= closed - 1e-9 * abs(closed)
    assert communicate(load, mesh) == result


@given(exchanges(), st.integers(1, 100))
def test_more_bandwidth_never_takes_more_rounds(exchange: tuple[Counts, Mesh], more: int) -> None:
    load, mesh = exchange
    mesh = replace(mesh, nic_rate=None)
    faster = replace(mesh, intra_bw=mesh.intra_bw + more)
    assert communicate(load, faster).rounds <= communicate(load, mesh).rounds
    if mesh.inter_bw is not None:
        faster = replace(mesh, inter_bw=mesh.inter_bw + more)
        assert communicate(load, faster).rounds <= communicate(load, mesh).rounds


@given(exchanges(), st.integers(1, 5), st.integers(1, 5))
def test_more_bandwidth_never_takes_longer_where_packets_fill_it(
    exchange: tuple[Counts, Mesh], packets: int, more: int
) -> None:
    """By the closed formula; whole rounds are charged in full, so few bytes can take longer."""
    load, mesh = exchange
    mesh = replace(mesh, nodes_per_cluster=None, inter_bw=None, parallelization_multiplier=0.0)
    slow = replace(mesh, intra_bw=packets * mesh.packet_size)
    fast = replace(mesh, intra_bw=(packets + more) * mesh.packet_size)
    slow_ms, fast_ms = even_load_time_ms(load, slow), even_load_time_ms(load, fast)
    assert slow_ms is not None
    assert fast_ms is not None
    assert fast_ms <= slow_ms * (1 + 1e-12)


@given(exchanges(), st.floats(0, 1))
def test_overlap_lies_between_serial_and_the_longer_phase(
    exchange: tuple[Counts, Mesh], overlap: float
) -> None:
    _, mesh = exchange
    mesh = replace(mesh, nodes_per_cluster=None, inter_bw=None)
    packets, sending = mesh.intra_bw // mesh.packet_size, mesh.packet_size / mesh.intra_bw
    longer = packets * max(sending, mesh.packet_prep_delay) + mesh.base_delay
    serial = packets * (sending + mesh.packet_prep_delay) + mesh.base_delay
    time_ms = replace(mesh, parallelization_multiplier=overlap).round_time_ms()
    assert longer - 1e-9 <= time_ms <= serial + 1e-9


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_nodes": 1}, "num_nodes"),
        ({"num_nodes": 10**5}, "num_nodes"),
        ({"num_links": 0}, "num_links"),
        ({"packet_size": 0}, "packet_size"),
        ({"packet_size": 101}, "packet_size"),
        ({"nic_rate": 19.0}, "packet_size"),
        ({"nodes_per_cluster": 4, "inter_bw": 19.0}, "packet_size"),
        ({"intra_bw": 0.0}, "intra_bw"),
        ({"intra_bw": math.nan}, "intra_bw"),
        ({"base_delay": -1.0}, "base_delay"),
        ({"initial_cpu_delay": -1.0}, "initial_cpu_delay"),
        ({"packet_prep_delay": math.inf}, "packet_prep_delay"),
        ({"parallelization_multiplier": 1.5}, "parallelization_multiplier"),
        ({"parallelization_multiplier": math.nan}, "parallelization_multiplier"),
        ({"round_robin_max_packets": 0}, "round_robin_max_packets"),
        ({"inter_bw": 50.0}, "inter_bw"),
        ({"nodes_per_cluster": 3, "inter_bw": 50.0}, "nodes_per_cluster"),
        ({"nodes_per_cluster": 4}, "nodes_per_cluster"),
    ],
)
def test_impossible_meshes_are_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as refused:
        replace(FIRST, **changes).check()  # type: ignore[arg-type]
    assert refused.value.field == field


def test_huge_rates_do_not_overflow() -> None:
    vast = replace(FIRST, intra_bw=1e30, nic_rate=1e30, round_robin_max_packets=10**30)
    vast.check()
    assert communicate(even(8, 10**15), vast).rounds == 1
