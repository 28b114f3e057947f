"""Sparse attention (DeepSeek-V3.2, MiniMax-M3): a small attention, the indexer, scores all keys,
and queries attend to the best of them.

Latent attention runs on the latent keys and values themselves, one for all heads (the absorbed
form, as the published kernels). No backward timing is published: it is priced as attention of
such shapes.
"""

from __future__ import annotations

from trainscout.simulators.predictor.question.layers import Index
from trainscout.simulators.predictor.workload.ir import Alloc, Attention, Gemm, Streaming
from trainscout.simulators.predictor.workload.linear_layers.linear import linear
from trainscout.simulators.predictor.workload.part import Part
from trainscout.simulators.predictor.workload.shard import Shard


def index_parts(shard: Shard, index: Index) -> list[Part]:
    """The indexer and the attention to the keys that it chooses, in place of attention's core."""
    return [*([_indexer(shard, index)] if index.heads else []), _core(shard, index)]


def _indexer(shard: Shard, index: Index) -> Part:
    """Projections are whole on every tensor-parallel rank (Megatron-Core), scores are those of the
    causal half."""
    model = shard.model
    width, seen = index.dim + index.heads, shard.sequence // 2
    return indexer(shard, index, model.query_inputs, width, seen)


def indexer(shard: Shard, index: Index, inputs: int, width: int, seen: int) -> Part:
    """What chooses keys: queries made from ``inputs`` channels, ``width`` columns made from the
    hidden state besides, and scores of the keys ``seen`` on average. Only scores of chosen keys
    have gradients (sparse training stage)."""
    tokens, size, s, dim = shard.tokens, shard.element_bytes, shard.sequence, index.dim
    query, query_back = linear(shard, "index_q", tokens, inputs, index.heads * dim)
    key, key_back = linear(shard, "index_k", tokens, shard.model.hidden_size, width)
    chosen = min(index.top_k, seen)
    groups, scores = shard.batch * index.heads, shard.batch * s * seen * 4
    kept = tokens * (index.heads * dim + width) * size
    return Part(
        (
            *query,
            *key,
            Gemm("index_scores_fwd", s, seen, dim, shard.dtype, batch=groups, estimated=True),
            # Their weighted sum over heads is written once, and read twice to choose from.
            Streaming("index_top_k", "reduce", 3 * scores, launches=3),
        ),
        (
            Gemm("index_scores_dgrad", s, dim, chosen, shard.dtype, batch=groups, layout="NN"),
            Gemm("index_scores_wgrad", chosen, dim, s, shard.dtype, batch=groups, layout="NT"),
            *key_back,
            *query_back,
        ),
        (Alloc("index_qk", kept), Alloc("index_chosen", shard.batch * s * chosen * 4)),
        forward_peak_bytes=2 * scores,
        backward_peak_bytes=2 * shard.batch * s * chosen * 4,
    )


def _core(shard: Shard, index: Index) -> Part:
    model, s, k = shard.model, shard.sequence, index.top_k
    mla = model.mla
    seen = k - k * (k - 1) / (2 * s) if k < s else s / 2
    kv_heads, width, values = shard.kv_heads, model.qk_head_dim, model.v_head_dim
    if mla is not None:
        kv_heads, values = 1, mla.kv_lora_rank
        width = mla.kv_lora_rank + mla.qk_rope_head_dim
    return chosen_core(shard, kv_heads, seen, width, values, "latent_output")


def chosen_core(
    shard: Shard, kv_heads: int, seen: float, width: int, values: int, output: str
) -> Part:
    """Attention of every query to ``seen`` keys on average, kernels and all; ``width`` of queries
    and keys, ``values`` of values, per head, and the name by which its ``output`` is kept."""
    out = shard.tokens * shard.heads * values * shard.element_bytes

    def core(pass_: str) -> Attention:
        return Attention(
            f"attention_{pass_}",
            shard.batch,
            shard.heads,
            kv_heads,
            shard.sequence,
            max(1, round(seen)),
            width,
            values,
            False,
            pass_,
            shard.dtype,
            # Written apart, its products would run over all keys: nobody trains so.
            "flash2" if shard.attention == "unfused" else shard.attention,
            estimated=True,
        )

    return Part(
        (core("fwd"),),
        (core("bwd"),),
        (Alloc("logsumexp", 4 * shard.tokens * shard.heads), Alloc(output, out)),
        forward_peak_bytes=out,
        backward_peak_bytes=2 * out,
        module="core_attn",
    )
