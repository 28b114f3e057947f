"""Other jobs on the same switches: where they stand, and what they cost, in closed form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.simulators.predictor.network.topology.test_network import fabric_named, hardware
from trainscout.simulators.predictor.network.choice import NetworkChoice
from trainscout.simulators.predictor.network.collectives.congestion import (
    Pattern,
    congestion_model,
)
from trainscout.simulators.predictor.network.neighbours import Neighbour, neighbourhood
from trainscout.simulators.predictor.question.errors import InputError

SINGLE = {"gpus_per_node": 1, "nics_per_node": 1}


def factor(*neighbours: Neighbour, engine: str = "flow", size: float = 1e12) -> float:
    """How much longer eight hosts take, who send to the one four on; two leaves of eight hosts
    with four uplinks, spread over as well as can be."""
    cluster, gpu = hardware("h100_64")
    fabric = fabric_named("leaf_spine", nics_per_leaf=8, oversubscription=2.0, routing="adaptive")
    changed = replace(cluster, num_nodes=8, **SINGLE)
    model = congestion_model(changed, gpu, fabric, NetworkChoice(engine, neighbours=neighbours))
    return model.congested(Pattern("round", ((2, 4),)), size).factor


def test_an_all_to_all_beside_ours_leaves_what_its_nics_leave() -> None:
    """A leaf has four of ours and four of theirs. Theirs send a seventh of a NIC to each of four
    in the other leaf: 16/7 of the 4 uplinks, and ours share the rest."""
    assert factor(Neighbour(8, "all_to_all")) == pytest.approx(7 / 3, rel=1e-6)


def test_a_ring_beside_ours_takes_one_uplink() -> None:
    # Five flows on four uplinks.
    assert factor(Neighbour(8)) == pytest.approx(5 / 4, rel=1e-6)


def test_packets_say_the_same() -> None:
    assert factor(Neighbour(8), engine="packet", size=16e6) == pytest.approx(5 / 4, rel=0.02)


def test_half_busy_costs_half() -> None:
    assert factor(Neighbour(8, busy=0.5)) == pytest.approx((1 + 5 / 4) / 2, rel=1e-6)


def test_behind_us_nobody_is_in_the_way() -> None:
    # Alone, as behind, we stand under one leaf.
    assert factor(Neighbour(8, placed="after")) == factor() == 1.0


def test_two_neighbours_are_busy_independently() -> None:
    one, other = Neighbour(4, "all_to_all", busy=0.5), Neighbour(4, "all_to_all")
    both = factor(one, other)
    assert factor(replace(one, busy=1.0), other) >= both >= factor(other) * (1 - 1e-9)


def test_everybody_stands_once_and_domains_stay_whole() -> None:
    cluster, _ = hardware("gb200_576")
    where = neighbourhood(cluster, (Neighbour(36), Neighbour(72, placed="after")))
    everybody = np.concatenate([where.ours, *where.others])
    assert sorted(everybody.tolist()) == list(range(where.cluster.num_gpus))
    assert where.cluster.num_nodes == 144 + 36 + 72
    for places in (where.ours, *where.others):
        _, sizes = np.unique(places // 72, return_counts=True)
        assert (sizes == 72).all()
    assert where.others[1].min() == (144 + 36) * 4
    assert (np.diff(where.ours // 72)).max() == 2


@pytest.mark.parametrize(
    ("neighbours", "field"),
    [
        ((Neighbour(0),), "network.neighbours[0].nodes"),
        ((Neighbour(8), Neighbour(8, "gather")), "network.neighbours[1].kind"),
        ((Neighbour(8, busy=0.0),), "network.neighbours[0].busy"),
        ((Neighbour(8, placed="here"),), "network.neighbours[0].placed"),
        ((Neighbour(8),) * 5, "network.neighbours"),
    ],
)
def test_what_is_no_neighbour_is_refused(neighbours: tuple[Neighbour, ...], field: str) -> None:
    with pytest.raises(InputError) as refused:
        NetworkChoice("flow", neighbours=neighbours).check()
    assert refused.value.field == field
    with pytest.raises(InputError, match="shares an NVLink domain"):
        neighbourhood(hardware("gb200_576")[0], (Neighbour(7),))


def test_more_hosts_than_are_wired_are_refused_before_anybody_is_placed() -> None:
    cluster, _ = hardware("h100_64")
    with pytest.raises(InputError) as refused:
        neighbourhood(replace(cluster, num_nodes=10**7), [])
    assert refused.value.field == "cluster.num_nodes"
    assert "at most 32768" in str(refused.value)
