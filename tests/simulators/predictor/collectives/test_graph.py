"""Channels and speeds against machines whose NCCL logs are public."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulators.predictor.collectives import machines as m
from tests.simulators.predictor.collectives.machines import cluster, group
from trainscout.simulators.predictor.collectives.graph import Graphs, wiring_of
from trainscout.simulators.predictor.question.cluster import Cluster, MeasuredCollective
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import Communicator


def graphs(gpu: Gpu, machine: Cluster, members: Communicator) -> Graphs:
    return wiring_of(members, gpu, machine).graphs


@pytest.mark.parametrize(
    ("gpu", "machine", "members", "ring", "channels"),
    [
        (m.A100, cluster(1, 8), group(8), (12, 20.0), 24),
        (m.H100, cluster(1, 8), group(8), (12, 30.0), 24),
        (m.H100, cluster(1, 4, nvswitch=False), group(4), (12, 30.0), 24),
        (m.H800, cluster(1, 8, version="2.18.3"), group(8), (8, 20.0), 16),
        (m.A800, cluster(1, 8), group(8), (8, 20.0), 16),
        (m.B200, cluster(1, 8, version="2.28"), group(8), (16, 45.0), 32),
        (m.V100, cluster(1, 8, nvswitch=False), group(8), (6, 20.0), 12),
        (m.A100_PCIE, cluster(1, 2, nvswitch=False), group(2), (2, 12.0), 4),
        (m.H100, cluster(4, 8), group(8, 4), (8, 45.0), 16),
        (m.H800, cluster(4, 8), group(8, 4), (8, 20.0), 16),
        (m.A100, cluster(4, 8, gbps=200), group(8, 4), (8, 24.0), 16),
        (m.A100, cluster(4, 8, 4, 100), group(8, 4), (4, 12.0), 8),
        (m.H100, cluster(2, 4, 4, 200, nvswitch=False), group(4, 2), (4, 24.0), 8),
        (m.A100, cluster(2, 1, 1, 200), group(1, 2), (1, 24.0), 2),
    ],
)
def test_ring(
    gpu: Gpu, machine: Cluster, members: Communicator, ring: tuple[int, float], channels: int
) -> None:
    found = graphs(gpu, machine, members)
    assert (found.ring.channels, found.ring.intra_gbs) == ring
    assert found.channels == channels


@pytest.mark.parametrize(
    ("gpu", "machine", "members", "intra", "inter"),
    [
        (m.A100, cluster(4, 8, gbps=200), group(8, 4), 30, 24),
        (m.A100, cluster(4, 8, 4, 100), group(8, 4), 24, 12),
        (m.H800, cluster(4, 8), group(8, 4), 22, 20),
        (m.A100, cluster(2, 1, 1, 200), group(1, 2), 48, 24),
        (m.H100, cluster(2, 4, 4, 200, nvswitch=False), group(4, 2), 48, 24),
    ],
)
def test_tree(
    gpu: Gpu, machine: Cluster, members: Communicator, intra: float, inter: float
) -> None:
    tree = graphs(gpu, machine, members).tree
    assert (tree.intra_gbs, tree.inter_gbs) == (intra, inter)


@pytest.mark.parametrize(
    ("gpu", "machine", "members", "heads", "speed", "channels"),
    [
        (m.H100, cluster(1, 8), group(8), 8, 40, 16),
        (m.H100, cluster(4, 8), group(8, 4), 8, 45, 16),
        (m.B200, cluster(1, 8, version="2.28"), group(8), 8, 90, 24),
    ],
)
def test_nvls(
    gpu: Gpu, machine: Cluster, members: Communicator, heads: int, speed: float, channels: int
) -> None:
    found = graphs(gpu, machine, members)
    assert found.nvls is not None
    assert (found.nvls.channels, found.nvls.intra_gbs) == (heads, speed)
    assert found.nvls_channels == channels


@pytest.mark.parametrize(
    ("gpu", "machine"), [(m.A100, cluster(1, 8)), (m.H100, cluster(1, 4, nvswitch=False))]
)
def test_no_nvls_without_multicast_switch(gpu: Gpu, machine: Cluster) -> None:
    assert graphs(gpu, machine, group(machine.gpus_per_node)).nvls is None


@pytest.mark.parametrize(("nics", "gbs"), [(8, 50.0), (4, 25.0)])
def test_rings_of_one_gpu_a_node_share_nics_when_there_are_fewer(nics: int, gbs: float) -> None:
    wiring = wiring_of(group(1, 4, 8), m.H100, cluster(4, 8, nics))
    assert (wiring.nics, wiring.nics_gbs) == (1, gbs)


def test_oversubscription_divides_what_is_delivered_not_what_nccl_believes() -> None:
    full = wiring_of(group(8, 4), m.H100, cluster(4, 8))
    thin = wiring_of(group(8, 4), m.H100, cluster(4, 8, oversubscription=2.0))
    assert thin.nics_gbs == full.nics_gbs / 2
    assert thin.graphs == full.graphs


def test_half_is_counted_of_a_network_that_nobody_validated() -> None:
    full = cluster(4, 8)
    unknown = replace(full, oversubscription=None)
    row = MeasuredCollective("all_reduce", 4, 2**30, 300.0, 300.0, 300.0)
    measured = replace(unknown, measured_collectives="own.csv", measured=(row,))
    rates = [wiring_of(group(8, 4), m.H100, each).nics_gbs for each in (full, unknown, measured)]
    assert rates == [rates[0], rates[0] / 2, rates[0]]
    # Its share of the NICs' rate was measured beside other jobs.
    shared = cluster(4, 8, fabric="omni_path")
    rates = [
        wiring_of(group(8, 4), m.A100, replace(shared, oversubscription=each)).nics_gbs
        for each in (1.0, None)
    ]
    assert rates[0] == rates[1]


@pytest.mark.parametrize(("gbps", "share"), [(1.0, 1.0), (25.0, 1.0), (40.0, 0.625), (50.0, 0.5)])
def test_a_slow_nic_is_no_network_s_fault(gbps: float, share: float) -> None:
    unknown = replace(cluster(2, 8), oversubscription=None, nic_gbps=gbps)
    wiring = wiring_of(group(8, 2), m.H100, unknown)
    assert wiring.nic_share == pytest.approx(share)


def test_a_server_without_nics_on_no_network_has_wires() -> None:
    alone = replace(cluster(1, 8), oversubscription=None, nic_gbps=0)
    pair = (wiring_of(group(8), m.H100, each) for each in (alone, replace(alone, nic_gbps=400)))
    assert len({each.link_gbs for each in pair}) == 1


def test_an_nvl72_is_one_node_with_every_nic_of_its_rack() -> None:
    racks = cluster(36, 4, 4, 400, "2.27", domain=72)
    one, two = (wiring_of(group(72, count), m.B200, racks) for count in (1, 2))
    assert (one.nodes, one.ranks_per_node, one.link) == (1, 72, "nvlink")
    assert (two.nodes, two.nics) == (2, 72)


def test_bridged_pairs_cross_pcie_inside_their_server() -> None:
    server = cluster(1, 8, 0, 0, "2.18", fabric="none", nvswitch=False, domain=2)
    pair = wiring_of(group(2), m.A40, server)
    every = wiring_of(group(2, 4), m.A40, server)
    assert (pair.link, pair.nodes) == ("nvlink", 1)
    assert (every.link, every.nodes, every.ranks_per_node) == ("pci", 1, 8)


def test_pairs_on_several_servers_use_the_network() -> None:
    servers = cluster(4, 8, 1, 100, "2.18", nvswitch=False, domain=2)
    consecutive = wiring_of(group(2, 8), m.A40, servers)
    strided = wiring_of(group(1, 4, 2), m.A40, servers)
    assert (consecutive.nodes, consecutive.ranks_per_node) == (2, 8)
    assert (strided.nodes, strided.ranks_per_node) == (4, 1)
    assert strided.nics_gbs == pytest.approx(12.5 / 8)


def test_ranks_without_nvlink_are_on_as_many_servers_as_said() -> None:
    servers = cluster(8, 8, 1, 100, "2.18", nvswitch=False, domain=1)
    for on, inside in ((1, 4), (2, 2), (4, 1)):
        strided = Communicator("dp", 4, 1, 4, 1, servers=on)
        wiring = wiring_of(strided, m.A100_PCIE, servers)
        assert (wiring.nodes, wiring.ranks_per_node) == (on, inside)
    assert wiring_of(strided.pair, m.A100_PCIE, servers).nodes == 2


@pytest.mark.parametrize(("ranks", "links"), [(2, 1), (4, 4), (8, 6)])
def test_hybrid_cube_mesh_gives_small_groups_few_links(ranks: int, links: int) -> None:
    wiring = wiring_of(group(ranks), m.V100, cluster(1, 8, nvswitch=False))
    assert wiring.link_gbs == links * 20
