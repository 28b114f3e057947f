"""What fabrics are built of and cost, against published counts and by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planning.fakes import STUDY, cell, declarations, point
from tests.simulators.predictor.network.topology.test_network import fabric_named, hardware
from trainscout.planning.cells import study_cells
from trainscout.planning.fabric_cost import fabric_costs
from trainscout.planning.fabric_prices import FabricPrices
from trainscout.planning.points import Point
from trainscout.simulators.predictor.network.topology.parts import Parts, parts
from trainscout.simulators.predictor.question.errors import InputError

PRICES = FabricPrices(4.0, 1.0, 5.0)


def built(name: str, nodes: int, **changes: object) -> Parts:
    cluster, gpu = hardware("h100_512")
    return parts(replace(cluster, num_nodes=nodes), gpu, fabric_named(name, **changes))


def test_a_superpod_of_four_units_has_the_published_parts() -> None:
    """DGX SuperPOD B200 reference architecture: 128 nodes, 32 leaves, 16 spines of 64 ports,
    1,024 cables to nodes and 1,024 between switches."""
    found = built("rail_optimised", 128)
    assert (found.nics, found.leaves, found.spines, found.cables) == (1024, 32, 16, 2048)
    assert found.ports == 1024 + 2 * 1024
    assert found.port_gbps == pytest.approx(3 * 1024 * 400)


def test_a_third_tier_costs_its_cables_twice() -> None:
    two, three = built("leaf_spine", 256), built("fat_tree", 256)
    assert three.ports - two.ports == 2 * 2048
    assert two.cores == 0 < three.cores
    assert built("dragonfly_plus", 256).cores == 0


def test_no_switch_is_bought_for_what_is_not_there() -> None:
    """Rails of 64 nodes need a spine each; above a pod that is alone there is nothing."""
    assert built("rail_only", 64).spines == 8
    alone, pair = built("fat_tree", 128), built("fat_tree", 256)
    assert alone == built("leaf_spine", 128)
    # Full bisection of 2,048 NICs by switches of 64 ports, 32 down: 64, 64 and 32 of them.
    assert (pair.leaves, pair.spines, pair.cores) == (64, 64, 32)


def test_rails_of_their_own_planes_and_wear_leave_the_sum_of_rates() -> None:
    whole = built("rail_optimised", 64)
    assert built("rail_optimised", 64, link_health={"leaf0-spine0": 0.0}) == whole
    assert built("rail_optimised", 64, routing="adaptive") == whole
    planes = built("two_planes", 64)
    assert (planes.cables, planes.nics) == (2 * whole.cables, whole.nics)
    assert planes.cable_gbps == pytest.approx(whole.cable_gbps)


def test_prices_are_by_rate() -> None:
    used = built("leaf_spine", 8, oversubscription=2.0)
    nics = 64 * 400
    # 64 NICs' cables; half as much again to spines, whose ports count at both ends.
    assert PRICES.of(used) == pytest.approx(nics * (4 + (1 + 2 / 2) * 1 + (1 + 1 / 2) * 5))
    with pytest.raises(InputError) as refused:
        FabricPrices(nic_usd_per_gbps=-1).check("sweep.fabric_prices")
    assert refused.value.field == "sweep.fabric_prices.nic_usd_per_gbps"


def on(ratio: float, step_time_s: float, pp: int = 1) -> Point:
    asked = replace(cell(64), topology=fabric_named("leaf_spine", oversubscription=ratio))
    return replace(point(64, step_time_s, pp=pp), cell=asked)


def test_a_cheaper_fabric_saves_dollars_for_each_percent() -> None:
    full, half, quarter = on(1, 1.0), on(2, 1.02), on(4, 1.10, pp=2)
    costs = fabric_costs([quarter, full, half], PRICES)
    assert [cost.point for cost in costs] == [full, half, quarter]
    per_uplink = 64 * 400 * (2 * 1 + 5)
    assert [cost.saved_usd for cost in costs] == pytest.approx(
        [0, per_uplink / 2, per_uplink * 3 / 4]
    )
    assert costs[0].usd_per_percent is None
    assert costs[1].usd_per_percent == pytest.approx(per_uplink / 2 / 2)
    assert costs[2].usd_per_percent == pytest.approx(per_uplink * 3 / 4 / 10)
    assert [cost.recipe_changed for cost in costs] == [False, False, True]


def test_one_fabric_is_compared_with_nothing() -> None:
    assert fabric_costs([on(1, 1.0)], PRICES) == []
    assert fabric_costs([point(64), point(64)], PRICES) == []


def test_a_study_asks_every_topology() -> None:
    names = ("leaf_spine", "rail_only")
    declared = replace(declarations(), topologies=tuple(fabric_named(name) for name in names))
    cells = study_cells(STUDY, declared)
    assert len(cells) == 2 * 3
    assert len({each.key for each in cells}) == len(cells)
    assert {each.fabric.rpartition(", ")[2] for each in cells} == set(names)
