"""Activation bytes of one layer against Korthikanti et al. 2022, Table 2."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.simulators.jobs import GPT175B, LLAMA, MLA_MOE, MODELS, MOE, make_job
from trainscout.simulators.predictor.question.layers import (
    DENSE_LAYER,
    EXPERT_LAYER,
    WHOLE,
    plain_layer,
)
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.tuning import Lora
from trainscout.simulators.predictor.workload.feed_forward.mlp import mlp_part
from trainscout.simulators.predictor.workload.ir import Alloc, Block, Free
from trainscout.simulators.predictor.workload.mixers.attention import attention_parts
from trainscout.simulators.predictor.workload.model.ends import head_blocks
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.part import Part
from trainscout.simulators.predictor.workload.residual_stream.embedding import embedding_blocks
from trainscout.simulators.predictor.workload.shard import Shard

MIB = 2**20
UNFUSED = {"attention": "unfused"}


def saved_bytes(recompute: str, *, micro_batch: int = 1, **recipe: object) -> int:
    job = make_job(GPT175B, batch=8, training=UNFUSED, micro_batch=micro_batch, **recipe)
    return layer_blocks(Shard.of(job), DENSE_LAYER, recompute)[0].saved_bytes


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("sp", [False, True])
def test_published_formula(tp: int, sp: bool) -> None:
    if sp and tp == 1:
        return
    s, b, h, a = 2048, 1, 12288, 96
    core = 5 * a * s * s * b // tp
    linear = 34 * s * b * h // tp if sp else 10 * s * b * h + 24 * s * b * h // tp
    assert saved_bytes("none", tp=tp, sp=sp) == linear + core
    assert saved_bytes("selective", tp=tp, sp=sp) == linear
    assert saved_bytes("full", tp=tp, sp=sp) == 2 * s * b * h // (tp if sp else 1)


def test_flash_attention_keeps_one_statistic_per_query_instead_of_the_core() -> None:
    job = make_job(GPT175B, batch=8, tp=8, sp=True)
    shard = Shard.of(job)
    flash = layer_blocks(shard, DENSE_LAYER, "none")[0].saved_bytes
    assert flash == saved_bytes("selective", tp=8, sp=True) + 4 * 2048 * 96 // 8


def test_gated_grouped_query_layer_without_dropout() -> None:
    # Norm inputs and outputs 8h, q 2h, k and v 2h/4 each, core output 2h, gate and up 4f,
    # activation 2f bytes per token, with the q-k norm's inputs and 4 bytes per query head.
    shard = Shard.of(make_job(LLAMA))
    h, f, tokens = 256, 704, 64
    per_token = 8 * h + 2 * h + 2 * (2 * h // 4) + 2 * h + 4 * f + 2 * f
    per_token += 2 * h + 2 * h // 4 + 4 * 8
    assert layer_blocks(shard, DENSE_LAYER, "none")[0].saved_bytes == per_token * tokens


def test_fp8_keeps_inputs_of_linear_layers_at_one_byte() -> None:
    bf16 = layer_blocks(Shard.of(make_job(GPT175B, batch=8, tp=8, sp=True)), DENSE_LAYER, "none")
    fp8 = layer_blocks(
        Shard.of(make_job(GPT175B, batch=8, tp=8, sp=True, precision="fp8")), DENSE_LAYER, "none"
    )
    # Inputs of qkv, output projection and fc1 (h each) and fc2 (4h), sharded eightfold, halve;
    # attention then keeps its 16-bit output besides.
    assert bf16[0].saved_bytes - fp8[0].saved_bytes == (7 - 2) * 2048 * 12288 // 8


def test_what_software_keeps_of_a_layer_besides() -> None:
    plain = Shard.of(make_job(GPT175B, batch=16, tp=8, sp=True, micro_batch=2))
    whole = 2 * plain.tokens * 12288

    def kept(**changes: bool) -> int:
        ours, theirs = (
            layer_blocks(each, DENSE_LAYER, "none")[0] for each in (plain, changed(changes))
        )
        return theirs.saved_bytes - ours.saved_bytes

    def changed(changes: dict[str, bool]) -> Shard:
        return replace(plain, **changes)  # type: ignore[arg-type]

    # Two column-parallel layers keep seven more shares of their inputs.
    assert kept(keeps_gathered=True) == 2 * 7 * whole // 8


def test_eager_slices_without_rotation_are_not_written_again() -> None:
    learned, rotary = (Shard.of(make_job(model)) for model in (GPT175B, LLAMA))
    eager = [replace(shard, fusion="eager") for shard in (learned, rotary)]
    tags = [
        {tensor.tag for part in attention_parts(each, WHOLE) for tensor in part.saved}
        for each in eager
    ]
    assert ["packed_qk" in each for each in tags] == [False, True]


def every_block_pair(model: Model, **recipe: object) -> list[tuple[Block, Block]]:
    shard = Shard.of(make_job(model, **recipe))
    pairs = [embedding_blocks(shard), head_blocks(shard)]
    for recompute in ("none", "selective", "full"):
        for is_moe in {False, model.moe is not None}:
            pairs.append(layer_blocks(shard, plain_layer(is_moe), recompute))
    return pairs


RECIPES: list[dict[str, object]] = [
    {},
    {"tp": 4, "sp": True},
    {"tp": 4},
    {"cp": 2},
    {"tp": 2, "sp": True, "tp_comm_overlap": True, "precision": "fp8"},
    {"training": UNFUSED},
    {"tp": 2, "training": {"precision": "fp16", "fused_wgrad": False}},
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_backward_frees_what_the_forward_keeps(
    model: Model, recipe: dict[str, object]
) -> None:
    for forward, backward in every_block_pair(model, **recipe):
        kept = Counter((op.tag, op.bytes) for op in forward.ops if isinstance(op, Alloc))
        freed = Counter((op.tag, op.bytes) for op in backward.ops if isinstance(op, Free))
        assert kept == freed
        assert forward.saved_bytes + backward.saved_bytes == 0
        assert forward.peak_bytes >= forward.saved_bytes >= 0
        assert backward.peak_bytes >= 0


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("recipe", RECIPES)
def test_recomputing_more_keeps_less(model: Model, recipe: dict[str, object]) -> None:
    shard = Shard.of(make_job(model, **recipe))
    for is_moe in {False, model.moe is not None}:
        none, selective, full = (
            layer_blocks(shard, plain_layer(is_moe), mode)[0].saved_bytes
            for mode in ("none", "selective", "full")
        )
        assert none > selective > full > 0


@pytest.mark.parametrize("model", [MOE, MLA_MOE], ids=lambda model: model.name)
def test_expert_activations_follow_the_routed_tokens(model: Model) -> None:
    assert model.moe is not None
    one = layer_blocks(Shard.of(make_job(model)), EXPERT_LAYER, "none")[0]
    spread = layer_blocks(Shard.of(make_job(model, ep=8)), EXPERT_LAYER, "none")[0]
    # Balanced routing: a rank receives as many token copies as it sends, wherever experts are.
    assert one.saved_bytes == spread.saved_bytes


@pytest.mark.parametrize("model", [LLAMA, MLA_MOE], ids=lambda model: model.name)
@pytest.mark.parametrize("recipe", [{}, {"tp": 2}, {"tp": 2, "sp": True}, {"cp": 2}])
def test_transient_bytes_double_with_the_element(model: Model, recipe: dict[str, object]) -> None:
    # Without dropout every transient of these parts is made of activations.
    narrow = Shard.of(make_job(model, **recipe))
    wide = replace(narrow, precision="tf32")

    def parts(shard: Shard) -> list[Part]:
        width = model.ffn_hidden_size
        return [*attention_parts(shard, WHOLE), mlp_part(shard, width)]

    for small, large in zip(parts(narrow), parts(wide), strict=True):
        assert large.forward_peak_bytes == 2 * small.forward_peak_bytes
        assert large.backward_peak_bytes == 2 * small.backward_peak_bytes


def test_buckets_of_ddp_cut_compiled_layers_behind_large_weights() -> None:
    """A Llama layer under PyTorch 2.13's DDP, ``torch.compile``d, saves 20,480 bytes a token more
    with buckets of 25 and 50 MiB than of 100 to 500, at weights of 64; without a gate, none."""

    def saved(model: Model, bucket_mib: int, **facts: object) -> int:
        facts = {"fusion": "compiled", "torch_wrappers": True, "autocast": True, **facts}
        training = {"ddp_bucket_mib": bucket_mib, "accumulate_grads_fp32": False, **facts}
        shard = Shard.of(make_job(model, zero_stage=0, training=training))
        return sum(kept.bytes for kept in mlp_part(shard, 8192).saved) // shard.tokens

    llama = replace(LLAMA, hidden_size=2048)
    assert saved(llama, 50) - saved(llama, 100) == 20480
    # Whose buckets hold no frozen weights.
    assert saved(llama, 50, lora=Lora(8)) == saved(llama, 500, lora=Lora(8))
    # Replicas that are not DDP's.
    assert saved(llama, 0) == saved(llama, 100)
    assert saved(llama, 50, fusion="eager") == saved(llama, 100, fusion="eager")
    plain = replace(llama, gated_mlp=False)
    assert saved(plain, 50) == saved(plain, 100)
