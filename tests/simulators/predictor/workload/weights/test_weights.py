"""Weights in 8 and 4 bits: what is kept, gathered and cast."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulators.jobs import MOE, TINY, make_job
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.memory.static import static_of
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.tuning import Lora
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.workload.ir import Collective, Streaming
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.weights.data_parallel import (
    Transfer,
    gather_parameters,
)
from trainscout.simulators.predictor.workload.weights.weights import (
    gathered_weight_bytes,
    kept_weight_bytes,
    weight_casts,
)

GPUS = load_catalogue().gpus
HOPPER, B200 = GPUS["h100"], GPUS["b200"]


def job_of(precision: str, gpu: Any = HOPPER, model: Any = TINY, **recipe: Any) -> Job:
    return replace(make_job(model, precision=precision, **recipe), gpu=gpu)


# By Transformer Engine 2's tensors: Float8Tensor with its transpose, Float8BlockwiseQTensor and
# MXFP8Tensor of rows and columns with one byte for 32, NVFP4Tensor with one for 16.
@pytest.mark.parametrize(
    ("precision", "gpu", "beside", "alone", "gathered"),
    [
        ("bf16", HOPPER, 2, 2, 2),
        ("fp8", HOPPER, 4, 2, 1),
        ("fp8_current", HOPPER, 4, 2, 1),
        ("fp8_block", HOPPER, 4, 2, 1),
        ("fp8_current", B200, 3, 1, 1),
        ("mxfp8", B200, 2 + 66 / 32, 66 / 32, 2),
        ("nvfp4", B200, 2 + 18 / 16, 18 / 16, 9 / 16),
    ],
)
def test_bytes_of_a_weight(
    precision: str, gpu: Any, beside: float, alone: float, gathered: float
) -> None:
    off, on = (job_of(precision, gpu, fp8_param_gather=each) for each in (False, True))
    assert (kept_weight_bytes(off), kept_weight_bytes(on)) == (beside, alone)
    assert (gathered_weight_bytes(off), gathered_weight_bytes(on)) == (2, gathered)


@pytest.mark.parametrize("model", [TINY, MOE])
def test_what_is_saved_is_the_layers_weights(model: Any) -> None:
    kept, moved = [], []
    for each in (False, True):
        job = job_of("fp8", model=model, fp8_param_gather=each)
        (stage,) = build_workload(job).stages
        kept.append(static_of(job, stage).kinds)
        ops = gather_parameters(stage.parameters, Transfer.of(job)).ops
        moved.append(sum(op.bytes for op in ops if isinstance(op, Collective)))
    quantised = stage.parameters.quantised
    assert quantised is not None
    assert kept[0]["parameters"] - kept[1]["parameters"] == 2 * quantised.total
    assert kept[0]["optimizer"] == kept[1]["optimizer"]
    assert kept[0]["gradients"] == kept[1]["gradients"]
    assert moved[0] - moved[1] == quantised.total
    if model is TINY:
        h, inner = model.hidden_size, model.ffn_hidden_size
        projections = 4 * h * h + 2 * h * inner
        # With the biases, where there are any.
        assert 0 <= quantised.total - model.num_layers * projections < 0.02 * quantised.total


def test_casts_of_a_step() -> None:
    def cast(precision: str, gpu: Any, **recipe: Any) -> list[int]:
        job = job_of(precision, gpu, **recipe)
        (stage,) = build_workload(job).stages
        assert stage.parameters.quantised is not None
        ops = weight_casts(job, stage.parameters)
        assert all(isinstance(op, Streaming) and op in stage.optimizer.ops for op in ops)
        weights = stage.parameters.quantised.total
        return [op.bytes // weights for op in ops if isinstance(op, Streaming)]

    # Read in 16 bits, two copies written; with it, the transpose of what came.
    assert cast("fp8", HOPPER) == [4]
    assert cast("fp8", HOPPER, fp8_param_gather=True) == [2]
    assert cast("fp8_current", B200) == [3]
    assert cast("fp8_current", B200, fp8_param_gather=True) == []
    assert cast("mxfp8", B200, fp8_param_gather=True) == cast("mxfp8", B200)
    # Of what is gathered for each pass, passes make the copies.
    assert cast("fp8", HOPPER, zero_stage=3) == []


def test_layers_in_16_bits_are_not_quantised() -> None:
    ends = {"num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 1}
    counts = [
        build_workload(job_of("fp8", model=model)).stages[0].parameters.quantised
        for model in (TINY, replace(TINY, **ends))
    ]
    whole, fewer = (each.total if each is not None else 0 for each in counts)
    assert fewer == whole * (TINY.num_layers - 2) // TINY.num_layers


def test_what_cannot_keep_them_so_is_refused() -> None:
    unsharded = why_invalid(job_of("fp8", zero_stage=0, fp8_param_gather=True))
    assert unsharded is not None
    assert unsharded.field == "fp8_param_gather"
    assert why_invalid(job_of("bf16", gpu=HOPPER, zero_stage=0, fp8_param_gather=True)) is None
    # Left to a framework that has it, it means nothing there.
    job = job_of("fp8", zero_stage=0)
    job = replace(job, framework=replace(job.framework, fp8_param_gather=("fp8",)))
    assert why_invalid(job) is None
    assert not job.keeps_quantised


def test_frozen_weights_are_kept_so_whatever_the_optimizer_and_once_without_a_transpose() -> None:
    job = job_of("fp8", zero_stage=0)
    job = replace(job, training=replace(job.training, lora=Lora(rank=8)))
    assert kept_weight_bytes(job) == 4
    job = replace(job, framework=replace(job.framework, fp8_param_gather=("fp8",)))
    assert kept_weight_bytes(job) == 2
    job = replace(job, framework=replace(job.framework, quantises_each_pass=True))
    assert kept_weight_bytes(job) == 1
