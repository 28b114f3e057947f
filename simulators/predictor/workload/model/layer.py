"""One transformer layer as a forward and a backward block, for each recompute mode."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainscout.simulators.predictor.question.knobs.recomputation import DEFAULT_RECOMPUTE_MODULES
from trainscout.simulators.predictor.question.layers import ATTENTION, MOE, NONE, Layer, Mixer
from trainscout.simulators.predictor.question.tuning import PACKED
from trainscout.simulators.predictor.workload.feed_forward.mlp import mlp_part
from trainscout.simulators.predictor.workload.feed_forward.moe import moe_parts
from trainscout.simulators.predictor.workload.ir import (
    CACHED,
    Alloc,
    Block,
    Gemm,
    GroupedGemm,
    Op,
    Streaming,
)
from trainscout.simulators.predictor.workload.linear_layers.adapters import (
    adapter_products,
    column_input_bytes,
    folds,
    latent_bytes,
    norm_bytes,
    norms,
)
from trainscout.simulators.predictor.workload.linear_layers.frozen_weights import with_unpacked
from trainscout.simulators.predictor.workload.linear_layers.quantise import weight_copies
from trainscout.simulators.predictor.workload.mixers.attention import attention_parts
from trainscout.simulators.predictor.workload.mixers.compressed_attention import compressed_parts
from trainscout.simulators.predictor.workload.mixers.cross_attention import cross_parts
from trainscout.simulators.predictor.workload.mixers.delta_net import delta_parts
from trainscout.simulators.predictor.workload.mixers.state_space import (
    mamba1_parts,
    mamba2_parts,
    short_conv_parts,
)
from trainscout.simulators.predictor.workload.parameters import LocalParameters, layer_parameters
from trainscout.simulators.predictor.workload.part import (
    ATTENTION_RESIDUAL,
    Part,
    beside_rerun_bytes,
    checkpointed,
    compose,
    hidden_norm,
    norm,
    residual,
)
from trainscout.simulators.predictor.workload.residual_stream.alternating_updates import (
    correct_parts,
    laurel_part,
    others_part,
    predict_parts,
)
from trainscout.simulators.predictor.workload.residual_stream.hyper_connections import (
    read_part,
    write_part,
)
from trainscout.simulators.predictor.workload.residual_stream.per_layer_input import layer_part
from trainscout.simulators.predictor.workload.shard import Shard

from .diffusion import diffusion_layer_parameters, diffusion_layer_parts
from .recompute import OPERATIONS, recompute_parts

_PARTS: Mapping[str, Callable[[Shard, Any], list[Part]]] = {
    "attention": attention_parts,
    "mamba2": mamba2_parts,
    "delta": delta_parts,
    "mamba1": mamba1_parts,
    "short_conv": short_conv_parts,
    "compressed": compressed_parts,
    "cross": cross_parts,
}


def mixer_parts(shard: Shard, mixer: Mixer) -> list[Part]:
    """The parts of one mixer, norm to output projection; those in parallel share the norm, and
    run one after another."""
    hidden = shard.model.hidden_size
    parts = [hidden_norm(shard, "attention_norm", column_input_bytes(shard, "qkv"))]
    parallel = len(mixer.parts)
    for name, part in mixer.parts.items():
        parts += _PARTS[name](shard, part)
    if parallel > 1:
        # Outputs are added up, and so are the gradients of what they share.
        moved = (parallel + 1) * shard.local_tokens * hidden * shard.element_bytes
        sums = Streaming("mixers_sum", "elementwise", moved)
        parts.append(Part((sums,), (Streaming("mixers_grad_sum", "elementwise", moved),)))
    return parts


@functools.lru_cache(maxsize=4096)
def layer_blocks(
    shard: Shard, layer: Layer, recompute: str, modules: str = DEFAULT_RECOMPUTE_MODULES
) -> tuple[Block, Block]:
    """Forward and backward of one layer.

    Args:
        shard: local sizes.
        layer: its mixer and MLP.
        recompute: ``none``, ``selective`` or ``full``.
        modules: what ``selective`` recomputes, joined by ``+``.
    """
    shard, name = layer_shard(shard, layer), layer_name(layer)
    parts = layer_parts(shard, layer)
    if recompute == "full":
        input_bytes = shard.local_tokens * shard.model.residual_width * shard.stream_bytes
        early, beside = shard.recompute_stops_early, beside_rerun_bytes(shard)
        stays = 0
        if shard.keeps_router_graph and layer.mlp == MOE:
            router = next(at for at, part in enumerate(parts) if part.module == "moe")
            stays = sum(part.saved_bytes for part in parts[: router + 1])
        forward, backward = checkpointed(
            name, parts, input_bytes, beside_bytes=beside, stops_early=early, stays_bytes=stays
        )
        copies = sum(each.bytes for each in weight_copies(shard, _forward(parts)))
        if copies:
            forward = replace(forward, ops=(*forward.ops, Alloc(CACHED, copies)))
        return forward, backward
    if recompute == "selective":
        chosen = frozenset(modules.split("+"))
        at_once = OPERATIONS in chosen
        return compose(name, recompute_parts(shard, parts, chosen), rerun_at_once=at_once)
    return compose(name, parts)


def layer_shard(shard: Shard, layer: Layer) -> Shard:
    """A rank's share as the layer computes it."""
    if layer.bf16 and shard.is_quantised:
        shard = replace(shard, precision="bf16")
    return shard.for_layer(layer)


