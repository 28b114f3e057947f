"""Attention to a window and to compressed keys (DeepSeek-V4), keys being values and one for all
heads; queries and output are projected through narrow ones.

No timing of its training is published: its core is priced as attention of such shapes.
"""

from __future__ import annotations

from trainscout.simulators.predictor.question.layers import CompressedAttention
from trainscout.simulators.predictor.workload.elementwise import norm_ops, rope_ops
from trainscout.simulators.predictor.workload.ir import Alloc, Gemm, Op, Streaming
from trainscout.simulators.predictor.workload.linear_layers.linear import accumulation, linear
from trainscout.simulators.predictor.workload.part import Part, norm
from trainscout.simulators.predictor.workload.shard import Shard

from .sparse_attention import chosen_core, indexer


def compressed_parts(shard: Shard, mixer: CompressedAttention) -> list[Part]:
    """The parts of one mixer, whole on a rank."""
    hidden, tokens, dim = shard.model.hidden_size, shard.tokens, shard.model.qk_head_dim
    query, query_back = linear(shard, "q_down", tokens, hidden, mixer.q_rank)
    key, key_back = linear(shard, "kv_down", tokens, hidden, dim)
    keep = shard.linear_input_bytes if shard.trains else 0
    parts = [
        Part((*query, *key), (*key_back, *query_back)),
        norm(shard, "q_norm", tokens, mixer.q_rank, keep_output=keep),
        norm(shard, "kv_norm", tokens, dim, keep_output=shard.element_bytes),
        _queries(shard, mixer),
    ]
    if mixer.rate > 1:
        parts.append(_compressor(shard, "compress", mixer, dim))
    if mixer.index is not None:
        seen = max(1, shard.sequence // (2 * mixer.rate))
        parts += [
            _compressor(shard, "index_compress", mixer, mixer.index.dim),
            # A weight for each head beside them.
            indexer(shard, mixer.index, mixer.q_rank, mixer.index.heads, seen),
        ]
    return [*parts, _core(shard, mixer), _output(shard, mixer)]


def _queries(shard: Shard, mixer: CompressedAttention) -> Part:
    """Up to heads, normed without a weight, rotated; keys are rotated beside them."""
    heads, dim, size = shard.heads, shard.model.qk_head_dim, shard.element_bytes
    up, up_back = linear(shard, "q_up", shard.tokens, mixer.q_rank, heads * dim)
    elements = shard.tokens * heads * dim
    normed, undone = norm_ops(shard, "qk_norm", elements)
    rotate, rotate_back = rope_ops(shard, elements + shard.tokens * dim)
    q, k = elements * size, shard.tokens * dim * size
    return Part(
        (*up, *normed, *rotate),
        (*rotate_back, *undone, *up_back),
        (Alloc("q", q), Alloc("k", k), Alloc("qk_norm_input", q)),
        forward_peak_bytes=q,
        backward_peak_bytes=2 * q,
        module="mla_up_proj",
    )


def _compressor(shard: Shard, name: str, mixer: CompressedAttention, width: int) -> Part:
    """Sums over windows of ``rate`` tokens (twice as many where two series overlap), weighted by a
    softmax of gates in fp32; what came out is normed and rotated, a ``rate``-th of the tokens."""
    size, wide = shard.element_bytes, mixer.series * width
    made, gradients = linear(shard, name, shard.tokens, shard.model.hidden_size, 2 * wide)
    elements = shard.tokens * wide
    moved = elements * (2 * size + 4)
    kept = 2 * elements * size + 4 * elements
    return Part(
        (*made, Streaming(f"{name}_sum", "reduce", moved, launches=6)),
        (Streaming(f"{name}_sum_bwd", "elementwise", 2 * moved, launches=8), *gradients),
        (Alloc(f"{name}_windows", kept),),
        forward_peak_bytes=moved,
        backward_peak_bytes=2 * elements * size,
    )


def _core(shard: Shard, mixer: CompressedAttention) -> Part:
    dim = shard.model.qk_head_dim
    return chosen_core(shard, 1, mixer.seen(shard.attended), dim, dim, "core_output")


def _output(shard: Shard, mixer: CompressedAttention) -> Part:
    """Positions are taken out of what attention made, each group of heads is projected on its own,
    and what they made together."""
    model, tokens, size = shard.model, shard.tokens, shard.element_bytes
    each = shard.heads * model.v_head_dim // mixer.out_groups
    rank, groups, dtype = mixer.out_rank, mixer.out_groups, shard.linear_dtype
    elements = tokens * shard.heads * model.v_head_dim
    rotate, rotate_back = rope_ops(shard, elements)
    backward: list[Op] = [Gemm("group_output_dgrad", tokens, each, rank, dtype, groups, "NN")]
    if shard.trains:
        fused = shard.fused_sum_bytes
        backward.append(Gemm("group_output_wgrad", rank, each, tokens, dtype, groups, "NT", fused))
        if not fused:
            backward += accumulation(shard, "group_output", rank * groups * each)
    mixed, mixed_back = linear(shard, "attention_output", tokens, groups * rank, model.hidden_size)
    full = tokens * model.hidden_size * size
    kept = shard.linear_input_bytes if shard.trains else 0
    return Part(
        (*rotate, Gemm("group_output_fwd", tokens, rank, each, dtype, groups), *mixed),
        (*mixed_back, *backward, *rotate_back),
        (
            Alloc("group_output_input", int(elements * kept)),
            Alloc("attention_output_input", int(tokens * groups * rank * kept)),
        ),
        forward_peak_bytes=full + elements * size,
        backward_peak_bytes=2 * full + elements * size,
        module="attn_out",
    )
