"""What a recipe says of gradients, optimizer states and sharding groups, in bytes and messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulators.jobs import MOE, TINY, make_job
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import OPTIMIZERS
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.communicators import communicators
from trainscout.simulators.predictor.workload.ir import Collective
from trainscout.simulators.predictor.workload.parameters import LocalParameters
from trainscout.simulators.predictor.workload.weights.data_parallel import (
    Transfer,
    gather_parameters,
    gradient_bytes_per_parameter,
    reduce_gradients,
)
from trainscout.simulators.predictor.workload.weights.step_end import (
    master_bytes,
    owned_parameters,
)

SHARDED = {"nodes": 4, "batch": 64, "zero_stage": 3}


def messages(job: Job) -> list[tuple[str, str, int]]:
    """Kind, communicator and bytes of what 8,000 dense and 800 expert parameters exchange."""
    parameters, transfer = LocalParameters(8000, 800), Transfer.of(job)
    blocks = (reduce_gradients(parameters, transfer), gather_parameters(parameters, transfer))
    ops = [op for block in blocks for op in block.ops if isinstance(op, Collective)]
    return [(op.kind, op.communicator, op.bytes) for op in ops]


def test_shards_within_a_node_are_summed_across_nodes() -> None:
    job = make_job(MOE, ep=2, dp_shard=8, **SHARDED)
    assert messages(job) == [
        ("reduce_scatter", "dp_shard", 32000),
        ("reduce_scatter", "expert_dp_shard", 3200),
        # A GPU holds an eighth, and with two ranks an expert a quarter.
        ("all_reduce", "dp_copies", 4000),
        ("all_reduce", "expert_dp_copies", 800),
        ("all_gather", "dp_shard", 16000),
        ("all_gather", "expert_dp_shard", 1600),
    ]
    groups = communicators(job)
    assert (groups["dp_shard"].size, groups["dp_shard"].nodes) == (8, 1)
    assert (groups["dp_copies"].size, groups["dp_copies"].nodes) == (4, 4)
    assert owned_parameters(LocalParameters(8000, 800), job) == 1000 + 200


def test_a_group_of_all_replicas_is_no_group() -> None:
    whole, grouped = (make_job(TINY, dp_shard=each, **SHARDED) for each in (None, 32))
    assert messages(whole) == messages(grouped)
    simulate = ReplaySimulator().without_error_bar
    assert simulate(whole).step_time_s == simulate(grouped).step_time_s
    apart = simulate(make_job(TINY, dp_shard=8, **SHARDED))
    assert apart.memory.peak_allocated_bytes > simulate(whole).memory.peak_allocated_bytes


@pytest.mark.parametrize(
    ("framework", "recipe", "gradient", "master", "moments"),
    [
        ({}, {}, 4, 4, 8),
        ({}, {"grad_dtype": "bf16"}, 2, 4, 8),
        ({"accumulate_grads_fp32": False}, {"grad_dtype": "fp32"}, 4, 4, 8),
        ({}, {"optimizer_states": "remainders"}, 4, 2, 8),
        ({}, {"optimizer_states": "bf16"}, 4, 2, 4),
    ],
)
def test_recipes_set_what_frameworks_keep(
    framework: dict[str, Any], recipe: dict[str, Any], gradient: int, master: int, moments: int
) -> None:
    job = replace(make_job(TINY, **recipe), framework=Framework(**framework))
    assert gradient_bytes_per_parameter(job) == gradient
    assert (master_bytes(job), OPTIMIZERS[job.optimizer].moment_bytes) == (master, moments)
    # Another recipe of the same job starts from what was declared.
    assert replace(job, recipe=Recipe()).framework == Framework(**framework)
