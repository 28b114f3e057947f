from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import yaml

import trainscout as ts
import trainscout.conf
from trainscout.conf.build import build_value
from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric
from trainscout.simulators.predictor.network.topology.network import Network
from trainscout.simulators.predictor.network.topology.routing import find_routes
from trainscout.simulators.predictor.network.topology.wiring import build_network
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu

FABRICS = sorted(Path(trainscout.conf.__file__).parent.glob("topology/*.yaml"))
NIC_RATE = 50e9


@functools.cache
def hardware(cluster: str) -> tuple[Cluster, Gpu]:
    question = ts.question(model="gpt175b", cluster=cluster)
    return question.cluster, question.gpu


def fabric_named(name: str, **changes: object) -> SwitchFabric:
    file = Path(trainscout.conf.__file__).parent / "topology" / f"{name}.yaml"
    fabric = build_value(SwitchFabric, "topology", yaml.safe_load(file.read_text("utf-8")))
    return dataclasses.replace(fabric, **changes)  # type: ignore[arg-type]


def wired(cluster: str, fabric: SwitchFabric, **changes: object) -> Network:
    declaration, gpu = hardware(cluster)
    changed = dataclasses.replace(declaration, **changes)  # type: ignore[arg-type]
    return build_network(changed, gpu, fabric)


def capacity(network: Network, kind: str) -> float:
    up = network.up(kind)
    return float(network.rate_bytes_per_s[up : up + network.count[kind]].sum())


@pytest.mark.parametrize("file", FABRICS, ids=lambda file: file.stem)
@pytest.mark.parametrize("cluster", ["h100_64", "h100_16384", "gb200_nvl72", "v100_16"])
def test_every_declaration_wires_clusters_and_routes_them(file: Path, cluster: str) -> None:
    network = wired(cluster, fabric_named(file.stem))
    assert fabric_named(file.stem).source
    random = np.random.default_rng(1)
    source = random.integers(0, network.gpus, 2000)
    destination = (source + random.integers(1, network.gpus, 2000)) % network.gpus
    routes = find_routes(network, source, destination)
    hops = (routes.links >= 0).sum(axis=1)
    assert hops.min() >= 2
    assert routes.links.max() < network.num_links
    # Packed to the left, each link once, all working.
    assert ((routes.links >= 0) == (np.arange(network.max_hops) < hops[:, None])).all()
    for row in routes.links[:200]:
        used = row[row >= 0]
        assert len(set(used.tolist())) == len(used)
    assert network.alive[routes.links[routes.links >= 0]].all()


@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0, 3.7, 7.0])
def test_any_oversubscription_is_exact(ratio: float) -> None:
    network = wired("h100_512", fabric_named("leaf_spine", oversubscription=ratio))
    assert capacity(network, "nic") / capacity(network, "leaf") == pytest.approx(ratio)
    pods = wired("h100_16384", fabric_named("llama3_pods", pod_oversubscription=ratio))
    # The last pod has fewer leaves than a full one, but all its cores.
    full_pods = capacity(pods, "leaf") * pods.pods * pods.leaves_per_pod / pods.leaves
    assert full_pods / capacity(pods, "spine") == pytest.approx(ratio)


def test_oversubscription_is_the_clusters_unless_declared() -> None:
    network = wired("h100_512", fabric_named("leaf_spine"), oversubscription=4.0)
    assert capacity(network, "nic") / capacity(network, "leaf") == pytest.approx(4.0)


def test_fat_tree_has_the_published_number_of_switches() -> None:
    """Al-Fares et al. 2008: k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 cores."""
    k = 8
    fabric = fabric_named("fat_tree", nics_per_leaf=k // 2, leaves_per_pod=k // 2)
    network = wired("h100_64", fabric, num_nodes=k**3 // 4, gpus_per_node=1, nics_per_node=1)
    assert network.pods == k
    assert network.leaves == k * k // 2
    assert network.spines == k // 2
    assert network.spines * network.cores == (k // 2) ** 2
    # Full bisection: as much at every tier.
    assert capacity(network, "leaf") == capacity(network, "spine") == k**3 // 4 * NIC_RATE


@pytest.mark.parametrize(
    ("units", "leaves", "uplinks"), [(2, 16, 512), (4, 32, 1024), (8, 64, 2048)]
)
def test_superpod_has_the_published_leaves_and_cables(
    units: int, leaves: int, uplinks: int
) -> None:
    """DGX SuperPOD B200 reference architecture, table of switch and cable counts."""
    network = wired("h100_64", fabric_named("rail_optimised"), num_nodes=32 * units)
    assert (network.leaves, network.count["leaf"]) == (leaves, uplinks)


@pytest.mark.parametrize(("units", "leaves", "cables"), [(16, 128, 4096), (64, 512, 16384)])
def test_superpod_with_cores_has_the_published_cables(
    units: int, leaves: int, cables: int
) -> None:
    network = wired("h100_64", fabric_named("rail_optimised_cores"), num_nodes=32 * units)
    assert network.leaves == leaves == network.pods * network.spines
    assert network.count["leaf"] == network.count["spine"] == cables


def test_names_and_numbers_of_links_are_each_others_inverse() -> None:
    network = wired("gb200_nvl72", fabric_named("rail_optimised_cores"), num_nodes=72)
    names = [network.link_name(link) for link in range(network.num_links)]
    assert len(set(names)) == network.num_links
    for link, name in enumerate(names):
        cable, direction = name.split(":")
        assert network.links_named(cable)[direction == "down"] == link


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tiers": 4}, "topology.tiers"),
        ({"rails": "all"}, "topology.rails"),
        ({"nics_per_leaf": 0}, "topology.nics_per_leaf"),
        ({"oversubscription": 0.5}, "topology.oversubscription"),
        ({"pod_oversubscription": float("inf")}, "topology.pod_oversubscription"),
        ({"hop_latency_s": -1e-6}, "topology.hop_latency_s"),
        ({"tiers": 3}, "topology.leaves_per_pod"),
        ({"uplink_gbps": 0.0}, "topology.uplink_gbps"),
        ({"link_health": {"node0-nic0": 1.5}}, "topology.link_health.node0-nic0"),
        ({"link_health": {"node0-nic8": 0.5}}, "topology.link_health.node0-nic8"),
        ({"link_health": {"leaf0-spine32": 0.5}}, "topology.link_health.leaf0-spine32"),
        ({"link_health": {"cable": 0.5}}, "topology.link_health.cable"),
        ({"link_health": {"gpu0-nvlink": 0.0}}, "topology.link_health.gpu0-nvlink"),
    ],
)
def test_declarations_that_cannot_be_are_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as refusal:
        wired("h100_64", fabric_named("leaf_spine", **changes))
    assert refusal.value.field == field


def test_rails_of_their_own_need_nvlink() -> None:
    with pytest.raises(InputError) as refusal:
        wired("a40_8", fabric_named("rail_only"))
    assert refusal.value.field == "topology.rails"


def test_a_single_node_needs_no_switches() -> None:
    network = wired("a40_8", fabric_named("leaf_spine"))
    # Bridged pairs talk over NVLink, the others over PCIe.
    routes = find_routes(network, [0, 0], [1, 2])
    names = [[network.link_name(link) for link in row if link >= 0] for row in routes.links]
    assert names == [
        ["gpu0-nvlink:up", "gpu1-nvlink:down"],
        ["gpu0-pcie:up", "gpu2-pcie:down"],
    ]
    assert routes.latency_s.tolist() == [0.0, 0.0]
