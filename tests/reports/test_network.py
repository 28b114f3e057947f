"""What is said and drawn of a network, from figures made up here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.samples import prediction
from tests.simulators.predictor.network.topology.test_network import fabric_named, wired
from trainscout.reports.experts import expert_record, expert_report
from trainscout.reports.network import hot_links, network_record, network_report
from trainscout.simulators.predictor.io.terminal import as_text
from trainscout.simulators.predictor.replay.expert_load import ExpertCost, ExpertLoad
from trainscout.simulators.predictor.replay.network_use import CommunicatorUse, NetworkUse
from trainscout.simulators.predictor.workload.ir import Communicator

FABRIC = fabric_named("leaf_spine", nics_per_leaf=16, link_health={"leaf1-spine2": 0.0})
NETWORK = wired("h100_64", FABRIC)


def use(**changes: object) -> NetworkUse:
    busy = np.zeros(NETWORK.num_links)
    busy[NETWORK.up("leaf") + 3] = 1.0
    busy[NETWORK.down("leaf") + 5] = 0.5
    busy[NETWORK.up("nic") : NETWORK.down("nic")] = 0.25
    busy[NETWORK.up("nvlink")] = 0.9
    group = Communicator("dp", 8, 1, 8, 8)
    one = CommunicatorUse("dp", "all_gather", "ring", 10**9, group, 8, 1.0, 1.75, 2.0, busy)
    inside = replace(one, communicator="ep", busy=None, factor=1.0, seconds=1.0)
    return NetworkUse(NETWORK, (replace(one, **changes), inside))  # type: ignore[arg-type]


def test_the_report_has_factors_utilisation_and_hot_links():
    text = as_text(network_report(use()))
    rows = [line.split() for line in text.splitlines()]
    assert ["dp", "all_gather", "ring", "1,000.0", "8", "x", "8"] in [row[:7] for row in rows]
    assert "inside nodes" in text
    assert any(row[:3] == ["dp", "leaf0-spine3:up", "400"] for row in rows)
    # 1 of 64 x 2 links is busy, and the busiest is always.
    assert f"{(1 + 0.5) / 128 * 100:.1f} % / 100.0 %" in text


def test_links_inside_nodes_are_hot_only_where_nothing_leaves_them():
    (dp, _) = use().communicators
    assert [NETWORK.link_name(link) for link, _ in hot_links(NETWORK, dp)][:2] == [
        "leaf0-spine3:up",
        "leaf0-spine5:down",
    ]
    busy = np.zeros(NETWORK.num_links)
    busy[NETWORK.up("nvlink") + 7] = 0.9
    (dp, _) = use(busy=busy).communicators
    assert hot_links(NETWORK, dp) == [(NETWORK.up("nvlink") + 7, 0.9)]


def test_the_record_says_the_same():
    dp, ep = network_record(use())
    assert (dp["communicator"], dp["congestion_factor"], dp["ranks"]) == ("dp", 2.0, 8)
    assert dp["hot_links"][0] == {"link": "leaf0-spine3:up", "busy": 1.0}
    assert ep["hot_links"] == []


def test_uneven_experts_stand_beside_even_ones():
    even = replace(prediction(), step_time_s=2.0, breakdown_s={"compute": 2.0})
    uneven = replace(prediction(), step_time_s=3.0, breakdown_s={"ep_communication": 0.25})
    load = ExpertLoad(ExpertCost(even, 0.5), ExpertCost(uneven, 0.75))
    rows = [line.split("  ") for line in as_text(expert_report(load)).splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert ["step time", "2.000 s", "3.000 s", "1.50"] in cells
    assert ["exposed EP communication", "0 ms", "250 ms", "-"] in cells
    assert ["expert GEMMs", "500 ms", "750 ms", "1.50"] in cells
    assert expert_record(load)["as_declared"]["ep_communication_s"] == 0.25
