"""8- and 4-bit operands: bytes and launches of every scaling recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulators.jobs import LLAMA, MOE, TINY, make_job
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.kernels.prices import price_kernels
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.layers import DENSE_LAYER, EXPERT_LAYER
from trainscout.simulators.predictor.question.training import ModulePrecision
from trainscout.simulators.predictor.question.tuning import Lora
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Attention,
    Collective,
    Gemm,
    GroupedGemm,
    Op,
    Streaming,
)
from trainscout.simulators.predictor.workload.linear_layers.quantise import quantise
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.model.ends import head_blocks
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.shard import Shard

GPUS = load_catalogue().gpus
HOPPER, BLACKWELL = GPUS["h100"], GPUS["b200"]


def shard_of(gpu: Gpu, precision: str, **recipe: object) -> Shard:
    return Shard.of(replace(make_job(TINY, precision=precision, **recipe), gpu=gpu))


def moved(ops: list[Op], kind: str) -> int:
    return sum(op.bytes for op in ops if isinstance(op, Streaming) and op.kind == kind)


@pytest.mark.parametrize(
    ("gpu", "precision", "cast", "looked_at"),
    [
        (HOPPER, "bf16", 0, 0),
        # Two bytes read, one written, one more transposed.
        (HOPPER, "fp8", 4, 0),
        (BLACKWELL, "fp8", 3, 0),
        # The tensor's own scale asks for a look at all of it first.
        (HOPPER, "fp8_current", 4, 2),
        (BLACKWELL, "fp8_current", 3, 2),
        # Both ways, and for each a scale for every 32 values, written, read and written.
        (BLACKWELL, "mxfp8", 4 + 6 / 32, 0),
        # Scales lie along either dimension.
        (HOPPER, "fp8_block", 4, 0),
    ],
)
def test_bytes_per_element(gpu: Gpu, precision: str, cast: float, looked_at: int) -> None:
    ops = quantise(shard_of(gpu, precision), "x", 4096)
    assert moved(ops, "cast") == cast * 4096
    assert moved(ops, "reduce") == looked_at * 4096


def test_what_makes_a_tensor_casts_it_where_its_scale_is_known_beforehand() -> None:
    def casts(precision: str) -> int:
        job = replace(
            make_job(TINY, precision=precision, training={"fuses_casts": True}), gpu=HOPPER
        )
        return moved(quantise(Shard.of(job), "x", 4096), "cast")

    assert casts("fp8") == 0
    assert casts("fp8_current") == 4 * 4096


@pytest.mark.parametrize(
    ("switches", "cast"),
    [
        # The largest value; a cast along each dimension: two bytes read, four bits and a scale
        # of eight for 16 values written; scales read and put in order.
        ({}, 2 + 2 * (2 + 9 / 16) + 4 / 16),
        ({"nvfp4_hadamard": False}, 2 + 2 + 2 * 9 / 16 + 4 / 16),
        ({"nvfp4_stochastic_rounding": False}, 2 + 2 * (2 + 9 / 16) + 4 / 16),
        # A frozen weight has no product along the other dimension.
        ({"lora": Lora(8)}, 2 + 2 + 9 / 16 + 2 / 16),
        # One kernel for both.
        ({"fused_fp4_casts": True}, 2 + 2 + 2 * 9 / 16 + 4 / 16),
    ],
)
def test_four_bits_are_read_twice_or_three_times(switches: dict, cast: float) -> None:
    fused = {"fused_fp4_casts": switches.pop("fused_fp4_casts", False)}
    job = replace(make_job(TINY, precision="nvfp4", training=switches), gpu=BLACKWELL)
    job = replace(job, framework=replace(job.framework, **fused))
    assert moved(quantise(Shard.of(job), "x", 4096), "cast_fp4") == cast * 4096


@pytest.mark.parametrize(
    ("precision", "dtype", "autocast_ms", "prequantised_ms"),
    [
        ("bf16", "bf16", 306.2, 314.4),
        ("fp8", "fp8", 187.2, None),
        ("fp8_current", "fp8", 219.5, 163.5),
        ("mxfp8", "mxfp8", 215.6, 171.9),
        ("nvfp4", "fp4", 154.8, 90.3),
    ],
)
def test_published_cost_of_few_bits(
    precision: str, dtype: str, autocast_ms: float, prequantised_ms: float | None
) -> None:
    """B300, 24 layers of 4096, 15,872 tokens: three products of each of four linear layers, both
    operands quantised before each (NVIDIA/TransformerEngine, gemm_profiling)."""
    gpu, tokens, layers = GPUS["b300"], 15872, 24
    shapes = [(4096, 12288), (4096, 4096), (4096, 16384), (16384, 4096)]
    products: list[Op] = []
    casts: list[Op] = []
    # What is quantised for one product alone has no second use.
    shard = replace(shard_of(gpu, precision), trains=False)
    for k, n in shapes:
        for m, columns, inner in ((tokens, n, k), (tokens, k, n), (k, n, tokens)):
            products.append(Gemm("x", m, columns, inner, dtype))
            casts += quantise(shard, "x", m * inner) + quantise(shard, "x", inner * columns)
    multiplied, quantised = (
        1e3 * layers * float(price_kernels(gpu, ops).seconds.sum()) if ops else 0.0
        for ops in (products, casts)
    )
    assert multiplied + quantised == pytest.approx(autocast_ms, rel=0.07)
    if prequantised_ms is not None:
        assert multiplied == pytest.approx(prequantised_ms, rel=0.04)


def test_ranks_agree_on_the_largest_value_before_they_gather() -> None:
    job = make_job(LLAMA, tp=2, sp=True, precision="nvfp4")
    forward, _ = layer_blocks(Shard.of(replace(job, gpu=BLACKWELL)), DENSE_LAYER, "none")
    agreed = [op for op in forward.ops if getattr(op, "name", "").endswith("_amax_max")]
    gathers = [op for op in forward.ops if isinstance(op, Collective) and op.kind == "all_gather"]
    assert len(agreed) == len(gathers) == 2
    assert [op.bytes for op in gathers] == [64 * 256 * 9 // 16] * 2


def test_layers_at_the_ends_stay_in_16_bits() -> None:
    model = replace(LLAMA, num_layers_at_start_in_bf16=1, num_layers_at_end_in_bf16=3)
    job = replace(make_job(model, pp=2, precision="nvfp4"), gpu=BLACKWELL)
    stages = build_workload(job).stages
    dtypes = [
        [
            (op.dtype, run.count)
            for run in stage.chunks[0].runs
            for op in run.forward.ops
            if isinstance(op, Gemm) and op.name == "fc1_fwd"
        ]
        for stage in stages
    ]
    assert [sorted(each) for each in dtypes] == [
        [("bf16", 1), ("fp4", 5)],
        [("bf16", 3), ("fp4", 3)],
    ]
    whole = make_job(replace(model, num_layers_at_start_in_bf16=0), pp=2)
    assert step_flops(whole).model == step_flops(make_job(LLAMA, pp=2)).model


MIXED = ModulePrecision(qkv="bf16", attn_out="bf16", shared_experts="mxfp8", mtp="bf16")


def test_groups_of_layers_have_a_precision_of_their_own() -> None:
    shared = replace(MOE, moe=replace(MOE.moe, shared_ffn_hidden_size=512), num_mtp_layers=1)
    job = make_job(shared, precision="nvfp4", training={"module_precision": MIXED})
    job = replace(job, gpu=BLACKWELL)
    runs = build_workload(job).stages[0].chunks[0].runs
    found = [
        {op.name: op.dtype for op in run.forward.ops if isinstance(op, Gemm | GroupedGemm)}
        for run in runs
        if run.forward.name == "moe_layer_forward"
    ]
    within, ahead = found[0], found[-1]
    assert {within["qkv_fwd"], within["attention_output_fwd"]} == {"bf16"}
    assert (within["shared_fc1_fwd"], within["expert_fc1_fwd"]) == ("mxfp8", "fp4")
    assert set(ahead.values()) == {"bf16"}
    layer = next(run for run in runs if run.forward.name == "moe_layer_forward")
    hidden, heads = shared.hidden_size, shared.qk_head_dim * shared.num_heads
    plain = replace(job, training=replace(job.training, module_precision=ModulePrecision()))
    alike = next(
        run
        for run in build_workload(plain).stages[0].chunks[0].runs
        if run.forward.name == "moe_layer_forward"
    )
    kept = hidden * (2 * heads + 2 * shared.kv_heads * shared.qk_head_dim)
    quantised = [each.parameters.quantised.dense for each in (alike, layer)]
    assert quantised[0] - quantised[1] == kept
    sixteen = (
        replace(each, recipe=replace(each.recipe, precision="bf16")) for each in (job, plain)
    )
    assert len({Shard.of(each) for each in sixteen}) == 1


def test_what_single_layers_multiply_in_is_checked() -> None:
    job = replace(make_job(TINY, precision="fp8"), gpu=HOPPER)
    asked = replace(job.training, module_precision=ModulePrecision(mlp="nvfp4"))
    with pytest.raises(InputError, match=r"module_precision\.mlp is nvfp4, and .*no nvfp4"):
        check_job(replace(job, training=asked))
    with pytest.raises(InputError) as caught:
        ModulePrecision(mlp="fp16").check()
    assert caught.value.field == "training.module_precision.mlp"


def test_experts_share_a_quantisation_of_their_inputs() -> None:
    job = replace(make_job(MOE, precision="fp8_current", ep=2), gpu=HOPPER)
    forward, _ = layer_blocks(Shard.of(job), EXPERT_LAYER, "none")
    by_name = {op.name: op for op in forward.ops if isinstance(op, Streaming)}
    # 64 tokens, two experts each, 256 wide: read twice, written in both layouts.
    assert by_name["expert_fc1_fwd_amax"].bytes == 64 * 2 * 256 * 2
    assert by_name["expert_fc1_fwd_cast"].bytes == 64 * 2 * 256 * 4
    grouped = [op for op in forward.ops if isinstance(op, GroupedGemm)]
    assert {op.dtype for op in grouped} == {"fp8"}


def test_experts_are_scaled_one_by_one_where_scales_are_of_tensors() -> None:
    # Eight kernels made from C++ take what a launch takes; where scales are old, one is for all.
    many = replace(MOE, moe=replace(MOE.moe, num_experts=16))
    for precision, launches in (("fp8_current", {"amax": 5, "cast": 3}), ("fp8", {"cast": 1})):
        job = replace(make_job(many, precision=precision), gpu=HOPPER)
        forward, _ = layer_blocks(Shard.of(job), EXPERT_LAYER, "none")
        name = "expert_fc1_fwd_"
        made = {
            op.name.removeprefix(name): op.launches
            for op in forward.ops
            if isinstance(op, Streaming) and op.name.startswith(name)
        }
        assert made == launches


@pytest.mark.parametrize("gpu", [HOPPER, BLACKWELL], ids=lambda gpu: gpu.name)
def test_gathers_travel_in_8_bits_and_sums_in_16(gpu: Gpu) -> None:
    job = make_job(LLAMA, tp=2, sp=True)
    wide, narrow = (
        layer_blocks(
            Shard.of(replace(job, gpu=gpu, recipe=replace(job.recipe, precision=precision))),
            DENSE_LAYER,
            "none",
        )
        for precision in ("bf16", "fp8")
    )
    for one, other in zip(wide, narrow, strict=True):
        for kind, ratio in (("all_gather", 2), ("reduce_scatter", 1)):
            full, small = (
                sum(op.bytes for op in block.ops if isinstance(op, Collective) and op.kind == kind)
                for block in (one, other)
            )
            assert full == ratio * small > 0
    # What was gathered is transposed where it must be, all tokens at one byte, both ways.
    transposed = [op for op in narrow[1].ops if getattr(op, "name", "").endswith("_transpose")]
    hidden_and_tokens = 256 * 64
    expected = 4 * [2 * hidden_and_tokens] if gpu is HOPPER else []
    assert [op.bytes for op in transposed if isinstance(op, Streaming)] == expected


def test_fused_experts_leave_nothing_between_their_layers() -> None:
    job = replace(make_job(MOE, precision="mxfp8", ep=2), gpu=BLACKWELL)
    apart = Shard.of(job)
    fused = replace(apart, fused_experts=True)
    gone = []
    for one, other in zip(
        layer_blocks(apart, EXPERT_LAYER, "none"),
        layer_blocks(fused, EXPERT_LAYER, "none"),
        strict=True,
    ):
        names = [
            {op.name for op in block.ops if isinstance(op, Streaming)} for block in (one, other)
        ]
        gone.append(names[0] - names[1])
        products = [op for op in other.ops if isinstance(op, GroupedGemm)]
        assert products
        assert all(op.one_kernel for op in products)
        casts = [op for op in other.ops if isinstance(op, Streaming) and op.name.endswith("_cast")]
        assert [op.launches for op in casts if op.name.startswith("expert")] == [3]
    assert gone == [
        {"expert_activation_fwd", "expert_fc2_fwd_cast"},
        {"expert_activation_bwd", "expert_fc1_bwd_cast"},
    ]


def test_a_fused_router_launches_little() -> None:
    shard = Shard.of(make_job(MOE))
    launches = []
    for each in (shard, replace(shard, fused_router=True)):
        forward, backward = layer_blocks(each, EXPERT_LAYER, "none")
        kernels = [op for op in (*forward.ops, *backward.ops) if isinstance(op, Streaming)]
        launches.append([op.launches for op in kernels if op.name.startswith("router_scores")])
    # As recorded from Megatron-Core 0.16, and its fused kernels.
    assert launches == [[26, 14], [3, 3]]


def test_weights_gathered_in_16_bits_are_quantised_in_each_forward_pass() -> None:
    def casts(
        zero_stage: int, quantises: bool, precision: str = "fp8", gathered: bool = False
    ) -> dict[str, int]:
        job = make_job(TINY, precision=precision, zero_stage=zero_stage)
        framework = replace(job.framework, quantises_each_pass=quantises)
        recipe = replace(job.recipe, fp8_param_gather=gathered)
        job = replace(job, gpu=HOPPER, framework=framework, recipe=recipe)
        runs = build_workload(job).stages[0].chunks[0].runs
        return {
            op.name: op.bytes
            for run in runs
            for op in run.forward.ops
            if isinstance(op, Streaming) and op.name.endswith("_weight_cast")
        }

    found = casts(3, quantises=True)
    # Read at two bytes, written at one in both layouts.
    hidden, inner = TINY.hidden_size, TINY.ffn_hidden_size
    assert found["fc1_weight_cast"] == found["fc2_weight_cast"] == 4 * hidden * inner
    assert set(found) == {f"{at}_weight_cast" for at in ("qkv", "attention_output", "fc1", "fc2")}
    # What is gathered again for each pass is quantised again, whoever does it.
    assert casts(3, quantises=False) == found
    assert not casts(3, quantises=True, gathered=True)
    # Weights that stay are quantised once a step, but by software that does so in each pass.
    assert not casts(1, quantises=False)
    assert casts(1, quantises=True) == found
    assert not casts(3, quantises=True, precision="bf16")


def attention_of(shard: Shard) -> tuple[list[str], int]:
    """The types that a layer's attention multiplies, and the bytes that are cast for it."""
    ops = [op for block in layer_blocks(shard, DENSE_LAYER, "none") for op in block.ops]
    cast = [op for op in ops if isinstance(op, Streaming) and op.name.startswith("core_")]
    return [op.dtype for op in ops if isinstance(op, Attention)], sum(op.bytes for op in cast)


