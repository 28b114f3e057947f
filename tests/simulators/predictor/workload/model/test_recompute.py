"""What selective recomputation keeps and runs again, by module and by operation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.jobs import GPT175B, LLAMA, MLA_MOE, MODELS, MOE, SSM, make_job
from tests.simulators.predictor.workload.blocks import flops
from trainscout.simulators.predictor.question.knobs.recomputation import (
    DEFAULT_RECOMPUTE_MODULES,
    RECOMPUTE_MODULES,
)
from trainscout.simulators.predictor.question.layers import DENSE_LAYER, Layer, Mixer, plain_layer
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Attention,
    Block,
    Free,
    Gemm,
    GroupedGemm,
)
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.shard import Shard

LLAMA_8B = replace(
    LLAMA,
    name="llama3_8b",
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_query_groups=8,
    ffn_hidden_size=14336,
    vocab_size=128256,
    sequence_length=8192,
    qk_norm=False,
)


def blocks(model: Model, modules: str, **recipe: Any) -> tuple[Block, Block]:
    shard = Shard.of(make_job(model, **recipe))
    is_moe = model.is_moe_layer(model.num_layers - 1)
    return layer_blocks(shard, plain_layer(is_moe), "selective", modules)


def test_per_operation_policy_of_a_llama_layer() -> None:
    # Bytes a token: the layer's input, query, attention output, gate and down products at 2 bytes,
    # the value of 8 heads of 128, and one fp32 statistic a head.
    forward, backward = blocks(LLAMA_8B, "operations")
    per_token = 2 * (4096 + 4096 + 1024 + 4096 + 14336 + 4096) + 4 * 32
    assert forward.saved_bytes == per_token * 8192
    # Key, output and up projections run again; attention does not.
    plain = layer_blocks(Shard.of(make_job(LLAMA_8B)), DENSE_LAYER, "none")[1]
    again = 8192 * 4096 * (1024 + 4096 + 14336)
    assert flops(backward) - flops(plain) == 2 * again
    assert not any(isinstance(op, Attention) and op.pass_ == "fwd" for op in backward.ops)


def test_per_operation_policy_that_keeps_each_product() -> None:
    # Besides the key, output and up products; not the down one, which the next layer begins with.
    training = {"saves_each_product": True}
    forward, backward = blocks(LLAMA_8B, "operations", training=training)
    per_token = 2 * (4096 + 4096 + 2 * 1024 + 4096 + 4096 + 2 * 14336) + 4 * 32
    assert forward.saved_bytes == per_token * 8192
    plain = layer_blocks(Shard.of(make_job(LLAMA_8B)), DENSE_LAYER, "none")[1]
    assert flops(backward) == flops(plain)


def test_what_keeps_each_product_keeps_latents_and_makes_those_of_experts_again() -> None:
    training = {"saves_each_product": True}
    forward, backward = blocks(MLA_MOE, "operations", training=training)
    kept = {op.tag for op in forward.ops if isinstance(op, Alloc)}
    # No product that runs once may be missing, none that runs again need be there.
    assert {"q_norm_input", "kv_norm_input", "k", "shared_fc1_output"} <= kept
    assert "expert_fc1_output" not in kept
    again = [op.name for op in backward.ops if isinstance(op, Gemm | GroupedGemm)]
    again = [name for name in again if name.endswith("_fwd")]
    assert again == ["expert_fc1_fwd", "expert_fc2_fwd"]


def test_per_operation_policy_keeps_no_product_of_four_bits() -> None:
    # The layer's input, attention's output, and one fp32 statistic a head; all but the down
    # projection, whose output is the next layer's input, run again.
    forward, backward = blocks(LLAMA_8B, "operations", precision="nvfp4")
    assert forward.saved_bytes == (2 * (4096 + 4096) + 4 * 32) * 8192
    plain = layer_blocks(Shard.of(make_job(LLAMA_8B, precision="nvfp4")), DENSE_LAYER, "none")[1]
    again = 8192 * 4096 * (4096 + 2 * 1024 + 4096 + 2 * 14336)
    assert flops(backward) - flops(plain) == 2 * again


def test_per_operation_policy_recomputes_a_layer_at_once() -> None:
    # What was dropped is all back before the first gradient, unlike module by module.
    forward, backward = blocks(LLAMA_8B, "operations")
    plain = layer_blocks(Shard.of(make_job(LLAMA_8B)), DENSE_LAYER, "none")[0]
    assert backward.peak_bytes > plain.saved_bytes - forward.saved_bytes


@pytest.mark.parametrize(
    ("modules", "dropped"),
    [
        ("mlp", {"mlp_norm_output", "fc1_output", "activation"}),
        # Transformer Engine's projections make their norms themselves.
        ("layernorm", set()),
        ("core_attn", {"logsumexp"}),
        ("attn_out", {"attention_output_input"}),
        ("mlp+core_attn", {"mlp_norm_output", "fc1_output", "activation", "logsumexp"}),
    ],
)
def test_modules_drop_their_tensors(modules: str, dropped: set[str]) -> None:
    def kept(block: Block) -> dict[str, int]:
        return {op.tag: op.bytes for op in block.ops if isinstance(op, Alloc)}

    plain = kept(layer_blocks(Shard.of(make_job(LLAMA)), DENSE_LAYER, "none")[0])
    recomputed = kept(blocks(LLAMA, modules)[0])
    assert plain.keys() - recomputed.keys() == dropped
    assert all(plain[tag] == size for tag, size in recomputed.items())


def test_a_policy_that_runs_the_residual_stream_again_does_not_keep_it() -> None:
    job = make_job(LLAMA, training={"fusion": "compiled"})
    kept = [
        {
            op.tag
            for op in layer_blocks(Shard.of(job), DENSE_LAYER, "selective", modules)[0].ops
            if isinstance(op, Alloc)
        }
        for modules in ("layernorm", "layernorm+attn_out")
    ]
    assert "mlp_norm_input" in kept[0]
    assert kept[1] == kept[0] - {"mlp_norm_input", "attention_output_input"}


def test_norms_that_are_modules_of_their_own_are_recomputed() -> None:
    def dropped(model: Model, mixer: str = "", **software: str) -> set[str]:
        shard = Shard.of(make_job(model, training=software))
        layer = Layer(mixer, "none") if mixer else plain_layer(model.moe is not None)
        plain, again = (
            {op.tag for op in layer_blocks(shard, layer, *mode)[0].ops if isinstance(op, Alloc)}
            for mode in (("none",), ("selective", "layernorm"))
        )
        return plain - again

    both = {"attention_norm_output", "mlp_norm_output"}
    assert dropped(LLAMA, attention="unfused") == dropped(LLAMA, fusion="compiled") == both
    assert dropped(MOE) == {"mlp_norm_output"}
    assert dropped(MLA_MOE) >= both
    # In front of a scan the projection makes it; layers of mixers alone have nothing to run again.
    scan = replace(LLAMA, layers=f"{LLAMA.num_layers}*x/none", kinds={"x": Mixer(mamba2=SSM)})
    assert dropped(scan, mixer="x") == set()


def test_unfused_attention_core_is_the_default() -> None:
    job = make_job(GPT175B, training={"attention": "unfused"})
    default = layer_blocks(Shard.of(job), DENSE_LAYER, "selective")
    assert default == layer_blocks(
        Shard.of(job), DENSE_LAYER, "selective", DEFAULT_RECOMPUTE_MODULES
    )
    assert not any("softmax" in op.tag for op in default[0].ops if isinstance(op, Alloc))


MODULES = [name for name in RECOMPUTE_MODULES if name != "operations"]


@given(
    model=st.sampled_from(MODELS),
    chosen=st.one_of(
        st.sets(st.sampled_from(MODULES), min_size=1).map("+".join), st.just("operations")
    ),
    tp=st.sampled_from([1, 2]),
    fusion=st.sampled_from(["fused", "compiled", "eager"]),
    precision=st.sampled_from(["bf16", "fp8", "nvfp4"]),
)
def test_between_nothing_and_everything(
    model: Model, chosen: str, tp: int, fusion: str, precision: str
) -> None:
    job = make_job(
        model, tp=tp, sp=tp > 1, micro_batch=2, precision=precision, training={"fusion": fusion}
    )
    shard, is_moe = Shard.of(job), model.moe is not None
    none, full = (layer_blocks(shard, plain_layer(is_moe), mode) for mode in ("none", "full"))
    forward, backward = layer_blocks(shard, plain_layer(is_moe), "selective", chosen)
    # Per operation keeps products that nothing but recomputation needs.
    if chosen != "operations":
        assert full[0].saved_bytes <= forward.saved_bytes <= none[0].saved_bytes
        assert len(none[1].ops) <= len(backward.ops) + len(none[0].ops)
    assert flops(none[1]) <= flops(backward) <= flops(full[1])
    taken = Counter({op.tag: op.bytes for op in forward.ops if isinstance(op, Alloc)})
    assert taken == Counter({op.tag: op.bytes for op in backward.ops if isinstance(op, Free)})
    assert forward.saved_bytes == -backward.saved_bytes
    assert forward.peak_bytes >= forward.saved_bytes


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ({"recompute": "full", "recompute_modules": "mlp"}, "needs recompute=selective"),
        ({"recompute": "selective", "recompute_modules": "mlp+mpl"}, "mpl is not one of"),
        ({"recompute": "selective", "recompute_modules": "operations+mlp"}, "stands alone"),
    ],
)
def test_modules_that_mean_nothing(recipe: dict[str, Any], says: str) -> None:
    violation = why_invalid(make_job(MLA_MOE, **recipe))
    assert violation is not None
    assert violation.field == "recompute_modules"
    assert says in violation.reason


def test_operations_keeps_what_flash_attention_made() -> None:
    recipe: dict[str, Any] = {"recompute": "selective", "recompute_modules": "operations"}
    violation = why_invalid(make_job(LLAMA, training={"attention": "unfused"}, **recipe))
    assert violation is not None
    assert "flash" in violation.reason


@pytest.mark.parametrize("model", [LLAMA, GPT175B, MOE], ids=lambda model: model.name)
@pytest.mark.parametrize("recompute", [("full", "core_attn"), ("selective", "mlp+moe")])
def test_the_last_product_of_a_layer_is_not_made_again(
    model: Model, recompute: tuple[str, str]
) -> None:
    mode, modules = recompute
    whole = Shard.of(make_job(model, batch=8, tp=2, sp=True))
    early = replace(whole, recompute_stops_early=True)
    experts = model.moe is not None
    ours, theirs = (
        layer_blocks(shard, plain_layer(experts), mode, modules)[1].ops for shard in (early, whole)
    )
    missing = [op.name for op in theirs if op not in ours]
    # The product that ends the layer, what reduces or combines it, and the residual's addition.
    assert [name for name in missing if name.endswith("fc2_fwd")]
    assert not any(name.endswith(("dgrad", "wgrad")) for name in missing)
    assert not {"qkv_fwd", "fc1_fwd", "expert_fc1_fwd"} & set(missing)
    forward = [op for op in ours if getattr(op, "name", "").endswith("_fwd")]
    assert len(forward) < len([op for op in theirs if getattr(op, "name", "").endswith("_fwd")])


@pytest.mark.parametrize(
    ("fused_norm", "stops_early", "beside"),
    [(True, True, -1), (True, False, 0), (False, True, 0), (False, False, 1)],
)
def test_a_recomputed_layer_holds_its_result_and_its_input_once(
    fused_norm: bool, stops_early: bool, beside: int
) -> None:
    """But of an RMSNorm in operations, which keeps a copy of its input."""
    training = {"fusion": "eager", "fused_norm": fused_norm, "recompute_stops_early": stops_early}
    shard = Shard.of(make_job(LLAMA_8B, training=training))
    forward, backward = layer_blocks(shard, DENSE_LAYER, "none")
    _, again = layer_blocks(shard, DENSE_LAYER, "full")
    saved = sum(op.bytes for op in forward.ops if isinstance(op, Alloc))
    hidden = shard.local_tokens * shard.model.hidden_size * shard.stream_bytes
    assert again.peak_bytes == saved + backward.peak_bytes + beside * hidden
