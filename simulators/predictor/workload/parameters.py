"""Parameters one rank holds, split by which replicas share them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from trainscout.simulators.predictor.question.layers import (
    DENSE,
    MOE,
    NONE,
    AttentionMixer,
    CompressedAttention,
    DeltaNet,
    Layer,
    Mamba1,
    Mamba2,
    ShortConv,
)
from trainscout.simulators.predictor.question.model import Model

from .shard import Shard


class LocalParameters(NamedTuple):
    """Parameter counts of one rank.

    ``dense`` are replicated over the data-parallel (and context-parallel) group, ``expert``
    over the expert-data-parallel group. Those without gradients, of which nothing is reduced or
    updated, are counted apart. ``quantised``: of all these, the weights that linear layers
    multiply in 8 or 4 bits, or keep in so many where they are frozen, where there are any.
    ``embedding``: of the dense ones with gradients, those of embeddings.
    """

    dense: int = 0
    expert: int = 0
    frozen_dense: int = 0
    frozen_expert: int = 0
    quantised: LocalParameters | None = None
    embedding: int = 0

    def __add__(self, other: LocalParameters) -> LocalParameters:  # type: ignore[override]
        one, two = self.quantised, other.quantised
        return LocalParameters(
            self.dense + other.dense,
            self.expert + other.expert,
            self.frozen_dense + other.frozen_dense,
            self.frozen_expert + other.frozen_expert,
            one + two if one is not None and two is not None else one or two,
            self.embedding + other.embedding,
        )

    def times(self, count: int) -> LocalParameters:
        return LocalParameters(
            self.dense * count,
            self.expert * count,
            self.frozen_dense * count,
            self.frozen_expert * count,
            None if self.quantised is None else self.quantised.times(count),
            self.embedding * count,
        )

    @property
    def total(self) -> int:
        """Those that have gradients."""
        return self.dense + self.expert

    @property
    def held(self) -> LocalParameters:
        """All of them, as if all had gradients."""
        return LocalParameters(
            self.dense + self.frozen_dense,
            self.expert + self.frozen_expert,
            quantised=None if self.quantised is None else self.quantised.held,
        )

    @property
    def frozen(self) -> LocalParameters:
        """All of them, as if none had."""
        held = self.held
        quantised = None if self.quantised is None else self.quantised.frozen
        return LocalParameters(0, 0, held.dense, held.expert, quantised)

    def as_trained(self, shard: Shard) -> LocalParameters:
        """These of the language model, frozen where its weights are."""
        return self if shard.trains else self.frozen


def norm_parameters(shard: Shard, width: int) -> int:
    """Gain, and bias where there is one, of a norm over ``width``."""
    return width * (2 if shard.model.normalization == "layernorm" else 1)


@functools.lru_cache(maxsize=4096)
def layer_parameters(shard: Shard, layer: Layer) -> LocalParameters:
    """One layer's parameters on one rank.

    In 8 and 4 bits all but norms of the hidden state and the router count as quantised: biases and
    what else a mixer has besides its products are below a thousandth.
    """
    shard = shard.for_layer(layer)
    model, h = shard.model, shard.model.hidden_size
    mixer = model.mixer(layer)
    halves = (0 if mixer is None else len(mixer.in_turn)) + (layer.mlp != NONE)
    dense = halves * norm_parameters(shard, h) * (2 if model.post_norms else 1)
    dense += halves * h * model.layer_scale
    if model.inner_norms:
        attends = mixer is not None and mixer.attention is not None
        inner = model.num_heads * model.v_head_dim * attends
        inner += model.ffn_hidden_size * (layer.mlp == DENSE)
        dense += norm_parameters(shard, inner)
    wide = dense
    if mixer is not None:
        dense += sum(_MIXERS[name](shard, part) for name, part in mixer.parts.items())
    expert = 0
    if layer.mlp == MOE:
        moe = shard.moe
        dense += h * moe.num_experts
        wide += h * moe.num_experts
        if moe.latent_size is not None:
            dense += 2 * h * moe.latent_size
        per_expert = _mlp(shard, moe.ffn_hidden_size // shard.etp, moe.latent_size)
        expert = per_expert * (moe.num_experts // shard.ep)
        if moe.shared_ffn_hidden_size:
            dense += _mlp(shard, moe.shared_ffn_hidden_size // shard.tp)
    elif layer.mlp == DENSE:
        dense += _mlp(shard, model.ffn_hidden_size // shard.tp)
    if model.laurel_rank is not None:
        updates = _layer_update(model)
        dense += updates
        wide += updates
    elif model.residual_streams > 1:
        streams = halves * _hyper_parameters(model)
        dense += streams
        wide += streams
    if model.per_layer_input is not None:
        dense += 2 * h * model.per_layer_input.hidden_size + norm_parameters(shard, h)
        wide += norm_parameters(shard, h)
    packed = shard.frozen_weights != "16bit"
    quantised = (shard.is_quantised and not layer.bf16) or packed
    narrow = LocalParameters(dense - wide, 0 if packed and shard.stacks_experts else expert)
    return LocalParameters(dense, expert, quantised=narrow if quantised else None)


def _mamba1(shard: Shard, ssm: Mamba1) -> int:
    """Projections in, to B, C and what steps come from, of steps with their bias, and out; the
    convolution with its bias; decays and skips of channels."""
    h, inner, small = shard.model.hidden_size, ssm.inner, ssm.rank + 2 * ssm.state
    bias = 2 * inner + h if shard.model.linear_bias else 0
    return ssm.weights(h) + inner * (ssm.conv + 3 + ssm.state) + (small if ssm.norms else 0) + bias


def _short_conv(shard: Shard, conv: ShortConv) -> int:
    h, bias = shard.model.hidden_size, shard.model.linear_bias
    biases = 4 * conv.channels + h if bias else 0
    return conv.channels * (4 * h + conv.conv) + biases


def _compressed(shard: Shard, mixer: CompressedAttention) -> int:
    """Products, norms and sinks, and of compressors a norm and a bias a token of a window."""
    model, h, dim = shard.model, shard.model.hidden_size, shard.model.qk_head_dim
    inner = model.num_heads * dim
    products = mixer.in_weights(h, dim) + mixer.q_rank * inner + mixer.out_weights(h, inner)
    compressed = sum(mixer.compressed_widths(dim)) * (mixer.series * mixer.rate + 1)
    return products + mixer.q_rank + dim + model.num_heads + compressed


def _mamba2(shard: Shard, ssm: Mamba2) -> int:
    """Projections in and out and, where decays are not fixed, the convolution with its bias, and
    for each head the decay, the skip and the step's bias; heads and groups are sharded."""
    h, tp = shard.model.hidden_size, shard.tp
    norms = ssm.inner if ssm.norm else 0
    own = 0 if ssm.fixed_decay else ssm.convolved * (ssm.conv + 1) + 3 * ssm.heads
    sharded = ssm.weights(h) + own + norms
    bias = ssm.inner + ssm.convolved + ssm.steps if shard.model.linear_bias else 0
    return (sharded + bias) // tp + (h if shard.model.linear_bias else 0)