@pytest.mark.parametrize("precision", ["mxfp8", "nvfp4"])
def test_attention_in_8_bits_casts_what_it_multiplies(precision: str) -> None:
    """Queries, keys, values and the output's gradient, by blocks of 32 along either dimension."""
    plain = shard_of(GPUS["gb300"], precision)
    low = shard_of(GPUS["gb300"], precision, fp8_dot_product_attention=True)
    assert attention_of(plain) == (["bf16", "bf16"], 0)
    elements = low.tokens * low.model.qk_head_dim * (2 * low.heads + 2 * low.kv_heads)
    assert attention_of(low) == (["mxfp8", "mxfp8"], (4 + 6 / 32) * elements)
    layers_in_16 = replace(low, precision="bf16")
    assert attention_of(layers_in_16)[0] == ["bf16", "bf16"]


@pytest.mark.parametrize(("precision", "output"), [("fp8", 1), ("fp8_current", 2)])
def test_attention_with_one_scale_a_tensor_keeps_8_bits(precision: str, output: int) -> None:
    """With delayed scales it writes them, too: its output and gradients of operands are cast."""
    low = shard_of(GPUS["gb300"], precision, fp8_dot_product_attention=True)
    queries = low.tokens * low.model.qk_head_dim * low.heads
    operands = queries + 2 * low.tokens * low.model.qk_head_dim * low.kv_heads
    assert attention_of(low)[1] == (6 if precision == "fp8" else 5) * (operands + queries)
    forward = layer_blocks(low, DENSE_LAYER, "none")[0].ops
    kept = {op.tag: op.bytes for op in forward if isinstance(op, Alloc)}
    assert kept["q"] + kept["k"] + kept["v"] == operands
    assert kept["core_output"] == output * queries


def test_logits_are_a_product_of_8_bits_where_they_are_told_to_be() -> None:
    def logits(**recipe: object) -> set[str]:
        blocks = head_blocks(shard_of(GPUS["gb300"], "mxfp8", **recipe))
        ops = [op for block in blocks for op in block.ops]
        return {op.dtype for op in ops if isinstance(op, Gemm)}

    assert logits() == {"bf16"}
    assert logits(fp8_output_proj=True) == {"mxfp8"}
