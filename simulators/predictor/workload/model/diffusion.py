"""Layers and ends of diffusion transformers (Peebles and Xie 2022; Wan 2.1; Flux.1).

A layer's norms have no weights: their outputs are scaled and shifted, and what attention and MLP
add is multiplied by a gate, by vectors that follow from the time step (adaLN). Where software has
compiled or fused kernels, norm and modulation are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from trainscout.simulators.predictor.question.diffusion import JOINT, OWN, Diffusion
from trainscout.simulators.predictor.question.layers import AttentionMixer, Layer
from trainscout.simulators.predictor.workload.feed_forward.mlp import mlp_part
from trainscout.simulators.predictor.workload.ir import Alloc, Op, Streaming
from trainscout.simulators.predictor.workload.linear_layers.adapters import column_input_bytes
from trainscout.simulators.predictor.workload.linear_layers.linear import bias_grad, linear
from trainscout.simulators.predictor.workload.mixers.attention import core, output, projection
from trainscout.simulators.predictor.workload.mixers.cross_attention import (
    cross_parts,
    looked_at_part,
)
from trainscout.simulators.predictor.workload.parameters import LocalParameters
from trainscout.simulators.predictor.workload.part import (
    ATTENTION_RESIDUAL,
    Part,
    hidden_norm,
    residual,
)
from trainscout.simulators.predictor.workload.shard import Shard

# Vectors of a layer: a scale, a shift and a gate for each of two halves, or for one where
# attention and MLP run in parallel, by where its text is (None: looked at across); the last norm
# has a scale and a shift.
_VECTORS: dict[str | None, int] = {None: 6, OWN: 12, JOINT: 3}
_LAST_VECTORS = 2


def text_tokens(shard: Shard) -> int:
    """Tokens of the text on this context-parallel rank, where it is cut as latents are."""
    return _diffusion(shard).text_tokens // shard.cp


def diffusion_layer_parts(shard: Shard, layer: Layer) -> tuple[Part, ...]:
    """The parts of one layer, by where its text is."""
    attention = _attention(shard, layer)
    parts = list[Part]()
    if _diffusion(shard).modulation == "layers":
        parts.append(_modulation(shard, _VECTORS[attention.text]))
    if attention.text == JOINT:
        reader = _modulated_norm(shard, "attention_norm", "qkv")
        parts += [reader, *projection(shard, attention), core(shard, attention), output(shard)]
        parts += [mlp_part(shard, shard.model.ffn_hidden_size), _gated(shard, ATTENTION_RESIDUAL)]
        return tuple(parts)
    streams = [shard]
    if attention.text == OWN:
        text = text_tokens(shard)
        streams = [_of(shard, shard.sequence - text), _of(shard, text)]
    for each in streams:
        parts += [_modulated_norm(each, "attention_norm", "qkv"), *projection(each, attention)]
    parts.append(core(shard, attention))
    for each in streams:
        parts += [output(each), _gated(each, ATTENTION_RESIDUAL)]
    if attention.text is None:
        parts.append(hidden_norm(shard, "cross_norm", column_input_bytes(shard, "cross_q")))
        parts += [*cross_parts(shard), residual(shard, "cross_residual")]
    for each in streams:
        parts.append(_modulated_norm(each, "mlp_norm", "fc1"))
        parts += [mlp_part(each, shard.model.ffn_hidden_size), _gated(each, "mlp_residual")]
    return tuple(parts)


def diffusion_layer_parameters(shard: Shard, layer: Layer) -> LocalParameters:
    """One layer's parameters on one rank."""
    model, h = shard.model, shard.model.hidden_size
    text = _attention(shard, layer).text
    width = (shard.heads + 2 * shard.kv_heads) * model.qk_head_dim
    norms = 2 * model.qk_head_dim if model.qk_norm else 0
    if model.qk_norm_whole:
        norms = (shard.heads + shard.kv_heads) * model.qk_head_dim
    into, out = h * width + width + norms, shard.heads * model.v_head_dim * h
    inner = model.ffn_hidden_size // shard.tp
    mlp_in, mlp_out = (h + 1) * inner, inner * h
    vectors = _VECTORS[text] * h
    modulation = vectors
    if _diffusion(shard).modulation == "layers":
        modulation = (h + 1) * vectors // shard.tp
    if text == JOINT:
        return LocalParameters(into + mlp_in + out + mlp_out + h + modulation)
    attentions, mlps = (2, 1) if text is None else (2, 2)
    count = attentions * (into + out + h) + mlps * (mlp_in + mlp_out + h) + modulation
    return LocalParameters(count + (2 * h if text is None else 0))


def first_diffusion_parts(shard: Shard) -> list[Part]:
    """Patches, the text and the conditions on their way to the model's width."""
    latents = shard.tokens
    if any(_attention(shard, each).text is not None for each in shard.model.layer_kinds):
        latents -= shard.batch * text_tokens(shard)
    rows = {"patches": latents, "text": shard.batch * _diffusion(shard).text_tokens}
    parts = [
        linears_part(shard, name, rows.get(name, shard.batch), widths)
        for name, widths in _entries(shard)
    ]
    if latents == shard.tokens:
        parts.insert(2, looked_at_part(shard))
    return parts


def first_diffusion_parameters(shard: Shard) -> LocalParameters:
    return LocalParameters(sum(_weights(widths) for _, widths in _entries(shard)))


def _entries(shard: Shard) -> list[tuple[str, tuple[int, ...]]]:
    """Names and widths of the linear layers that patches, text and conditions pass through."""
    diffusion, h = _diffusion(shard), shard.model.hidden_size
    layers = [("patches", (diffusion.patch_size, h)), ("text", diffusion.text_widths)]
    layers += [("condition", (width, h, h)) for width in diffusion.conditions]
    shared = diffusion.modulation == "shared"
    return layers + [("modulation", (h, _VECTORS[None] * h))] * shared