def _delta(shard: Shard, delta: DeltaNet) -> int:
    """Queries, keys, values, output gate, decay and step in; convolutions; one norm that all heads
    share.

    A rate a head, and a bias of each decay; what low-rank products have through one head's width
    (Kimi-Linear) is whole on every rank.
    """
    h = shard.model.hidden_size
    low_rank = 2 * h * delta.v_dim if delta.is_low_rank else 0
    own = delta.convolved * delta.conv + delta.v_heads + delta.decays
    sharded = delta.weights(h) - low_rank + own
    return sharded // shard.tp + delta.v_dim + low_rank


def _mlp(shard: Shard, local: int, outer: int | None = None) -> int:
    """An MLP of ``local`` inner width on this rank; the second bias is whole on every rank."""
    model, h = shard.model, outer or shard.model.hidden_size
    columns = local * (2 if model.gated_mlp else 1)
    bias = columns + h if model.linear_bias else 0
    return h * columns + local * h + bias


def _attention(shard: Shard, attention: AttentionMixer) -> int:
    model, h = shard.model, shard.model.hidden_size
    extra = shard.heads if attention.sinks else 0
    if attention.index is not None:
        # Whole on every rank: queries (from the latent ones where there are any), one key with its
        # LayerNorm, a weight for each head.
        extra += attention.index.weights(model.query_inputs, h) + 2 * attention.index.dim
    output = shard.heads * model.v_head_dim * h + (h if model.linear_bias else 0)
    if model.mla is not None:
        mla = model.mla
        # The down projections and their norms are replicated over the tensor-parallel group.
        narrow = mla.kv_lora_rank, *([mla.q_lora_rank] if mla.q_lora_rank else [])
        down = mla.down_weights(h) + sum(norm_parameters(shard, width) for width in narrow)
        up = mla.up_weights(h, shard.heads) + h * attention.latent_gates(
            shard.heads, mla.v_head_dim
        )
        return down + up + output + extra
    width = sum(projected_widths(shard, attention))
    own = 1 if attention.reuses_kv else 2
    norms = own * norm_parameters(shard, model.qk_head_dim) if model.qk_norm else 0
    if model.qk_norm_whole:
        heads = shard.heads + (0 if attention.reuses_kv else shard.kv_heads)
        norms = norm_parameters(shard, heads * model.qk_head_dim)
    biases = width - (0 if model.key_bias else shard.kv_heads * model.qk_head_dim)
    return h * width + (biases if model.qkv_bias else 0) + norms + output + extra


