"""What a prediction says of a network between nodes that nobody validated or measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulators.jobs import TINY, make_job
from trainscout.simulators.predictor.question.cluster import MeasuredCollective
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.network_doubt import UNVALIDATED, network_doubt
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.fabric import counted_share

PARTS = {"compute": 0.8, "dp_communication": 0.1, "tp_communication": 0.1}


def job(nodes: int = 2, **cluster: Any) -> Job:
    plain = make_job(TINY, nodes=nodes, batch=8 * nodes)
    return replace(plain, cluster=replace(plain.cluster, **cluster))


def doubts(of: Job, *, switches: bool = False, calibrated: bool = False) -> tuple[str, ...]:
    prediction = ReplaySimulator().without_error_bar(of)
    seen = replace(prediction, step_time_s=1.0, breakdown_s=PARTS)
    return network_doubt(of, seen, switches=switches, calibrated=calibrated)


ROW = MeasuredCollective("all_gather", 1, 2**30, 40.0, 40.0, 40.0)
ONE_NODE = {"measured_collectives": "own.csv", "measured": (ROW,)}
TWO_NODES = {**ONE_NODE, "measured": (ROW, replace(ROW, nodes=2))}
PCIE = {"num_nodes": 1, "gpus_per_node": 16, "nvlink_domain": 1, "nvswitch": False}


@pytest.mark.parametrize(
    ("cluster", "share"),
    [
        ({}, 1.0),
        ({"oversubscription": 2.0}, 1.0),
        ({"oversubscription": None}, 0.5),
        ({"oversubscription": None, "fabric": "omni_path"}, 1.0),
        ({"oversubscription": None, "nic_gbps": 1.0}, 1.0),
        ({"oversubscription": None, "nic_gbps": 25.0}, 1.0),
        ({"oversubscription": None, "nvlink_domain": 16}, 1.0),
        ({"oversubscription": None, **PCIE}, 1.0),
        ({"oversubscription": None, **ONE_NODE}, 0.5),
        ({"oversubscription": None, **TWO_NODES}, 1.0),
    ],
)
def test_half_of_a_network_is_counted_where_nobody_validated_it_and_said_once(
    cluster: dict[str, Any], share: float
) -> None:
    of = job(**cluster)
    assert counted_share(of.cluster) == share
    stated = [each for each in ReplaySimulator().simulate(of).assumptions if UNVALIDATED in each]
    assert len(stated) == (share < 1)
    assert all("50% of what its NICs carry is counted" in each for each in stated)


def test_switches_count_whole_and_that_is_said() -> None:
    (words,) = doubts(job(oversubscription=None), switches=True)
    assert "whole with network=, 50% without" in words
    assert "measured" not in words, "measured collectives are refused beside switches"


def test_a_calibrated_cluster_is_still_told_what_is_counted() -> None:
    (words,) = doubts(job(oversubscription=None), calibrated=True)
    assert words.startswith(UNVALIDATED)
    assert "measured" not in words
    assert doubts(job(64), calibrated=True) == ()


def test_who_could_narrow_the_error_bar_is_told_how() -> None:
    (words,) = doubts(job(64))
    assert "64 nodes, where 10% of the step is: 4% of it" in words
    assert "cluster.measured_collectives" in words
    for stage, kinds in ((0, "all_reduce"), (1, "all_gather and reduce_scatter")):
        other = job(64)
        (told,) = doubts(replace(other, recipe=replace(other.recipe, zero_stage=stage)))
        assert f"; {kinds} of 8 KiB" in told
    assert doubts(job(64, **TWO_NODES)) == ()
    assert doubts(job(64, **ONE_NODE)) == (words,)
    assert doubts(job(2)) == ()
    (both,) = doubts(job(2, oversubscription=None))
    assert both.startswith(UNVALIDATED)
    assert "no collectives were measured between 2 nodes" in both