def last_diffusion_parts(shard: Shard) -> list[Part]:
    """The last norm, what patches should be, and the squared distance from it."""
    diffusion, h, size = _diffusion(shard), shard.model.hidden_size, shard.element_bytes
    forward, backward = linear(shard, "patches_out", shard.local_tokens, h, diffusion.patch_size)
    made = shard.local_tokens * diffusion.patch_size
    distance = Streaming("loss_fwd", "elementwise", made * (size + 12), launches=3)
    undone = Streaming("loss_bwd", "elementwise", made * (8 + size), launches=2)
    loss = Part(
        (*forward, distance),
        (undone, *backward),
        (Alloc("loss_difference", 4 * made),),
        forward_peak_bytes=8 * made,
        backward_peak_bytes=8 * made + shard.local_tokens * h * size,
    )
    last = [_modulated_norm(shard, "final_norm", "patches_out"), loss]
    return [_modulation(shard, _LAST_VECTORS), *last] if diffusion.modulation == "layers" else last


def last_diffusion_parameters(shard: Shard) -> LocalParameters:
    diffusion, h = _diffusion(shard), shard.model.hidden_size
    vectors = _LAST_VECTORS * h
    modulation = (h + 1) * vectors if diffusion.modulation == "layers" else vectors
    return LocalParameters(_weights((h, diffusion.patch_size)) + modulation)


def _diffusion(shard: Shard) -> Diffusion:
    assert shard.model.diffusion is not None
    return shard.model.diffusion


def _attention(shard: Shard, layer: Layer) -> AttentionMixer:
    mixer = shard.model.mixer(layer)
    assert mixer is not None
    assert mixer.attention is not None
    return mixer.attention


def _of(shard: Shard, sequence: int) -> Shard:
    """So many tokens of each sequence."""
    return replace(shard, sequence=sequence, attended=sequence)


def _weights(widths: Sequence[int]) -> int:
    return sum((one + 1) * other for one, other in pairwise(widths))


def linears_part(
    shard: Shard, name: str, tokens: int, widths: Sequence[int], *, is_data: bool = True
) -> Part:
    """Linear layers, whole on every rank, with activations between them. Frozen ones have no
    backward pass: nothing before them, which ``is_data``, is trained."""
    size, forward, saved = shard.element_bytes, list[Op](), list[Alloc]()
    backward = list[Op]()
    for number, (one, other) in enumerate(pairwise(widths)):
        made, gradients = linear(shard, name, tokens, one, other)
        if number == 0 and is_data:
            # Data has no gradient.
            gradients = [op for op in gradients if op.name != f"{name}_dgrad"]  # type: ignore[union-attr]
        if number:
            moved = tokens * one * size
            forward.append(Streaming(f"{name}_activation", "elementwise", 2 * moved))
            gradients += [Streaming(f"{name}_activation_bwd", "elementwise", 3 * moved)]
        forward += made
        backward = [*gradients, *bias_grad(shard, name, tokens, other), *backward]
        saved.append(Alloc(f"{name}_input", tokens * one * size * (1 if number == 0 else 2)))
    widest = tokens * max(widths) * size
    if not shard.trains:
        return Part(tuple(forward), (), forward_peak_bytes=2 * widest)
    return Part(
        tuple(forward),
        tuple(backward),
        tuple(saved),
        forward_peak_bytes=widest,
        backward_peak_bytes=2 * widest,
    )


def _modulation(shard: Shard, vectors: int) -> Part:
    """A layer's vectors from the conditions: every weight for one row a sequence."""
    h = shard.model.hidden_size
    outputs = vectors * h // shard.tp
    forward, backward = linear(shard, "modulation", shard.batch, h, outputs)
    made = shard.batch * vectors * h * shard.element_bytes
    # Conditions are of frozen weights, where these are.
    undone = tuple(backward) if shard.trains else ()
    return Part(tuple(forward), undone, (Alloc("modulation", made),))


def _modulated_norm(shard: Shard, name: str, reader: str) -> Part:
    part = hidden_norm(shard, name, column_input_bytes(shard, reader))
    moved = shard.local_tokens * shard.model.hidden_size * shard.element_bytes
    eager = shard.fusion == "eager"
    scaled = [Streaming(f"{name}_modulation", "elementwise", 4 * moved, 2)] if eager else []
    saved = [Alloc(f"{name}_unscaled", moved)] if eager and shard.trains else []
    if not shard.trains:
        undone = [Streaming(f"{name}_modulation_bwd", "elementwise", 2 * moved)] if eager else []
        return replace(part, forward=(*part.forward, *scaled), backward=(*undone, *part.backward))
    # Scale and shift have gradients, sums over the tokens.
    summed = Streaming(f"{name}_modulation_bwd", "reduce", (6 if eager else 2) * moved, 2)
    return replace(
        part,
        forward=(*part.forward, *scaled),
        backward=(summed, *part.backward),
        saved=(*part.saved, *saved),
    )


def _gated(shard: Shard, name: str) -> Part:
    part = residual(shard, name)
    if not shard.trains:
        return part
    moved = shard.local_tokens * shard.model.hidden_size * shard.element_bytes
    # The gate's gradient is a sum of products with what it multiplied.
    summed = Streaming(f"{name}_gate_bwd", "reduce", 3 * moved, 2)
    saved = (*part.saved, Alloc(f"{name}_ungated", moved))
    return replace(part, backward=(*part.backward, summed), saved=saved)