def layer_name(layer: Layer) -> str:
    """What its blocks are called, less the direction."""
    name = "moe_layer" if layer.mlp == MOE else "layer"
    return name if layer.mixer == ATTENTION else f"{layer.mixer}_{name}"


def trained_layer_parameters(shard: Shard, layer: Layer) -> LocalParameters:
    """One layer's parameters on one rank, its adapters' beside them."""
    diffusion = shard.model.diffusion is not None
    held = diffusion_layer_parameters if diffusion else layer_parameters
    parameters = held(shard, layer)
    if parameters.quantised is not None and shard.module_precision:
        quantised = parameters.quantised + _kept_weights(shard, layer).times(-1)
        parameters = parameters._replace(quantised=quantised)
    parameters = parameters.as_trained(shard)
    if shard.lora is None:
        return parameters
    ops = _forward(layer_parts(shard, layer))
    magnitudes = sum(op.n for op in norms(ops))
    stacked = sum(op.batch * op.k * (op.m + op.n) for op in folds(ops))
    return parameters + _weights(adapter_products(ops)) + LocalParameters(magnitudes, stacked)


def _kept_weights(shard: Shard, layer: Layer) -> LocalParameters:
    """Weights that multiply in 16 bits where those of other linear layers do not."""
    return _weights(
        op
        for op in set(_forward(layer_parts(shard, layer)))
        if isinstance(op, Gemm | GroupedGemm)
        and op.dtype == shard.dtype
        and not shard.of_product(op.name.removesuffix("_fwd")).is_quantised
    )


def _weights(products: Iterable[Gemm | GroupedGemm]) -> LocalParameters:
    """Those that forward products multiply."""
    dense = expert = 0
    for op in products:
        if isinstance(op, Gemm):
            dense += op.n * op.k
        else:
            expert += op.groups * op.n * op.k
    return LocalParameters(dense, expert)


def _forward(parts: Iterable[Part]) -> tuple[Op, ...]:
    return tuple(op for part in parts for op in part.forward)


@functools.lru_cache(maxsize=1024)
def layer_parts(shard: Shard, layer: Layer) -> tuple[Part, ...]:
    """The parts of one layer, mixer first."""
    if shard.model.diffusion is not None:
        own = diffusion_layer_parts(shard, layer)
        return (*own, *_kept_of_weights(shard, own))
    shard = shard.for_layer(layer)
    model, parts = shard.model, list[Part]()
    alternates = model.laurel_rank is not None
    mixer, several = model.mixer(layer), model.residual_streams > 1 and not alternates
    written = write_part if several else residual
    parts += predict_parts(shard) if alternates else []
    for each in () if mixer is None else mixer.in_turn:
        parts += [read_part(shard, "attention_streams")] * several
        parts += mixer_parts(shard, each)
        if model.inner_norms and each.attention is not None:
            width = shard.heads * model.v_head_dim
            parts.append(norm(shard, "attention_inner_norm", shard.tokens, width, keep_output=0))
        if model.post_norms:
            parts.append(hidden_norm(shard, "attention_post_norm", 0))
        parts.append(written(shard, ATTENTION_RESIDUAL))
        if alternates:
            parts.append(laurel_part(shard))
    if layer.mlp != NONE:
        parts += [read_part(shard, "mlp_streams")] * several
        has_experts = layer.mlp == MOE
        reader = "shared_fc1" if has_experts and not shard.trains else "fc1"
        parts.append(hidden_norm(shard, "mlp_norm", column_input_bytes(shard, reader)))
        parts += moe_parts(shard) if has_experts else [mlp_part(shard, model.ffn_hidden_size)]
        if model.inner_norms and not has_experts:
            width = model.ffn_hidden_size
            parts.append(norm(shard, "mlp_inner_norm", shard.tokens, width, keep_output=0))
        if model.post_norms:
            parts.append(hidden_norm(shard, "mlp_post_norm", 0))
        parts.append(written(shard, "mlp_residual"))
    parts += correct_parts(shard) if alternates else []
    if model.per_layer_input is not None:
        parts.append(layer_part(shard, model.per_layer_input))
        parts.append(hidden_norm(shard, "layer_input_norm", 0))
        added = others_part(shard) if alternates else residual(shard, "layer_input_residual")
        parts.append(added)
    if shard.frozen_weights in PACKED:
        parts = with_unpacked(shard, parts)
    if shard.lora is not None and shard.lora.dora:
        parts = [
            replace(
                part, forward_peak_bytes=part.forward_peak_bytes + norm_bytes(shard, part.forward)
            )
            for part in parts
        ]
    return (*parts, *_kept_of_weights(shard, parts))


def _kept_of_weights(shard: Shard, parts: Sequence[Part]) -> list[Part]:
    """What a layer's adapters keep between their factors, or autocast of its weights."""
    ops = _forward(parts)
    kept = weight_copies(shard, ops)
    if shard.lora is not None:
        kept += (Alloc("lora_latent", latent_bytes(shard, ops)),)
    return [Part((), (), kept)] if kept else []
