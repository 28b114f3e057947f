from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulators.predictor.network.topology.test_network import fabric_named, wired
from trainscout.simulators.predictor.network.topology.network import Network
from trainscout.simulators.predictor.network.topology.routing import find_routes
from trainscout.simulators.predictor.question.errors import InputError


def names(network: Network, source: int, destination: int, label: int = 0) -> list[str]:
    (row,) = find_routes(network, [source], [destination], [label]).links
    return [network.link_name(int(link)) for link in row if link >= 0]


def pairs(network: Network, count: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    source = random.integers(0, network.gpus, count)
    return source, (source + random.integers(1, network.gpus, count)) % network.gpus


def test_gpus_of_a_node_use_nvlink() -> None:
    assert names(wired("h100_64", fabric_named("leaf_spine")), 1, 6) == [
        "gpu1-nvlink:up",
        "gpu6-nvlink:down",
    ]


def test_an_nvlink_domain_spans_its_trays() -> None:
    network = wired("gb200_nvl72", fabric_named("rail_optimised"), num_nodes=36)
    assert names(network, 0, 71) == ["gpu0-nvlink:up", "gpu71-nvlink:down"]
    # The next rack's tray is on the same leaf of the rail only within 32 trays.
    assert names(network, 0, 72) == ["node0-nic0:up", "node18-nic0:down"]


def test_leaves_are_filled_node_by_node_without_rails() -> None:
    network = wired("h100_64", fabric_named("leaf_spine"))
    assert names(network, 0, 31) == ["node0-nic0:up", "node3-nic7:down"]
    route = names(network, 0, 32)
    assert (route[0], route[-1]) == ("node0-nic0:up", "node4-nic0:down")
    assert route[1].startswith("leaf0-spine")
    assert route[2] == route[1].replace("leaf0", "leaf1").replace(":up", ":down")


def test_a_rail_is_one_hop_and_another_rail_is_reached_over_nvlink() -> None:
    network = wired("h100_64", fabric_named("rail_optimised"))
    assert names(network, 3, 59) == ["node0-nic3:up", "node7-nic3:down"]
    assert names(network, 3, 60) == [
        "gpu3-nvlink:up",
        "gpu4-nvlink:down",
        "node0-nic4:up",
        "node7-nic4:down",
    ]
    climbing = wired("h100_64", fabric_named("rail_optimised", forward_by_nvlink=False))
    route = names(climbing, 3, 60)
    assert [name.split("-")[0] for name in route] == ["node0", "leaf3", "leaf4", "node7"]


def test_rails_of_their_own_never_share_a_spine() -> None:
    network = wired("h100_8192", fabric_named("rail_only"))
    source, destination = pairs(network)
    routes = find_routes(network, source, destination)
    up = network.up("leaf")
    on_leaf = (routes.links >= up) & (routes.links < network.down("leaf"))
    rows = np.flatnonzero(on_leaf.any(axis=1))
    leaf = (routes.links[on_leaf] - up) // network.spines
    assert (leaf // network.leaves_per_pod == destination[rows] % 8).all()


def test_shared_nics_belong_to_neighbouring_gpus() -> None:
    network = wired("v100_16", fabric_named("leaf_spine"))
    assert names(network, 2, 15) == ["node0-nic1:up", "node1-nic3:down"]


def test_several_nics_of_a_gpu_are_used_in_pairs() -> None:
    network = wired("h100_64", fabric_named("rail_optimised"), nics_per_node=16, nic_gbps=200)
    labels = np.arange(64)
    routes = find_routes(network, np.full(64, 2), np.full(64, 10), labels)
    # Two rails, and no label is led across.
    used = {tuple(network.link_name(int(link)) for link in row[:2]) for row in routes.links}
    assert used == {
        ("node0-nic4:up", "node1-nic4:down"),
        ("node0-nic5:up", "node1-nic5:down"),
    }
    assert (routes.links[:, 2:] < 0).all()


def test_pcie_is_on_the_way_where_it_can_be_the_bottleneck() -> None:
    free = wired("h100_64", fabric_named("leaf_spine"))
    assert not any("pcie" in name for name in names(free, 0, 8))
    slow = wired("h100_64", fabric_named("leaf_spine"), nic_gbps=800)
    assert names(slow, 0, 8) == [
        "gpu0-pcie:up",
        "node0-nic0:up",
        "node1-nic0:down",
        "gpu8-pcie:down",
    ]


def test_latency_counts_cables_of_the_fabric() -> None:
    network = wired("h100_16384", fabric_named("fat_tree", hop_latency_s=2e-6))
    same_leaf, same_pod, far = find_routes(network, [0, 0, 0], [8, 256, 16000]).latency_s
    assert (same_leaf, same_pod, far) == (4e-6, 8e-6, 12e-6)


@given(st.integers(0, 2**31), st.integers(0, 5))
@settings(max_examples=settings.default.max_examples // 2)
def test_a_route_is_a_function_of_seed_and_flow(seed: int, label: int) -> None:
    network = wired("h100_512", fabric_named("leaf_spine", ecmp_seed=seed))
    source, destination = pairs(network, 50)
    together = find_routes(network, source, destination, label).links
    backwards = find_routes(network, source[::-1], destination[::-1], label).links
    np.testing.assert_array_equal(together, backwards[::-1])
    (alone,) = find_routes(network, source[:1], destination[:1], label).links
    np.testing.assert_array_equal(together[0], alone)


def test_seeds_and_labels_spread_flows_evenly() -> None:
    """Each of 32 uplinks gets its share of 32,000 flows to within five standard deviations."""
    fabric = fabric_named("leaf_spine")
    for network, labels in (
        (wired("h100_64", fabric), np.arange(32_000)),
        (wired("h100_64", fabric_named("leaf_spine", ecmp_seed=9)), np.arange(32_000)),
    ):
        routes = find_routes(network, 0, 63, labels)
        counts = np.bincount(routes.links[:, 1] - network.up("leaf"), minlength=32)
        assert abs(counts - 1000).max() < 5 * np.sqrt(1000)
    other = find_routes(wired("h100_64", fabric), 0, 63, np.arange(32_000))
    assert 0.9 < (routes.links[:, 1] != other.links[:, 1]).mean() < 1.0


def test_failed_uplinks_are_avoided_by_both_sides() -> None:
    failed = {f"leaf0-spine{spine}": 0.0 for spine in range(31)}
    network = wired("h100_64", fabric_named("leaf_spine", link_health=failed))
    source, destination = pairs(network)
    routes = find_routes(network, source, destination)
    assert network.alive[routes.links[routes.links >= 0]].all()
    assert names(network, 40, 5)[1] == "leaf1-spine31:up"


def test_failed_cores_are_avoided_with_the_spines_they_cut_off() -> None:
    failed = {f"spine0-core{core}": 0.0 for core in range(32)} | {"spine33-core32": 0.0}
    network = wired("h100_16384", fabric_named("fat_tree", link_health=failed))
    source, destination = pairs(network)
    routes = find_routes(network, source, destination)
    assert network.alive[routes.links[routes.links >= 0]].all()
    # Spine 0 still serves its own pod.
    inside = find_routes(network, 0, 256, np.arange(500))
    assert network.up("leaf") in inside.links
    outside = find_routes(network, 0, 16000, np.arange(500))
    assert network.up("leaf") not in outside.links


def test_a_failed_nic_is_replaced_by_another_of_its_node() -> None:
    network = wired("h100_64", fabric_named("leaf_spine", link_health={"node0-nic2": 0.0}))
    first = names(network, 2, 20)[0]
    assert first.startswith("node0-nic")
    assert first != "node0-nic2:up"


def test_degraded_links_stay_in_use_at_their_rate() -> None:
    whole = wired("h100_64", fabric_named("leaf_spine"))
    worn = wired("h100_64", fabric_named("leaf_spine", link_health={"leaf0-spine3": 0.25}))
    up, down = worn.links_named("leaf0-spine3")
    assert worn.rate_bytes_per_s[[up, down]].tolist() == [12.5e9, 12.5e9]
    source, destination = pairs(whole)
    np.testing.assert_array_equal(
        find_routes(whole, source, destination).links,
        find_routes(worn, source, destination).links,
    )


@pytest.mark.parametrize(
    ("fabric", "pair", "field"),
    [
        ({}, (0, 64), "flow.destination"),
        ({}, (-1, 3), "flow.source"),
        ({}, (3, 3), "flow.destination"),
        ({"tiers": 1}, (0, 63), "topology.tiers"),
        (
            {"link_health": {f"leaf0-spine{spine}": 0.0 for spine in range(32)}},
            (0, 63),
            "topology.link_health",
        ),
        (
            {"link_health": {f"node0-nic{nic}": 0.0 for nic in range(8)}},
            (0, 63),
            "topology.link_health",
        ),
    ],
)
def test_flows_that_cannot_be_routed_are_refused(
    fabric: dict[str, object], pair: tuple[int, int], field: str
) -> None:
    network = wired("h100_64", fabric_named("leaf_spine", **fabric))
    with pytest.raises(InputError) as refusal:
        find_routes(network, pair[0], pair[1])
    assert refusal.value.field == field
