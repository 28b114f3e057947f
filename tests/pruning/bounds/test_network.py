"""Bounds know nothing of congestion, and hold where there is some."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.pruning.bounds.test_recipe_bounds import bounds_of
from tests.pruning.questions import jobs
from tests.simulators.predictor.network.topology.test_network import fabric_named
from trainscout.simulators.predictor.network.choice import (
    COMMUNICATORS,
    CongestedNetwork,
    NetworkChoice,
)
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator

LEAVES = fabric_named("leaf_spine", nics_per_leaf=2)


@given(jobs(), st.sampled_from([1.0, 3.0, 16.0]), st.booleans())
def test_bounds_are_admissible_on_congested_networks(
    job: Job, ratio: float, everything: bool
) -> None:
    # Slow NICs, so that the small models' messages grow with their size.
    job = replace(job, cluster=replace(job.cluster, nic_gbps=10.0))
    choice = NetworkChoice("flow", COMMUNICATORS) if everything else NetworkChoice("flow")
    network = CongestedNetwork(choice, replace(LEAVES, oversubscription=ratio))
    slowed = ReplaySimulator(network=network).without_error_bar(job)
    # Declared switches count whole, whatever their cluster says (``optimizer.bounding``).
    whole = replace(job, cluster=replace(job.cluster, oversubscription=1.0))
    bounds = bounds_of(whole, congested=True)
    assert bounds.step_time_s[0] <= slowed.step_time_s
    assert bounds.memory_bytes[0] <= slowed.memory.peak_reserved_bytes
