"""A fabric that nobody measured leaves more unknown the larger it is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.simulators.jobs import TINY, make_job
from trainscout.simulators.predictor.collectives.transport import left_out_error
from trainscout.simulators.predictor.question.cluster import MeasuredCollective
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.uncertainty.fabric import fabric_error, on_slow_network
from trainscout.simulators.predictor.uncertainty.interval import error_bar

PARTS = {"compute": 0.8, "dp_communication": 0.1, "tp_communication": 0.1}


def job(nodes: int, **recipe: int) -> Job:
    return make_job(TINY, nodes=nodes, batch=8 * nodes, **recipe)


def test_error_grows_with_the_nodes_and_with_what_crosses_them() -> None:
    errors = [fabric_error(job(nodes), 1.0, PARTS) for nodes in (8, 16, 64, 512)]
    assert errors[0] == 0
    assert sorted(set(errors)) == errors
    assert errors[2] == pytest.approx(0.1 * left_out_error() * 3**0.5)
    assert fabric_error(job(64), 1.0, {"compute": 1.0}) == 0


def test_what_nobody_validated_is_less_sure_over_any_nodes() -> None:
    for nodes in (2, 64):
        known = fabric_error(job(nodes), 1.0, PARTS)
        for fabric, doubt in (("infiniband", 0.5), ("omni_path", 0.0)):
            other = job(nodes)
            cluster = replace(other.cluster, oversubscription=None, fabric=fabric)
            error = fabric_error(replace(other, cluster=cluster), 1.0, PARTS)
            assert error == pytest.approx(math.hypot(known, 0.1 * doubt))


def test_a_node_without_nvlink_has_no_network_to_validate() -> None:
    node = job(1)
    alone = replace(node.cluster, nvlink_domain=1, nvswitch=False, oversubscription=None)
    assert fabric_error(replace(node, cluster=alone), 1.0, PARTS) == 0


def test_what_a_slow_network_no_longer_hides_makes_the_step_longer() -> None:
    known = job(2)
    unsure = replace(known, cluster=replace(known.cluster, oversubscription=None))
    slow = on_slow_network(unsure)
    assert slow is not None
    assert slow.cluster.nic_gbps == pytest.approx(unsure.cluster.nic_gbps / 1.7)
    hidden = {"compute": 1.0}
    assert fabric_error(unsure, 1.0, hidden, 1.25) == pytest.approx(0.25)
    before, after = (error_bar(unsure, 1.0, hidden, slow_s) for slow_s in (1.0, 1.25))
    assert before[0] == after[0]
    assert before[1] < after[1]
    assert [on_slow_network(each) for each in (known, job(1))] == [None, None]


def test_measured_collectives_take_it_away() -> None:
    large = job(64)
    row = MeasuredCollective("all_gather", 64, 2**30, 40.0, 40.0, 40.0)
    cluster = replace(large.cluster, measured_collectives="own.csv", measured=(row,))
    known = replace(large, cluster=cluster)
    wide, narrow = error_bar(large, 1.0, PARTS), error_bar(known, 1.0, PARTS)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
