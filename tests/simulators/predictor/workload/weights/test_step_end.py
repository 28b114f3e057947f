"""What ends a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulators.jobs import LLAMA, make_job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.tuning import Lora
from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.predictor.workload.parameters import LocalParameters
from trainscout.simulators.predictor.workload.weights.step_end import (
    moment_bytes,
    optimizer_block,
    update_bytes,
)


def copies(**recipe: int) -> list[Streaming]:
    job = make_job(LLAMA, batch=64, training={"copies_shards": True}, **recipe)
    block = optimizer_block(job, LocalParameters(1000), 3)
    return [op for op in block.ops if isinstance(op, Streaming) and op.name == "shard_copies"]


def test_shards_of_every_tensor_are_copied_one_by_one() -> None:
    job = make_job(LLAMA, batch=64, training={"copies_shards": True}, zero_stage=1)
    (copy,) = copies(zero_stage=1)
    # Six tensors a layer, each in as many pieces as there are replicas; a launch and, for the
    # views, as much of the host's time again.
    assert copy.launches == 2 * job.dp * 3 * 6
    assert copy.bytes == 2 * 2 * 1000


def test_what_is_not_sharded_is_not_copied() -> None:
    assert copies(zero_stage=0) == []
    plain = make_job(LLAMA, batch=64, zero_stage=1)
    names = [op.name for op in optimizer_block(plain, LocalParameters(1000), 3).ops]  # type: ignore[union-attr]
    assert names == ["clip_grads", "update", "copy_weights", "zero_grads"]


def test_unpacked_moments_move_twenty_bytes_each_more() -> None:
    """Two read and four written before, four for two in and out of the kernel, and after it four
    read and two written, two read and two written."""

    def moved(unpacks: bool) -> int:
        training = {"optimizer": "adam_bf16", "unpacks_moments": unpacks}
        job = make_job(LLAMA, zero_stage=0, training=training)
        block = optimizer_block(job, LocalParameters(dense=600, expert=400), 3)
        return sum(op.bytes for op in block.ops if isinstance(op, Streaming))

    assert moved(True) - moved(False) == 2 * 20 * 1000


def test_an_update_in_one_pass_or_in_one_for_each_operation() -> None:
    """Weight, gradient and both moments of four bytes: 7 of them are read or written in one pass,
    20 by eight operations; the master is read once more, and the 16-bit copy written."""

    def moved(fused: bool, optimizer: str = "adam") -> int:
        facts = {"fused_optimizer": fused, "optimizer": optimizer}
        job = make_job(LLAMA, zero_stage=0, training=facts)
        ops = optimizer_block(job, LocalParameters(1000), 3).ops
        mine = ("update", "copy_weights")
        return sum(op.bytes for op in ops if isinstance(op, Streaming) and op.name in mine)

    assert (moved(True), moved(False)) == (1000 * (7 * 4 + 6), 1000 * (20 * 4 + 6))
    assert moved(True, "sgd") == moved(False, "sgd")
    # As a traced kernel of 8 bits: gradient, weight, states, scales of 256 (and no copy there).
    eight = 1000 * (7 * 4 - 2 * 8 + 6) + 2 * (2 * 1000 + 2 * 1000 * 4 // 256)
    assert moved(True, "adam_8bit") == moved(False, "adam_8bit") == pytest.approx(eight, abs=2)


LOOP = {"fused_optimizer": False, "host_launch_s": 1e-6, "optimizer_operations": 8}


def test_an_update_of_one_tensor_after_another() -> None:
    """Twice as many operations as Adam's move twice as much; what is no layer counts as one
    tensor."""
    found = []
    for operations in (8, 16):
        job = make_job(LLAMA, zero_stage=0, training=LOOP | {"optimizer_operations": operations})
        ops = optimizer_block(job, LocalParameters(1000), 3).ops
        found += [(op.bytes, op.launches) for op in ops if op.name == "update"]  # type: ignore[union-attr]
    assert found == [(n * 10 * 1000, n * (3 * 8 + 1)) for n in (8, 16)]


@pytest.mark.parametrize(
    ("model", "training", "tensors"),
    [
        # Four products, two norms, and those of queries and keys.
        (LLAMA, {}, 8),
        (replace(LLAMA, qk_norm=False), {"separate_projections": True}, 9),
        (replace(LLAMA, qk_norm=False, qkv_bias=True), {"separate_projections": True}, 12),
        (replace(LLAMA, qk_norm=False, normalization="layernorm", linear_bias=True), {}, 12),
        (LLAMA, {"lora": Lora(8, ("linear_qkv",)), "separate_projections": True}, 6),
        (LLAMA, {"lora": Lora(8, ("linear_proj",), dora=True)}, 3),
        # FSDP's flat parameter, and DTensors.
        (LLAMA, {"torch_wrappers": True}, 1),
        (LLAMA, {"torch_wrappers": True, "copies_gathered": True}, 8),
    ],
)
def test_tensors_that_are_updated_one_after_another(
    model: Model, training: dict[str, Any], tensors: int
) -> None:
    job = make_job(model, zero_stage=3, training=LOOP | training)
    ops = optimizer_block(job, LocalParameters(9), 3).ops
    (update,) = (op for op in ops if op.name == "update")  # type: ignore[union-attr]
    assert update.launches == 8 * (3 * tensors + 1)  # type: ignore[union-attr]


def test_roots_of_second_moments_are_of_all_tensors_at_once_or_of_one() -> None:
    parameters, at_once = LocalParameters(1000, embedding=100), LOOP | {"optimizer_operations": 0}
    jobs = [make_job(LLAMA, zero_stage=0, training=facts) for facts in (at_once, LOOP)]
    assert [update_bytes(parameters, job) for job in jobs] == [4 * 1000, 2 * 4 * 100]


def test_moments_of_embeddings_stay_in_fp32_where_a_framework_says_so() -> None:
    job = make_job(LLAMA, zero_stage=1, training={"optimizer": "adam_8bit"})
    parameters, shards = LocalParameters(256_000, embedding=25_600), job.dp
    for kept, more in (("all", 0), ("layers", 25_600 / shards * (8 - 2 * (1 + 4 / 256)))):
        framework = replace(job.framework, moments_8bit=kept)
        found = moment_bytes(parameters, replace(job, framework=framework))
        assert found == pytest.approx(256_000 / shards * 2 * (1 + 4 / 256) + more, abs=3)


@pytest.mark.parametrize(
    ("tp", "zero_stage", "gpus", "flattens", "layers"),
    [
        *((1, 0, 8, False, 0), (1, 0, 8, True, 3), (1, 1, 8, False, 3), (2, 0, 8, False, 3)),
        # Without replicas nothing is sharded.
        (1, 1, 1, False, 0),
    ],
)
def test_python_goes_through_dtensors_and_deepspeed_s_parameters(
    tp: int, zero_stage: int, gpus: int, flattens: bool, layers: int
) -> None:
    job = make_job(tp=tp, zero_stage=zero_stage, gpus_per_node=gpus)
    job = replace(job, framework=replace(job.framework, flattens_gradients=flattens))
    assert optimizer_block(job, LocalParameters(1000), 3).listed >= layers
    assert bool(optimizer_block(job, LocalParameters(1000), 3).listed) == bool(layers)
