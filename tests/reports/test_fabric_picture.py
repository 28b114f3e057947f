"""The picture of a fabric has every cable once, with what it carries."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from tests.samples import job_of
from tests.simulators.predictor.network.topology.test_network import fabric_named, wired
from trainscout.reports.fabric_picture import SVG, colour, fabric_picture
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.replay.network_use import CommunicatorUse, NetworkUse
from trainscout.simulators.predictor.workload.ir import Communicator

SMALL = {"nics_per_leaf": 4, "leaves_per_pod": 2}


def drawn(fabric: str, nodes: int, **changes: object) -> tuple[ElementTree.Element, NetworkUse]:
    network = wired(
        "h100_64", fabric_named(fabric, **changes), num_nodes=nodes, gpus_per_node=1,
        nics_per_node=1,
    )  # fmt: skip
    busy = np.linspace(0, 1, network.num_links)
    group = Communicator("dp", nodes, 1, nodes, 1)
    one = CommunicatorUse("dp", "all_reduce", "ring", 1, group, 1, 1.0, 1.0, 1.0, busy)
    use = NetworkUse(network, (one,))
    return ElementTree.fromstring(fabric_picture(use, job_of(Recipe()), fabric)), use


def titles(root: ElementTree.Element, tag: str) -> list[str]:
    return [each.findtext(f"{{{SVG}}}title") or "" for each in root.iter(f"{{{SVG}}}{tag}")]


@pytest.mark.parametrize(
    ("fabric", "changes"),
    [
        ("leaf_spine", {"nics_per_leaf": 4}),
        ("fat_tree", SMALL),
        ("dragonfly_plus", SMALL),
        ("leaf_spine", {"nics_per_leaf": 4, "planes": 2}),
        ("fat_tree", {**SMALL, "routing": "adaptive"}),
    ],
)
def test_every_cable_is_drawn_once_with_its_load(fabric: str, changes: dict[str, object]) -> None:
    root, use = drawn(fabric, 32, **changes)
    network = use.network
    cables = titles(root, "path")
    kinds = ("nic", "leaf", "spine", "pod")
    assert len(cables) == len(set(cables)) == sum(network.count[kind] for kind in kinds)
    for title in cables:
        links = network.links_named(title.split(" ")[0]) if not network.pooled else ()
        if links:
            busiest = max(use.communicators[0].busy[list(links)])  # type: ignore[index]
            assert title.endswith(f"dp {busiest:.0%}")
    boxes = [title for title in titles(root, "rect") if title]
    assert len(boxes) == len(set(boxes)) >= 32 + network.leaves


def test_failed_cables_are_black_and_said() -> None:
    root, _ = drawn("leaf_spine", 32, nics_per_leaf=4, link_health={"leaf0-spine1": 0.0})
    (failed,) = [
        each for each in root.iter(f"{{{SVG}}}path")
        if (each.findtext(f"{{{SVG}}}title") or "").endswith("failed")
    ]  # fmt: skip
    assert failed.get("stroke") == colour(0.0, alive=False)
    assert (failed.findtext(f"{{{SVG}}}title") or "").startswith("leaf0-spine1 ")


def test_of_a_large_fabric_the_busiest_are_drawn() -> None:
    root, _ = drawn("leaf_spine", 1024, nics_per_leaf=4)
    nodes = {title for title in titles(root, "rect") if title.startswith("node")}
    assert len(nodes) == 64
    # Load grows with the number of a link.
    assert "node1023" in nodes
