"""The operations of a layer do the FLOPs that MFU counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulators.jobs import LLAMA, MLA_MOE, MODELS, MOE, TINY, make_job
from trainscout.simulators.predictor.answer.flops import (
    attention_core_flops,
    layer_flops,
    step_flops,
)
from trainscout.simulators.predictor.question.layers import DENSE_LAYER, EXPERT_LAYER, plain_layer
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.model.ends import head_blocks
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.parameters import layer_parameters
from trainscout.simulators.predictor.workload.shard import Shard

SHARDED: list[tuple[Model, dict[str, Any], float]] = [
    *((model, {}, 1) for model in MODELS),
    # Ranks that share one micro-batch; token-sharded parts need sequence parallelism.
    (TINY, {"tp": 8}, 8),
    (TINY, {"tp": 4, "sp": True}, 4),
    (LLAMA, {"tp": 2, "micro_batch": 2}, 2),
    (MOE, {"tp": 2, "sp": True}, 2),
    (MOE, {"tp": 2, "sp": True, "etp": 1, "ep": 4}, 2),
    # Ranks that share experts bring tokens of their own.
    (MOE, {"etp": 2, "ep": 4}, 1),
    (MOE, {"tp": 2, "sp": True, "ep": 2}, 2),
    (MOE, {"ep": 8}, 1),
    (MLA_MOE, {"tp": 2, "sp": True, "etp": 1}, 2),
    (TINY, {"cp": 4}, 4),
    (replace(MLA_MOE, mla=replace(MLA_MOE.mla, q_lora_rank=None)), {}, 1),  # type: ignore[type-var]
]


def linear_flops(block: ir.Block) -> int:
    """Multiply-adds of dense and grouped products outside the attention core, times two."""
    total = 0
    for op in block.ops:
        if isinstance(op, ir.Gemm) and op.batch == 1:
            total += 2 * op.m * op.n * op.k
        elif isinstance(op, ir.GroupedGemm):
            total += 2 * op.groups * op.m_per_group * op.n * op.k
    return total


def causal_core_flops(block: ir.Block, pass_: str) -> float:
    """FLOPs of fused attention, the skipped half of causal pieces not counted."""
    total = 0.0
    for op in block.ops:
        if isinstance(op, ir.Attention) and op.pass_ == pass_:
            pairs = op.batch * op.heads * op.seq_q * op.seq_k / (2 if op.causal else 1)
            total += 2 * pairs * (op.head_dim + op.head_dim_v)
    return total


@pytest.mark.parametrize(("model", "recipe", "ranks"), SHARDED)
def test_forward_flops_are_those_of_the_convention(
    model: Model, recipe: dict[str, Any], ranks: int
) -> None:
    job = make_job(model, **recipe)
    shard = Shard.of(job)
    tokens = job.recipe.micro_batch * job.sequence_length
    core = attention_core_flops(model, job.sequence_length)
    for is_moe in {False, model.moe is not None}:
        forward, _ = layer_blocks(shard, plain_layer(is_moe), "none")
        expected = (layer_flops(model, job.sequence_length, plain_layer(is_moe)) - core) * tokens
        assert linear_flops(forward) * ranks == expected
        # The convention counts the full square, of which a causal kernel runs half.
        assert causal_core_flops(forward, "fwd") * ranks == core * tokens / 2


@pytest.mark.parametrize(("model", "recipe", "ranks"), SHARDED)
def test_backward_is_twice_the_forward(model: Model, recipe: dict[str, Any], ranks: int) -> None:
    shard = Shard.of(make_job(model, **recipe))
    for is_moe in {False, model.moe is not None}:
        forward, backward = layer_blocks(shard, plain_layer(is_moe), "none")
        assert linear_flops(backward) == 2 * linear_flops(forward)
        # The same pieces, in the backward kernels.
        assert causal_core_flops(backward, "bwd") == causal_core_flops(forward, "fwd")


@pytest.mark.parametrize("tp", [1, 8])
def test_head_multiplies_by_the_padded_vocabulary(tp: int) -> None:
    job = make_job(TINY, tp=tp)
    forward, backward = head_blocks(Shard.of(job))
    padded = TINY.padded_vocab_size(tp)
    assert linear_flops(forward) * tp == 2 * 256 * padded * 64
    assert linear_flops(backward) == 2 * linear_flops(forward)


def test_capacity_limits_what_experts_compute() -> None:
    assert MOE.moe is not None
    dropless = layer_blocks(Shard.of(make_job(MOE)), EXPERT_LAYER, "none")[0]
    capped = replace(MOE, moe=replace(MOE.moe, capacity_factor=0.5))
    half = layer_blocks(Shard.of(make_job(capped)), EXPERT_LAYER, "none")[0]

    def grouped(block: ir.Block) -> int:
        return sum(op.m_per_group for op in block.ops if isinstance(op, ir.GroupedGemm))

    assert 2 * grouped(half) == grouped(dropless)


def test_experts_of_a_tensor_parallel_group_share_its_tokens() -> None:
    # Every rank holds a slice of each expert and gathers what its group routed there.
    assert MOE.moe is not None
    forward, _ = layer_blocks(Shard.of(make_job(MOE, tp=2, sp=True)), EXPERT_LAYER, "none")
    grouped = [op for op in forward.ops if isinstance(op, ir.GroupedGemm)]
    flops = sum(2 * op.groups * op.m_per_group * op.n * op.k for op in grouped)
    assert 2 * flops == 2 * 64 * 2 * MOE.moe.ffn_hidden_size * 256 * 3


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_weight_gradient_is_accumulated_once(model: Model) -> None:
    # Fused: by its GEMM, into so many bytes. Else: read it and the main gradient, write that,
    # 2 + 4 + 4 bytes. Biases' are added apart in any case.
    def weights(fused: bool, fp32: bool = True) -> tuple[int, int]:
        software = {"fused_wgrad": fused, "accumulate_grads_fp32": fp32}
        job = make_job(model, training=software)
        _, backward = layer_blocks(Shard.of(job), plain_layer(model.moe is not None), "none")
        inside = separate = of_biases = 0
        for op in backward.ops:
            if isinstance(op, ir.Gemm):
                inside += op.m * op.n * op.accumulate
            elif isinstance(op, ir.GroupedGemm):
                inside += op.groups * op.n * op.k * op.accumulate
            elif isinstance(op, ir.Streaming) and op.name.endswith("_bias_accumulate"):
                of_biases += op.bytes
            elif isinstance(op, ir.Streaming) and op.name.endswith("_accumulate"):
                separate += op.bytes
        assert of_biases == (10 if fp32 else 6) * biases
        return inside, separate

    biases = (3 + 1 + 4 + 1) * 256 if model.linear_bias else 0
    # The router's is added by a kernel of its own in any case.
    router = model.hidden_size * model.moe.num_experts if model.moe is not None else 0
    of_four_bytes, alone = weights(True)
    matrices = of_four_bytes // 4
    assert alone == 10 * router
    assert weights(True, fp32=False) == (2 * matrices, 6 * router)
    assert weights(False) == (0, 10 * (matrices + router))
    assert weights(False, fp32=False) == (0, 6 * (matrices + router))


@pytest.mark.parametrize(
    "modules",
    ["mlp", "moe", "shared_experts", "qkv+attn_out", "mla_up_proj", "core_attn+mlp", "operations"],
)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_selective_recomputation_repeats_what_hfu_counts(model: Model, modules: str) -> None:
    plain = make_job(model, recompute="selective", recompute_modules=modules)
    flops = step_flops(plain)
    shard = Shard.of(plain)
    repeated = 0.0
    for layer in range(model.num_layers):
        is_moe = model.is_moe_layer(layer)
        _, backward = layer_blocks(shard, plain_layer(is_moe), "none")
        _, again = layer_blocks(shard, plain_layer(is_moe), "selective", modules)
        repeated += linear_flops(again) - linear_flops(backward)
        repeated += 2 * causal_core_flops(again, "fwd")
    counted = (flops.hardware - flops.model) / plain.tokens_per_step * plain.sequence_length
    # Halves of odd widths and the router's half are counted whole.
    assert repeated == pytest.approx(counted, rel=0.02)


def test_only_models_with_biases_pay_for_those_of_their_experts() -> None:
    biased = replace(MOE, linear_bias=True)
    plain, paying = (
        [
            op
            for block in layer_blocks(Shard.of(make_job(model)), EXPERT_LAYER, "none")
            for op in block.ops
        ]
        for model in (MOE, biased)
    )
    names = [
        {op.name for op in ops if isinstance(op, ir.Streaming) and op.name.startswith("expert")}
        for ops in (plain, paying)
    ]
    added = {"expert_bias", "expert_bias_bwd", "expert_fc1_bias_grad", "expert_bias_accumulate"}
    assert names[1] - names[0] == added
    # Weighted in fp32, added, joined and cast: 28 bytes for each of 64 x 2 rows of 256.
    (adding,) = (op for op in paying if isinstance(op, ir.Streaming) and op.name == "expert_bias")
    assert adding.bytes == 28 * 64 * 2 * 256
    # A product and a sum for each expert, of eight to a module's launch; joined and cast.
    assert biased.moe is not None
    assert adding.launches == 2 + 1 + 2 * biased.moe.num_experts // 8
    streamed = (op for op in paying if isinstance(op, ir.Streaming))
    (main,) = (op for op in streamed if op.name == "expert_bias_accumulate")
    # Both layers' gradients, of two bytes, read with the main ones of four.
    assert main.bytes == 10 * biased.moe.num_experts * (2 * biased.moe.ffn_hidden_size + 256)
    assert main.launches == 1 + 2 * biased.moe.num_experts // 8


def test_latent_keys_and_values_are_written_once() -> None:
    job = make_job(MLA_MOE)
    forward, _ = layer_blocks(Shard.of(job), DENSE_LAYER, "none")
    (assemble,) = (
        op for op in forward.ops if isinstance(op, ir.Streaming) and op.name == "kv_assemble"
    )
    assert MLA_MOE.mla is not None
    per_head = MLA_MOE.mla.qk_nope_head_dim + MLA_MOE.v_head_dim
    written = MLA_MOE.qk_head_dim + MLA_MOE.v_head_dim
    assert assemble.bytes == 64 * MLA_MOE.num_heads * (per_head + written) * 2


def test_norms_inside_halves_are_as_wide_as_what_is_multiplied_last() -> None:
    one, other = (make_job(replace(LLAMA, inner_norms=inside)) for inside in (False, True))
    width = LLAMA.num_heads * LLAMA.v_head_dim + LLAMA.ffn_hidden_size
    shards = [Shard.of(job) for job in (one, other)]
    counts = [layer_parameters(shard, DENSE_LAYER).total for shard in shards]
    assert counts[1] - counts[0] == width
    plain, normed = (layer_blocks(shard, DENSE_LAYER, "none")[0] for shard in shards)
    kept = normed.saved_bytes - plain.saved_bytes
    tokens = shards[0].tokens
    assert width * tokens * 2 <= kept <= width * tokens * 2 + 2 * 8 * tokens
    assert linear_flops(normed) == linear_flops(plain)
