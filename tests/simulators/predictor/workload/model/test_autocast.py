"""16-bit products of fp32 weights: where they are, and what they keep, move and reduce."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulators.jobs import LLAMA, make_job
from trainscout.simulators.predictor.memory.static import static_of
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.tuning import Lora
from trainscout.simulators.predictor.workload.ir import Collective, Streaming
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.shard import Shard
from trainscout.simulators.predictor.workload.weights.data_parallel import (
    Transfer,
    gather_parameters,
    reduce_gradients,
)

SOFTWARE = {"autocast": True, "fused_wgrad": False, "accumulate_grads_fp32": False}


def job(training: dict[str, Any] | None = None, **recipe: Any) -> Job:
    return make_job(LLAMA, training=SOFTWARE | (training or {}), **({"zero_stage": 0} | recipe))


@pytest.mark.parametrize(
    ("here", "holds"),
    [
        (job(), True),
        (job({"precision": "fp16"}, tp=2), True),
        (job(zero_stage=1), False),
        (job(zero_stage=1, tp=8), True),
        (job(zero_stage=3, tp=8), False),
        (job({"autocast_shards": True}, zero_stage=3), True),
        (job({"autocast_shards": True}, zero_stage=1), False),
        (job({"autocast_shards": True, "autocast_throughout": True}, zero_stage=3), True),
        (job(pp=2), False),
        (job({"precision": "fp8"}), False),
        (job({"optimizer": "adam_pure_bf16"}), False),
        (job({"lora": Lora(8, ("linear_qkv",))}), False),
        (job({"lora": Lora(8, ("linear_qkv",)), "autocast_shards": True}, zero_stage=3), True),
        (job({"autocast": False}), False),
    ],
)
def test_weights_are_fp32_where_nothing_shards_or_freezes_them(here: Job, holds: bool) -> None:
    assert here.autocasts == holds


def test_megatron_core_autocasts_throughout_and_adds_fp32_biases() -> None:
    here = job({"autocast_throughout": True}, zero_stage=1, pp=2)
    biased = replace(here, model=replace(here.model, linear_bias=True))
    fused = replace(biased, framework=replace(biased.framework, transformer_engine=2))
    whole = job({"autocast_throughout": True}, zero_stage=3)
    found = [(each.autocasts, each.fp32_outputs) for each in (here, biased, fused, whole)]
    assert found == [(True, False), (True, True), (True, False), (False, False)]
    assert Shard.of(here).boundary_bytes == 2 * Shard.of(job(pp=2)).boundary_bytes


def test_a_rank_keeps_sixteen_bytes_of_a_parameter_and_no_copy() -> None:
    here = job()
    (stage,) = build_workload(here).stages
    count = stage.parameters.total
    parts = {"parameters": 4 * count, "gradients": 4 * count, "optimizer": 8 * count}
    assert static_of(here, stage).kinds == parts


def test_every_matrix_is_cast_for_a_pass_and_again_to_recompute() -> None:
    def cast(recompute: str, name: str) -> list[int]:
        here = job(recompute=recompute)
        (layer,) = here.model.layer_kinds
        blocks = layer_blocks(Shard.of(here), layer, recompute)
        ops = [[op for op in block.ops if isinstance(op, Streaming)] for block in blocks]
        return [sum(op.bytes for op in each if op.name.endswith(name)) for each in ops]

    h, width = LLAMA.hidden_size, LLAMA.ffn_hidden_size
    # Queries and output, keys and values of two heads of eight, three matrices of the MLP.
    matrices = 2 * h * h + 2 * h * h // 4 + 3 * h * width
    assert cast("none", "_weight_cast") == [6 * matrices, 0]
    assert cast("none", "_weight_grad_cast") == [0, 6 * matrices]
    assert cast("full", "_weight_cast") == [6 * matrices, 6 * matrices]


@pytest.mark.parametrize("fusion", ["compiled", "fused"])
def test_norms_that_write_16_bits_leave_nothing_to_cast(fusion: str) -> None:
    def moved(autocast: bool) -> dict[str, int]:
        shard = Shard.of(job({"fusion": fusion, "autocast": autocast}))
        block, _ = layer_blocks(shard, LLAMA.layer_kinds[0], "none")
        return {op.name: op.bytes for op in block.ops if isinstance(op, Streaming)}

    cast, plain = moved(True), moved(False)
    assert not [name for name in cast if name.endswith("_input_cast")]
    # Four bytes are read and two written, for two and two.
    assert 2 * cast["mlp_norm_fwd"] == 3 * plain["mlp_norm_fwd"]


def test_shards_of_fp32_weights_are_gathered_so() -> None:
    def gathered(shards: bool) -> float:
        here = job({"autocast_shards": shards}, zero_stage=3)
        (stage,) = build_workload(here).stages
        ops = gather_parameters(stage.parameters, Transfer.of(here)).ops
        return sum(op.bytes for op in ops if isinstance(op, Collective))

    assert gathered(True) == 2 * gathered(False) > 0


def test_replicas_reduce_in_fp32() -> None:

    here = job()
    (stage,) = build_workload(here).stages
    ops = reduce_gradients(stage.parameters, Transfer.of(here)).ops
    reduced = [op for op in ops if isinstance(op, Collective)]
    assert {op.dtype for op in reduced} == {"fp32"}
    assert sum(op.bytes for op in reduced) == 4 * stage.parameters.total
