"""Transfers that share links: closed forms, rollback, and independence of the order of hearing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.virtual_cluster.live.scripts import (
    LATENCY_S,
    LAUNCH_S,
    ScriptedPrices,
    collective,
    group,
    play,
    receive,
    send,
)
from tests.simulators.virtual_cluster.live.test_interleaving import jobs, outcome
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric
from trainscout.simulators.predictor.network.topology.wiring import build_network
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.virtual_cluster.live.network import FlowNetwork
from trainscout.simulators.virtual_cluster.live.representation import Representation
from trainscout.simulators.virtual_cluster.live.tasks import Transfer
from trainscout.simulators.virtual_cluster.traces.events import Synchronise, WorkWait
from trainscout.simulators.virtual_cluster.walk.prices import Price
from trainscout.simulators.virtual_cluster.walk.rendezvous import Call

MS = 10**9
NODES, GPUS = 4, 2


def network(*ranks: int) -> FlowNetwork:
    """Two GPUs a node and one NIC for both, under one switch; ``ranks`` run, by default all."""
    cluster = Cluster("small", NODES, GPUS, 1, 100, "infiniband", "test")
    fabric = SwitchFabric("one", "test", tiers=1, nics_per_leaf=NODES, hop_latency_s=0.0)
    wired = build_network(cluster, load_catalogue().gpus["h800"], fabric)
    world = NODES * GPUS
    return FlowNetwork(wired, Representation.by_neighbours(world, ranks or range(world)))


def transfer(source: int, destination: int, seconds: float, latency_s: float = 0.0) -> Transfer:
    price = Price(seconds, latency_s)
    return Transfer(Call("send_recv", 1, "float32"), (source, destination), 2, price)


def test_alone_a_transfer_takes_its_price():
    kinds = ("all_reduce", "all_to_all", "broadcast")
    for ranks in ((0, 1), (0, 2), (0, 2, 4), (0, 1, 2, 3), (0, 1, 2)):
        for kind in kinds:
            price = Price(3e-3, 1e-3)
            alone = Transfer(Call(kind, 1, "float32"), ranks, 1, price)
            ((_, end_ps),) = network().start([alone], 5 * MS)
            assert end_ps == pytest.approx(8 * MS, abs=10)


def test_what_has_only_latency_needs_no_links():
    ((_, end_ps),) = network().start([transfer(0, 2, 1e-3, latency_s=1e-3)], 0)
    assert end_ps == MS


@pytest.mark.parametrize("algorithm", ["ring", "tree", "nvls", "nvls_tree", "none"])
def test_alone_an_all_reduce_takes_its_price_whatever_nccl_chose(algorithm):
    for ranks in ((0, 1), (0, 2, 4), (0, 1, 2, 3), tuple(range(8)), (0, 1, 2)):
        alone = Transfer(Call("all_reduce", 1, "float32"), ranks, 1, Price(3e-3, 1e-3, algorithm))
        ((_, end_ps),) = network().start([alone], 5 * MS)
        assert end_ps == pytest.approx(8 * MS, abs=10)


def test_the_algorithm_says_which_nics_are_shared():
    """Four nodes all-reduce for 4 ms, the first sends the second what takes 2 ms. A ring has one
    flow into the second: half of its NIC each. Of a double tree the second is an inner node: 2, 1
    and 1 quarters of its 4 ms come from three nodes; the send has a quarter of the NIC for 4 ms,
    then half of it beside the longest."""
    ends = {}
    for algorithm in ("ring", "tree"):
        shared = network()
        price = Price(4e-3, 0.0, algorithm)
        reduced = Transfer(Call("all_reduce", 1, "float32"), (0, 2, 4, 6), 1, price)
        shared.start([reduced], 0)
        sent = transfer(0, 2, 2e-3)
        ends[algorithm] = dict(shared.start([sent], 0))[sent] / MS
    assert ends["ring"] == pytest.approx(4.0, rel=1e-6)
    assert ends["tree"] == pytest.approx(6.0, rel=1e-6)


def test_a_later_transfer_takes_half_the_link_and_moves_an_announced_end():
    """4 ms alone; from 2 ms on another of 2 ms shares the NIC: both end at 6 ms."""
    shared = network()
    first, second = transfer(0, 2, 4e-3), transfer(1, 3, 2e-3)
    assert dict(shared.start([first], 0)) == {first: 4 * MS}
    moved = dict(shared.start([second], 2 * MS))
    assert moved == {first: pytest.approx(6 * MS, abs=10), second: pytest.approx(6 * MS, abs=10)}
    assert shared.rollbacks == 1


def test_transfers_the_other_way_or_elsewhere_do_not_share():
    shared = network()
    first = transfer(0, 2, 4e-3)
    shared.start([first], 0)
    for other in (transfer(2, 0, 2e-3), transfer(4, 6, 2e-3), transfer(0, 1, 2e-3)):
        assert dict(shared.start([other], MS)) == {other: 3 * MS}


def test_ended_transfers_are_forgotten():
    shared = network()
    for count in range(2000):
        one = transfer(0, 2, 1e-3)
        ((_, end_ps),) = shared.start([one], 2 * count * MS)
        assert end_ps == pytest.approx((2 * count + 1) * MS, abs=10)
        shared.end(one)
    assert shared.pieces_kept < 500


def test_ranks_not_run_take_their_share_of_links():
    """Ranks 0 and 2 run; 1 and 3 act like them and send at the same time through the same NICs."""
    size = 10**6
    scripts = {
        0: [group(0, 2), send("0-2", 2, 0, size, work=0), WorkWait(0, 0), Synchronise("device")],
        2: [group(0, 2), receive("0-2", 0, 0, size, work=0), WorkWait(0, 0)],
    }
    who = Representation.by_neighbours(8, [0, 2, 4, 6])
    scripts |= {4: [], 6: []}
    simulation, _ = play(scripts, network=network(0, 2, 4, 6), representation=who)
    expected = LAUNCH_S + LATENCY_S + 2 * 1e-3
    assert simulation.hosts[0].clock.now_s == pytest.approx(expected)


def test_a_collective_of_one_rank_and_those_like_it_has_no_one_to_wait_for():
    scripts = {
        rank: [
            group(rank, rank + 1),
            collective(f"{rank}-{rank + 1}", 0, 10**6),
            WorkWait(1000, 0),
        ]
        for rank in (0, 2)
    }
    who = Representation.by_neighbours(8, [0, 2, 4, 6])
    scripts |= {4: [], 6: []}
    simulation, _ = play(scripts, network=network(0, 2, 4, 6), representation=who)
    assert simulation.finished
    ends = [each.end_ps for each in simulation.slices]
    assert ends == pytest.approx([1e12 * (LAUNCH_S + LATENCY_S + 1e-3)] * 2)


@given(jobs(), st.randoms(use_true_random=False), st.sampled_from([1.0, 1.3]))
def test_times_over_shared_links_are_those_of_any_other_interleaving(scripts, random, slowdown):
    def at_random(ranks):
        return random.choice(list(ranks)), random.randint(1, 6)

    def all_at_once(ranks):
        return ranks[-1], 1000

    prices = ScriptedPrices(slowdown, slowdown)
    # Ranks 0 and 1 share a NIC, as do 2 and 3.
    expected = outcome(play(scripts, prices=prices, network=network()))
    for choose in (at_random, all_at_once):
        assert outcome(play(scripts, prices=prices, network=network(), choose=choose)) == expected
