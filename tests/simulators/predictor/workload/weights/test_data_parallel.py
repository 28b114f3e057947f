"""Buckets of gradients and parameters: totals, kinds and groups."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.jobs import make_job
from trainscout.simulators.predictor.workload.ir import Block, Collective, Streaming
from trainscout.simulators.predictor.workload.parameters import LocalParameters
from trainscout.simulators.predictor.workload.shard import Shard
from trainscout.simulators.predictor.workload.weights.data_parallel import (
    Transfer,
    bucket_parameters,
    gather_parameters,
    gradient_bytes_per_parameter,
    parameter_bytes,
    reduce_gradients,
)


def collectives(block: Block) -> list[Collective]:
    assert all(isinstance(op, Collective) for op in block.ops)
    return [op for op in block.ops if isinstance(op, Collective)]


@given(
    dense=st.integers(0, 10**10),
    expert=st.integers(0, 10**10),
    zero_stage=st.sampled_from([0, 1]),
    overlap=st.booleans(),
    fp32=st.booleans(),
)
def test_buckets_carry_every_gradient_once(
    dense: int, expert: int, zero_stage: int, overlap: bool, fp32: bool
) -> None:
    job = make_job(
        zero_stage=zero_stage,
        overlap_grad_reduce=overlap,
        training={"accumulate_grads_fp32": fp32},
    )
    size = 4 if fp32 else 2
    found = collectives(reduce_gradients(LocalParameters(dense, expert), Transfer.of(job)))
    assert {op.kind for op in found} <= {"reduce_scatter" if zero_stage else "all_reduce"}
    for group, count in (("dp", dense), ("expert_dp", expert)):
        buckets = [op.bytes for op in found if op.communicator == group]
        # Equal buckets: less than one element of each is rounding.
        assert count * size <= sum(buckets) < count * size + size * max(1, len(buckets))
        if overlap:
            # About as large as Megatron's 40 M parameters, the only one smaller if need be.
            assert all(bucket / size <= 1.5 * 40_000_000 for bucket in buckets)
            assert len(buckets) <= 1 or buckets[0] / size >= 0.5 * 40_000_000
        if not overlap:
            assert len(buckets) == (1 if count else 0)


@given(dense=st.integers(1, 10**10))
def test_parameters_are_gathered_at_their_own_width(dense: int) -> None:
    job = make_job(zero_stage=1)
    (gather,) = collectives(gather_parameters(LocalParameters(dense), Transfer.of(job)))
    assert (gather.kind, gather.communicator) == ("all_gather", "dp")
    assert gather.bytes == 2 * dense


@pytest.mark.parametrize(
    ("nodes", "cp", "expected"), [(1, 1, 40_000_000), (8, 1, 64_000_000), (8, 2, 64_000_000)]
)
def test_bucket_size_is_megatrons_default(nodes: int, cp: int, expected: int) -> None:
    job = make_job(nodes=nodes, cp=cp, overlap_grad_reduce=True)
    assert bucket_parameters(job) == expected


def test_nothing_is_bucketed_without_overlap() -> None:
    assert bucket_parameters(make_job()) is None


def test_fully_sharded_layers_travel_whole() -> None:
    # PyTorch FSDP: one flat parameter a unit, one collective, whatever Megatron's overlap says.
    job = make_job(zero_stage=3, overlap_grad_reduce=True, overlap_param_gather=True)
    layer = LocalParameters(400_000_000)
    assert len(collectives(gather_parameters(layer, Transfer.of(job)))) == 1
    assert len(collectives(reduce_gradients(layer, Transfer.of(job)))) == 1


@pytest.mark.parametrize(
    ("training", "gradient", "parameter"),
    [
        ({"precision": "bf16"}, 4, 2),
        ({"precision": "bf16", "accumulate_grads_fp32": False}, 2, 2),
        ({"precision": "fp8"}, 4, 2),
        ({"precision": "fp32", "accumulate_grads_fp32": False}, 4, 4),
        ({"precision": "tf32"}, 4, 4),
    ],
)
def test_bytes_per_parameter(training: dict[str, Any], gradient: int, parameter: int) -> None:
    job = make_job(training=training)
    assert gradient_bytes_per_parameter(job) == gradient
    assert parameter_bytes(job) == parameter


def test_fsdp_under_a_pipeline_adds_gradients_up_in_fp32() -> None:
    facts = {"reduce_grads_fp32": True, "accumulate_grads_fp32": False}
    for stages, size in ((1, 2), (2, 4)):
        job = make_job(pp=stages, zero_stage=1, training=facts)
        assert gradient_bytes_per_parameter(job) == size
        assert Shard.of(job).accumulate_grads_fp32 == (size == 4)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_all_reduces_gradients_until_weights_are_sharded(stage: int) -> None:
    job = make_job(batch=64, zero_stage=stage, training={"allreduces_gradients": True})
    (found,) = collectives(reduce_gradients(LocalParameters(1000), Transfer.of(job)))
    assert found.kind == ("reduce_scatter" if stage == 3 else "all_reduce")


def test_owners_of_whole_tensors_broadcast_them_at_a_step_s_end() -> None:
    facts = {"broadcasts_shards": True}
    few, many = (make_job(batch=512, nodes=nodes, training=facts) for nodes in (1, 64))
    parameters = LocalParameters(12_000_000)
    for job, owners in ((few, few.dp), (many, many.model.num_layers * 6)):
        found = collectives(gather_parameters(parameters, Transfer.of(job)))
        assert {op.kind for op in found} == {"broadcast"}
        assert len(found) == owners <= job.dp
        assert sum(op.bytes for op in found) == pytest.approx(2 * parameters.dense, rel=1e-3)
    beside = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    job = make_job(batch=512, training=facts, **beside)
    kinds = {op.kind for op in collectives(gather_parameters(parameters, Transfer.of(job)))}
    assert kinds == {"all_gather"}


def test_what_gathers_for_recomputation_gathers_twice_for_a_backward_pass() -> None:
    job = make_job(training={"gathers_tensors": True}, batch=64, zero_stage=3)
    parameters, transfer = LocalParameters(4000), Transfer.of(job)
    once, twice = (gather_parameters(parameters, transfer, again=a) for a in (False, True))
    gathers = [op for op in once.ops if isinstance(op, Collective)]
    copies = [op for op in once.ops if isinstance(op, Streaming)]
    # Four matrices; a launch and the host's time of another for every rank's share.
    assert [op.bytes for op in gathers] == [2 * 1000] * 4
    assert {op.launches for op in copies} == {2 * job.dp}
    assert twice.ops == once.ops * 2
    assert len(reduce_gradients(parameters, transfer).ops) == len(once.ops)
    plain = Transfer.of(make_job(batch=64, zero_stage=3))
    assert gather_parameters(parameters, plain, again=True) == gather_parameters(parameters, plain)
    facts = {"gathers_to_recompute": True}
    for times, more in ((2, {}), (3, {"leaves_regathered": True})):
        outside = Transfer.of(make_job(batch=64, zero_stage=3, training=facts | more))
        once, again = (gather_parameters(parameters, outside, again=a) for a in (False, True))
        assert once == gather_parameters(parameters, plain)
        assert again.ops == once.ops * times
