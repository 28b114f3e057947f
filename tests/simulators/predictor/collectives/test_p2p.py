"""NCCL's channels per peer, and the speed they give, on a public 10-node H100 cluster."""

from __future__ import annotations

import pytest

from tests.simulators.predictor.collectives import machines as m
from tests.simulators.predictor.collectives.machines import MIB, cluster, group
from trainscout.simulators.predictor.collectives import p2p
from trainscout.simulators.predictor.collectives.graph import wiring_of
from trainscout.simulators.predictor.collectives.price import open_connections, price_send_recv
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import Communicator


@pytest.mark.parametrize(
    ("per_node", "nodes", "channels", "slowest", "fastest"),
    [
        (1, 2, 4, 39.7, 43.2),
        (8, 2, 4, 39.7, 43.2),
        (1, 10, 2, 24.9, 26.3),
        (4, 10, 2, 24.9, 26.3),
        (8, 10, 1, 15.2, 15.2),
    ],
)
def test_network_peer(
    per_node: int, nodes: int, channels: int, slowest: float, fastest: float
) -> None:
    machine = cluster(10, 8, version="2.29.2")
    wiring = wiring_of(group(per_node, nodes), m.H100, machine)
    assert p2p.channels_per_net_peer(wiring) == channels
    assert slowest <= p2p.net_peer_gbs(wiring) <= fastest


def test_before_2_29_two_channels_then_one() -> None:
    machine = cluster(64, 8, version="2.22")
    assert p2p.channels_per_net_peer(wiring_of(group(8, 4), m.H100, machine)) == 2
    assert p2p.channels_per_net_peer(wiring_of(group(8, 8), m.H100, machine)) == 1


@pytest.mark.parametrize(
    ("gpu", "per_node", "nodes", "peers", "more"),
    [
        # NVIDIA/nccl issue 1685: 32 channels to each of seven peers on eight H100.
        (m.H100, 8, 1, 7, 7 * 32),
        (m.H100, 8, 1, 1, 32),
        # None gets more than peers behind the network do, which have no buffers of their own.
        (m.H100, 8, 2, 15, 7 * 2),
        (m.H100, 1, 8, 7, 0),
        (m.A100, 8, 1, 7, 7 * 32),
    ],
)
def test_peers_that_a_rank_talks_to_are_connected_by_all_their_channels(
    gpu: Gpu, per_node: int, nodes: int, peers: int, more: int
) -> None:
    machine, members = cluster(max(1, nodes), 8, version="2.26.2"), group(per_node, nodes)
    alone = open_connections([members], {}, gpu, machine)
    assert open_connections([members], {members.name: peers}, gpu, machine) == alone + more


def test_nccl_connected_each_channel_three_times_at_once() -> None:
    members = group(8, 1)
    lazy, eager = (
        open_connections([members], {}, m.H100, cluster(1, 8, version=version))
        for version in ("2.22.3", "2.21.5")
    )
    assert eager == 3 * lazy


def test_shared_nic_bounds_the_transfer() -> None:
    wiring = wiring_of(group(1, 4, 8), m.A100, cluster(4, 8, 1, 100))
    assert p2p.net_peer_gbs(wiring) == pytest.approx(12.5 / 8, rel=0.03)


def test_local_peer_of_h100() -> None:
    # Logged: 32 over the switch.
    assert p2p.channels_per_local_peer(wiring_of(group(8), m.H100, cluster(1, 8))) == 32


@pytest.mark.parametrize(
    ("ranks", "size_mib", "channels", "measured_gbs"),
    [
        (8, 32, 4, 79.6),
        (8, 64, 4, 82.0),
        (8, 128, 8, 162.6),
        (8, 1024, 32, 360.8),
        (4, 32, 8, 149.3),
        (4, 128, 8, 162.9),
        (2, 32, 16, 325.0),
    ],
)
def test_a_local_send_gets_more_channels_as_it_grows(
    ranks: int, size_mib: int, channels: int, measured_gbs: float
) -> None:
    # sendrecv inside a node of the same cluster.
    machine = cluster(1, 8, version="2.29.2")
    pair = wiring_of(group(2), m.H100, machine)
    found = p2p.local_channels_used(size_mib * MIB, ranks, pair)
    assert found == channels
    assert p2p.local_peer_gbs(found, pair) == pytest.approx(measured_gbs, rel=0.1)


def test_all_to_all_work_is_bound_by_what_leaves_the_node() -> None:
    wiring = wiring_of(group(8, 2), m.H100, cluster(2, 8))
    _, net = p2p.all_to_all_terms(1024 * MIB, wiring)
    assert net["net_stream"] == pytest.approx(1024 * MIB / 2 / 50e3)
    assert net["net_peer"] == 8


@pytest.mark.parametrize(("cpu", "nic_gbs"), [("arm", 25.0), ("amd", 0.767 * 24 * 0.62)])
def test_all_to_all_through_a_host_gets_less_of_its_nics(cpu: str, nic_gbs: float) -> None:
    # Polaris' blades have NICs behind PCIe 4 root ports of 24 GB/s, each superchip one of its own.
    machine = cluster(2, 4, 2, 200, fabric="slingshot", cpu=cpu, nvswitch=False)
    _, net = p2p.all_to_all_terms(1024 * MIB, wiring_of(group(4, 2), m.A100, machine))
    assert net["net_stream"] == pytest.approx(4 * 1024 * MIB / 2 / (1e3 * 2 * nic_gbs))


def test_all_to_all_of_single_gpus_is_bound_by_the_channels_of_a_peer() -> None:
    wiring = wiring_of(group(1, 2), m.H100, cluster(2, 8, version="2.29.2"))
    _, net = p2p.all_to_all_terms(1024 * MIB, wiring)
    assert net["net_stream"] == pytest.approx(512 * MIB / 41.5e3)


def test_all_to_all_takes_all_channels_when_large() -> None:
    one, two = (wiring_of(group(8, n), m.H100, cluster(n, 8)) for n in (1, 2))
    assert p2p.all_to_all_channels(512 * MIB, one) == 32
    assert p2p.all_to_all_channels(512 * MIB, two) == 16


def test_a_pair_by_itself_has_the_channels_that_many_ranks_share() -> None:
    ring = Communicator("cp", 32, 1, 32, siblings=8)
    assert ring.pair == Communicator("cp", 2, 1, 2, siblings=8)
    assert Communicator("cp", 8, 8, 1).pair == Communicator("cp", 2, 2, 1)
    machine = cluster(32, 8, version="2.20")
    shared, alone = (
        price_send_recv(64 * MIB, True, members, m.H100, machine) for members in (ring, ring.pair)
    )
    assert (shared.channels, alone.channels) == (1, 2)
    assert shared.seconds > 1.5 * alone.seconds


@pytest.mark.parametrize(("nics", "gain"), [(1, 4.0), (2, 2.0), (4, 1.0), (8, 1.0)])
def test_one_stage_of_a_node_sends_out_of_it(nics: int, gain: float) -> None:
    """Of four stages in a node two of its eight GPUs send, over NICs next to them; of one, all."""
    machine = cluster(2, 8, nics, 100)
    stages = Communicator("pp", 8, 4, 2, siblings=2)
    one_each = Communicator("pp", 2, 1, 2, siblings=8)
    taken_s, of_all_s = (
        price_send_recv(512 * MIB, True, members, m.H100, machine).seconds
        for members in (stages, one_each)
    )
    assert of_all_s / taken_s == pytest.approx(gain, rel=0.02)