def _cross(shard: Shard, _: bool) -> int:
    model, h = shard.model, shard.model.hidden_size
    queries, pairs = (n * model.qk_head_dim for n in (shard.heads, 2 * shard.kv_heads))
    count = h * queries + model.looked_at[1] * pairs + shard.heads * model.v_head_dim * h
    norms = 2 * norm_parameters(shard, model.qk_head_dim) if model.qk_norm else 0
    if model.qk_norm_whole:
        norms = norm_parameters(shard, queries + pairs // 2)
    biases = (queries + pairs) * model.qkv_bias + h * model.linear_bias
    return count + norms + biases


_MIXERS: Mapping[str, Callable[[Shard, Any], int]] = {
    "attention": _attention,
    "mamba2": _mamba2,
    "delta": _delta,
    "mamba1": _mamba1,
    "short_conv": _short_conv,
    "compressed": _compressed,
    "cross": _cross,
}


def projected_widths(shard: Shard, attention: AttentionMixer) -> tuple[int, ...]:
    """The attention's with this rank's heads."""
    dims = shard.model.qk_head_dim, shard.model.v_head_dim
    return attention.projected_widths(shard.heads, shard.kv_heads, *dims)


def _hyper_parameters(model: Model) -> int:
    """Of one half of a layer: the projection of all streams to its weights, biases, scales."""
    return model.mixing_weights * (model.residual_width + 1) + 2 + model.mixes_streams


def _layer_update(model: Model) -> int:
    """Of a layer with alternating updates: a router with its norm, what makes coefficients of
    prediction and correction, the corrected stream's scale; two low-rank products, their norm."""
    streams, hidden = model.residual_streams, model.hidden_size
    assert model.laurel_rank is not None
    return streams * (hidden + streams**2 + streams) + hidden * (3 + 2 * model.laurel_rank)


def _stream_projections(model: Model) -> int:
    """Weights at either end of the model, which make streams of the embedding and undo it."""
    return (model.residual_streams - 1) * model.hidden_size**2


def embedding_parameters(shard: Shard) -> LocalParameters:
    """Word embedding rows of this rank, learned positions and inputs of layers (replicated)."""
    model, rows = shard.model, shard.embedding_rows
    # Frameworks refuse sequences that are longer than their table: it grows with them.
    length = max(model.sequence_length, shard.sequence * shard.cp)
    positions = length if model.position == "learned" else 0
    if model.pooled is not None and model.pooled.patch_size:
        ahead = (model.pooled.patch_size + 1 + positions) * model.hidden_size
        stem = sum(each.weights + each.channels for each in model.pooled.stem)
        return LocalParameters(ahead + stem)
    own = _stream_projections(model) if model.laurel_rank is not None else 0
    if (inputs := model.per_layer_input) is not None:
        width = model.num_layers * inputs.hidden_size
        own += (inputs.vocab_size + model.hidden_size) * width
        own += norm_parameters(shard, inputs.hidden_size)
    count = (rows + positions) * model.hidden_size + own
    return LocalParameters(count, embedding=count)


def head_parameters(shard: Shard, *, owns_weight: bool) -> LocalParameters:
    """Final norm, and the output weight unless the embedding on this rank provides it."""
    model = shard.model
    if model.pooled is not None:
        norms = norm_parameters(shard, model.hidden_size)
        return LocalParameters(model.pooled.weights + norms)
    rows = shard.head_rows if owns_weight else 0
    weight, norms = rows * model.hidden_size, norm_parameters(shard, model.hidden_size)
    streams = model.residual_streams
    collapse = streams * (model.residual_width + 1) + 1 if streams > 1 else 0
    if model.laurel_rank is not None:
        collapse = _stream_projections(model)
    if model.masked_head:
        bias = model.hidden_size if model.linear_bias else 0
        norms += model.hidden_size**2 + bias + norms + shard.head_rows
    return LocalParameters(
        weight + norms + collapse, quantised=LocalParameters(weight) if shard.fp8_output else None
    )
