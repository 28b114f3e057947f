"""Parameters one rank holds, split by which replicas share them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from trainscout.simulators.predictor.workload.shard import Shard


@dataclass(frozen=True)
class LocalParameters:
    """Parameter counts of one rank.

    ``dense`` are replicated over the data-parallel (and context-parallel) group, ``expert``
    over the expert-data-parallel group.
    """

    dense: int = 0
    expert: int = 0

    def __add__(self, other: LocalParameters) -> LocalParameters:
        return LocalParameters(self.dense + other.dense, self.expert + other.expert)

    def times(self, count: int) -> LocalParameters:
        return LocalParameters(self.dense * count, self.expert * count)

    @property
    def total(self) -> int:
        return self.dense + self.expert


def norm_parameters(shard: Shard, width: int) -> int:
    """Gain, and bias where there is one, of a norm over ``width``."""
    return width * (2 if shard.model.normalization == "layernorm" else 1)


@functools.lru_cache(maxsize=4096)
def layer_parameters(shard: Shard, is_moe: bool) -> LocalParameters:
    """One transformer layer's parameters on one rank."""
    model, h = shard.model, shard.model.hidden_size
    dense = 2 * norm_parameters(shard, h) + _attention(shard)
    expert = 0
    if is_moe:
        moe = model.moe
        assert moe is not None
        dense += h * moe.num_experts
        per_expert = _mlp(shard, moe.ffn_hidden_size // shard.etp)
        expert = per_expert * (moe.num_experts // shard.ep)
        if moe.shared_ffn_hidden_size:
            dense += _mlp(shard, moe.shared_ffn_hidden_size // shard.tp)
    else:
        dense += _mlp(shard, model.ffn_hidden_size // shard.tp)
    return LocalParameters(dense, expert)


def _mlp(shard: Shard, local: int) -> int:
    """An MLP of ``local`` inner width on this rank; the second bias is whole on every rank."""
    model, h = shard.model, shard.model.hidden_size
    columns = local * (2 if model.gated_mlp else 1)
    bias = columns + h if model.linear_bias else 0
    return h * columns + local * h + bias


def _attention(shard: Shard) -> int:
    model, h = shard.model, shard.model.hidden_size
    output = shard.heads * model.v_head_dim * h + (h if model.linear_bias else 0)
    if model.mla is not None:
        mla = model.mla
        # The down projections and their norms are replicated over the tensor-parallel group.
        down = h * (mla.kv_lora_rank + mla.qk_rope_head_dim) + norm_parameters(
            shard, mla.kv_lora_rank
        )
        query = h
        if mla.q_lora_rank is not None:
            down += h * mla.q_lora_rank + norm_parameters(shard, mla.q_lora_rank)
            query = mla.q_lora_rank
        up = shard.heads * (
            query * model.qk_head_dim + mla.kv_lora_rank * (mla.qk_nope_head_dim + mla.v_head_dim)
        )
        return down + up + output
    width = (shard.heads + 2 * shard.kv_heads) * model.qk_head_dim
    norms = 2 * norm_parameters(shard, model.qk_head_dim) if model.qk_norm else 0
    return h * width + (width if model.qkv_bias else 0) + norms + output


def embedding_parameters(shard: Shard) -> LocalParameters:
    """Word embedding rows of this rank, and learned positions (replicated)."""
    model = shard.model
    rows = model.padded_vocab_size(shard.tp) // shard.tp
    positions = model.sequence_length if model.position == "learned" else 0
    return LocalParameters((rows + positions) * model.hidden_size)


def head_parameters(shard: Shard, *, owns_weight: bool) -> LocalParameters:
    """Final norm, and the output weight unless the embedding on this rank provides it."""
    model = shard.model
    rows = model.padded_vocab_size(shard.tp) // shard.tp if owns_weight else 0
    return LocalParameters(rows * model.hidden_size + norm_parameters(shard, model.hidden_size))
