"""Switches fail and wear with all their cables."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.simulators.predictor.network.topology.test_network import fabric_named, wired
from tests.simulators.predictor.network.topology.test_planes_and_pods import dragonfly
from tests.simulators.predictor.network.topology.test_routing import pairs
from trainscout.simulators.predictor.network.topology.network import Network
from trainscout.simulators.predictor.network.topology.routing import find_routes
from trainscout.simulators.predictor.network.topology.wiring import links_named
from trainscout.simulators.predictor.question.errors import InputError

FABRICS = {
    "leaf_spine": ("leaf_spine", {}),
    "rails": ("rail_only", {"planes": 2}),
    "pods": ("fat_tree", {"nics_per_leaf": 4, "leaves_per_pod": 4, "planes": 2}),
}


def built(name: str, **changes: object) -> Network:
    fabric, more = FABRICS[name]
    return wired("h100_64", fabric_named(fabric, **more, **changes), num_nodes=48)


@pytest.mark.parametrize("name", FABRICS)
def test_a_switch_has_the_cables_that_are_named_after_it(name: str) -> None:
    network = built(name)
    cables = [network.link_name(link).split(":")[0] for link in range(network.num_links)]
    ends = {end for cable in cables for end in cable.split("-")}
    switches = [end for end in ends if re.match("leaf|spine", end)]
    for switch in sorted(switches)[::5]:
        named = {link for link, cable in enumerate(cables) if switch in cable.split("-")}
        found = links_named(network, switch).tolist()
        assert len(set(found)) == len(found)
        plugged = set(found) - named
        assert named <= set(found)
        # Cables of NICs do not name their leaf: as many up as down, to the right one.
        assert all(cables[link].startswith("node") for link in plugged)
        assert bool(plugged) is switch.startswith("leaf")
    source, destination = pairs(network, 300)
    for row in find_routes(network, source, destination, np.arange(300)).links.tolist():
        over = [link for link in row if link >= 0 and cables[link].startswith("leaf")]
        if over:
            nic = row[row.index(over[0]) - 1]
            assert nic in links_named(network, cables[over[0]].split("-")[0])


def test_cores_and_spines_joined_by_cables() -> None:
    network = built("pods")
    for core in (0, network.spines * network.cores):
        links = links_named(network, f"core{core}")
        found = {network.link_name(link).split(":")[0] for link in links}
        assert len(found) == network.pods
        assert all(each.endswith(f"-core{core}") for each in found)
    network = dragonfly()
    ports = np.concatenate([links_named(network, f"spine{spine}") for spine in range(8 * 4)])
    kinds = [network.link_name(link).split("-")[0][:3] for link in ports]
    # Each cable to a leaf once in both directions, each between pods at both its spines.
    assert kinds.count("lea") == 2 * network.count["leaf"]
    assert kinds.count("pod") == 4 * network.count["pod"]


@pytest.mark.parametrize("name", FABRICS)
def test_what_a_failed_spine_carried_goes_over_others(name: str) -> None:
    network = built(name, link_health={"spine1": 0.0, "leaf2": 0.5})
    source, destination = pairs(network, 1000)
    routes = find_routes(network, source, destination, np.arange(1000))
    dead = links_named(network, "spine1")
    assert not network.alive[dead].any()
    assert not np.isin(routes.links, dead).any()
    worn = links_named(network, "leaf2")
    whole = built(name).rate_bytes_per_s
    both = np.isin(worn, dead)
    assert (network.rate_bytes_per_s[worn] == np.where(both, 0, whole[worn] / 2)).all()


def test_switches_that_are_not_there() -> None:
    for switch, allowed in (("leaf99", "leaf0 to leaf11"), ("core0", "no such switch here")):
        with pytest.raises(InputError) as refusal:
            built("leaf_spine", link_health={switch: 0.0})
        assert refusal.value.field == f"topology.link_health.{switch}"
        assert allowed in str(refusal.value)
