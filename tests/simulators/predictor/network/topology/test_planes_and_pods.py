"""Planes, pods that are joined directly, adaptive and Valiant routing: closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.simulators.predictor.network.topology.test_network import (
    capacity,
    fabric_named,
    hardware,
    wired,
)
from tests.simulators.predictor.network.topology.test_routing import names, pairs
from trainscout.simulators.predictor.network.choice import NetworkChoice
from trainscout.simulators.predictor.network.collectives.congestion import (
    Pattern,
    congestion_model,
)
from trainscout.simulators.predictor.network.topology.routing import find_routes
from trainscout.simulators.predictor.question.errors import InputError

# Pods of 4 leaves and 4 spines, 16 nodes of one NIC in each: 8 pods.
SMALL = {"nics_per_leaf": 4, "leaves_per_pod": 4}
HOSTS = {"num_nodes": 128, "gpus_per_node": 1, "nics_per_node": 1}


def dragonfly(**changes: object):  # type: ignore[no-untyped-def]
    return wired("h100_64", fabric_named("dragonfly_plus", **SMALL, **changes), **HOSTS)


def test_a_cable_joins_the_same_two_spines_from_either_end() -> None:
    network = dragonfly()
    # 16 spine ports a pod over 7 other pods: two cables to each, two left.
    assert (network.pods, network.spines, network.cores, network.cables) == (8, 4, 4, 2)
    ports: set[tuple[int, int, int]] = set()
    for one, other in ((a, b) for a in range(8) for b in range(8) if a != b):
        for nth in range(2):
            there, back = (int(network.cable(a, b, nth)) for a, b in ((one, other), (other, one)))
            assert {network.link_name(link).split(":")[0] for link in (there, back)} == {
                f"pod{min(one, other)}-pod{max(one, other)}-cable{nth}"
            }
            assert there != back
            step = (other - one - 1) % 8
            ports.add((one, step + nth * 7, int(network.cable_spine(one, other, nth))))
    # Each port once, on the spine that has it.
    assert len(ports) == 8 * 14
    assert all(spine == port // 4 for _, port, spine in ports)


@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0])
def test_oversubscription_between_pods_is_exact_over_cables(ratio: float) -> None:
    network = dragonfly(pod_oversubscription=ratio)
    # Every cable serves two pods, once in each direction.
    assert capacity(network, "leaf") / (2 * capacity(network, "pod")) == pytest.approx(ratio)


def test_routes_between_pods_climb_to_the_spine_of_their_cable() -> None:
    network = dragonfly()
    for label in range(20):
        route = names(network, 3, 100, label)
        ends = [name.split("-")[0] for name in route]
        assert ends == ["node3", "leaf0", "pod0", "leaf25", "node100"]
        nth = int(route[2].split(":")[0][-1])
        (up, down) = (int(name.split("spine")[1].split(":")[0]) for name in (route[1], route[3]))
        assert (up, down) == (network.cable_spine(0, 6, nth), 24 + network.cable_spine(6, 0, nth))
    inside = names(network, 0, 5)
    assert [name.split("-")[0] for name in inside] == ["node0", "leaf0", "leaf1", "node5"]


def test_failed_cables_and_what_leads_to_them_are_avoided() -> None:
    network = dragonfly(link_health={"pod0-pod6-cable0": 0.0})
    assert {names(network, 3, 100, label)[2] for label in range(30)} == {"pod0-pod6-cable1:up"}
    spine = network.cable_spine(0, 6, 1)
    with pytest.raises(InputError, match="cuts two pods apart"):
        names(dragonfly(link_health={"pod0-pod6-cable0": 0.0, f"leaf0-spine{spine}": 0.0}), 3, 100)


def factor(fabric, engine: str = "flow", queue_pairs: int = 1, **hosts: int):  # type: ignore[no-untyped-def]
    """How much longer GPUs take who all send to the one ``apart`` GPUs on."""
    cluster, gpu = hardware("h100_64")
    apart = hosts.pop("apart")
    changed = replace(cluster, **{**HOSTS, **hosts})
    settings = NetworkChoice(engine, queue_pairs=queue_pairs)
    model = congestion_model(changed, gpu, fabric, settings)
    count = changed.num_gpus // apart
    return model.congested(Pattern("round", ((count, apart),)), 1e12).factor


def test_a_shift_to_the_next_pod_needs_the_ways_by_third_pods() -> None:
    """Every host of a pod sends to the next: directly 2 cables of 16/14 the NICs' rate carry 16
    NICs (7 times as long, with collisions more); by third pods all cables are in use."""
    direct = factor(fabric_named("dragonfly_plus", **SMALL, routing="adaptive"), apart=16)
    assert direct == pytest.approx(7.0, rel=1e-6)
    hashed = factor(fabric_named("dragonfly_plus", **SMALL), apart=16)
    by_thirds = factor(
        fabric_named("dragonfly_plus", **SMALL, routing="valiant"), apart=16, queue_pairs=32
    )
    # Two cables a way where one would do: half of the rate at best.
    assert hashed >= direct > by_thirds > 1.5


def test_adaptive_routing_leaves_only_oversubscription() -> None:
    hosts = {"num_nodes": 64, "apart": 8}
    for ratio in (1.0, 2.0, 3.7):
        given = {"nics_per_leaf": 8, "oversubscription": ratio}
        hashed = factor(fabric_named("leaf_spine", **given), **hosts)
        adaptive = factor(fabric_named("leaf_spine", **given, routing="adaptive"), **hosts)
        assert adaptive == pytest.approx(ratio, rel=1e-6)
        assert hashed > adaptive


def test_queue_pairs_bring_hashing_nearer_to_adaptive_routing() -> None:
    fabric = fabric_named("leaf_spine", nics_per_leaf=8)
    hosts = {"num_nodes": 64, "apart": 8}
    one, four, many = (factor(fabric, queue_pairs=count, **hosts) for count in (1, 4, 64))
    assert one > four > many > 1


def test_adaptive_routing_loses_what_failed() -> None:
    fabric = fabric_named(
        "leaf_spine", nics_per_leaf=8, routing="adaptive", link_health={"leaf0-spine3": 0.0}
    )
    assert factor(fabric, num_nodes=64, apart=8) == pytest.approx(8 / 7, rel=1e-6)


def test_every_plane_has_an_equal_part_and_switches_of_its_own() -> None:
    network = wired("h100_512", fabric_named("two_planes"))
    whole = wired("h100_512", fabric_named("rail_optimised"))
    assert capacity(network, "nic") == capacity(whole, "nic")
    assert network.count["leaf"] == 2 * whole.count["leaf"]
    source, destination = pairs(network)
    for label in (0, 1):
        routes = find_routes(network, source, destination, label).links
        up = network.up("nic")
        ports = routes[(routes >= up) & (routes < network.first["leaf"])]
        assert set((ports % 2).tolist()) == {label}
        leaves = routes[(routes >= network.up("leaf")) & (routes < network.down("leaf"))]
        plane = (leaves - network.up("leaf")) // network.spines // network.leaves
        assert set(plane.tolist()) == {label}


def test_a_failed_port_leaves_its_nic_the_other_plane() -> None:
    network = wired("h100_64", fabric_named("two_planes", link_health={"node1-nic0-port0": 0.0}))
    assert names(network, 0, 8, 0) == ["node0-nic0-port1:up", "node1-nic0-port1:down"]
    assert names(network, 0, 16, 0)[0] == "node0-nic0-port0:up"


def test_transfers_are_spread_over_planes() -> None:
    hosts = {"num_nodes": 64, "apart": 8}
    fabric = fabric_named("leaf_spine", nics_per_leaf=8, routing="adaptive", planes=2)
    assert factor(fabric, **hosts) == pytest.approx(1.0)
    worn = fabric_named(
        "leaf_spine", nics_per_leaf=8, routing="adaptive", planes=2,
        link_health={"node0-nic0-port0": 0.5},
    )  # fmt: skip
    assert factor(worn, **hosts) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize(
    ("fabric", "changes"),
    [
        ("dragonfly_plus", {"leaves_per_pod": 4, "nics_per_leaf": 4}),
        ("dragonfly_plus", {"leaves_per_pod": 4, "nics_per_leaf": 4, "routing": "valiant"}),
        ("dragonfly_plus", {"leaves_per_pod": 4, "nics_per_leaf": 4, "planes": 2}),
        ("fat_tree", {"leaves_per_pod": 4, "nics_per_leaf": 4, "planes": 2}),
        ("rail_only", {"planes": 4}),
    ],
)
def test_names_are_unique_and_found_again(fabric: str, changes: dict[str, object]) -> None:
    network = wired("h100_64", fabric_named(fabric, **changes), num_nodes=16)
    found = [network.link_name(link) for link in range(network.num_links)]
    assert len(set(found)) == network.num_links
    for link, name in enumerate(found):
        cable, direction = name.split(":")
        assert network.links_named(cable)[direction == "down"] == link
    source, destination = pairs(network, 500)
    routes = find_routes(network, source, destination, np.arange(500))
    assert routes.links.max() < network.num_links
    for row in routes.links:
        assert len(set(row[row >= 0].tolist())) == (row >= 0).sum() >= 2


@pytest.mark.parametrize(
    ("changes", "hosts", "field"),
    [
        ({"planes": 0}, {}, "topology.planes"),
        ({"planes": 9}, {}, "topology.planes"),
        ({"routing": "magic"}, {}, "topology.routing"),
        ({"routing": "valiant"}, {}, "topology.routing"),
        ({"pods_joined": "directly"}, {}, "topology.pods_joined"),
        ({"switch_ports": 48}, {}, "topology.nics_per_leaf"),
        ({"switch_ports": 64}, {"num_nodes": 2048}, "topology.leaves_per_pod"),
        ({}, {"num_nodes": 10_000_000}, "cluster.num_nodes"),
        (
            {"tiers": 3, "leaves_per_pod": 1, "nics_per_leaf": 1, "pods_joined": "directly"},
            {},
            "topology.leaves_per_pod",
        ),
        (
            {"tiers": 3, "leaves_per_pod": 8, "nics_per_leaf": 8, "switch_ports": 16},
            {"num_nodes": 256},
            "topology.tiers",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(
    changes: dict[str, object], hosts: dict[str, object], field: str
) -> None:
    with pytest.raises(InputError) as refusal:
        wired("h100_64", fabric_named("leaf_spine", **changes), **hosts)
    assert refusal.value.field == field
