"""Attention in operations of their own: all scores at once, or those of blocks of tokens."""

from __future__ import annotations

import math

from trainscout.simulators.predictor.question.layers import AttentionMixer
from trainscout.simulators.predictor.workload.ir import Alloc, Gemm, Op, Streaming
from trainscout.simulators.predictor.workload.part import Part
from trainscout.simulators.predictor.workload.shard import Shard


def unfused_core(shard: Shard, keys: int | None = None) -> Part:
    """Scores, scaled masked softmax, dropout, weighted sum as separate kernels; of so many keys
    where those are not of the queries' tokens.

    Saved: softmax output, dropout mask and dropout output, i.e. 5 a s^2 b / t bytes at two
    bytes per element (Korthikanti et al. 2022, section 4.1).
    """
    model, s = shard.model, shard.sequence
    groups, size, k = shard.batch * shard.heads, shard.element_bytes, keys or s
    scores = groups * s * k
    d, dv = model.qk_head_dim, model.v_head_dim
    dtype = shard.dtype if shard.tensor_core_heads or not (d % 8 or dv % 8) else "fp32"
    softmax, softmax_back, saved = _softmax(shard, scores)
    forward: list[Op] = [Gemm("scores", s, k, d, dtype, batch=groups), *softmax]
    backward: list[Op] = [
        Gemm("values_dgrad", s, k, dv, dtype, batch=groups),
        Gemm("values_wgrad", k, dv, s, dtype, batch=groups, layout="NT"),
    ]
    if model.dropout:
        forward.append(Streaming("attention_dropout", "dropout", scores * (2 * size + 1)))
        backward.append(Streaming("attention_dropout_bwd", "dropout", scores * (2 * size + 1)))
        saved += [Alloc("dropout_mask", scores), Alloc("dropout", scores * size)]
    forward.append(Gemm("values", s, dv, k, dtype, batch=groups, layout="NN"))
    if shard.fused_softmax:
        # Megatron-Core's ``DotProductAttention`` puts heads beside each other.
        forward.append(Streaming("context_copy", "memcpy", 2 * groups * s * dv * size))
    backward += [
        *softmax_back,
        Gemm("scores_dgrad", s, d, k, dtype, batch=groups, layout="NN"),
        # The keys' gradient, transposed as they were.
        Gemm("scores_wgrad", d, k, s, dtype, batch=groups, layout="NT"),
    ]
    return Part(
        tuple(forward),
        tuple(backward),
        tuple(saved),
        forward_peak_bytes=scores * size,
        backward_peak_bytes=2 * scores * size,
        module="core_attn",
    )


def _softmax(shard: Shard, scores: int) -> tuple[list[Op], list[Op], list[Alloc]]:
    """What makes probabilities of ``scores`` numbers, what undoes it, and what it keeps.

    Modules as written (``eager_attention_forward`` of Transformers' Llama) divide, add the mask,
    take the softmax in fp32 and cast back, ``2s + 2s + (s+4) + (4+s)``; autograd casts to fp32,
    takes the softmax's gradient into 16 bits and scales it, ``(s+4) + (8+s) + 2s``. The fp32
    probabilities are kept beside the 16-bit ones that the values are weighted by. Compiled, all
    of either pass is one kernel at the bandwidth of others (TorchInductor's on H100: "saturates
    the hardware DRAM throughput", Dao-AILab/quack, media/2025-07-10-membound-sol.md), and the
    scores are kept, of which the backward pass makes probabilities again (PyTorch 2.13).
    """
    s = shard.element_bytes
    kept = [Alloc("softmax", scores * s)]
    if shard.fusion == "compiled":
        return (
            [Streaming("softmax_fwd", "elementwise", 2 * scores * s)],
            [Streaming("softmax_bwd", "elementwise", 3 * scores * s)],
            [*kept, *([] if shard.fused_softmax else [Alloc("scores", scores * s)])],
        )
    if shard.fused_softmax:
        return (
            [Streaming("softmax_fwd", "softmax_fwd", 2 * scores * s)],
            [Streaming("softmax_bwd", "softmax_bwd", 3 * scores * s)],
            kept,
        )
    return (
        [Streaming("softmax_fwd", "elementwise", (6 * s + 8) * scores, launches=4)],
        [Streaming("softmax_bwd", "elementwise", (4 * s + 12) * scores, launches=3)],
        [*kept, Alloc("softmax_fp32", 4 * scores)],
    )


def block_core(shard: Shard, attention: AttentionMixer) -> Part:
    """Fused attention's algorithm in compiled operations, one block of queries and keys after
    another, without those that are masked as a whole (Levanter's ``flash_attention.py``).

    Forward, a block's scores are read for their largest, and for exponentials and the sum of
    those, ``3s``; backward makes scores and exponentials again, which it writes with their
    gradients, ``4s``. Outputs and gradients of queries, keys and values are added to block by
    block, ``3s`` each.
    """
    model, size, dtype = shard.model, shard.element_bytes, shard.dtype
    block = min(shard.attention_block, shard.sequence)
    number = math.ceil(shard.sequence / block)
    pairs = number * (number + 1) // 2 if attention.causal else number**2
    heads = shard.batch * shard.heads
    groups, d, dv = heads * pairs, model.qk_head_dim, model.v_head_dim
    scores, rows = groups * block**2 * size, groups * block * size
    made = Gemm("scores", block, block, d, dtype, batch=groups)
    forward = (
        made,
        Streaming("block_softmax_fwd", "elementwise", 3 * scores, launches=2 * pairs),
        Gemm("values", block, dv, block, dtype, batch=groups, layout="NN"),
        Streaming("block_output_add", "elementwise", 3 * rows * dv, launches=pairs),
    )
    backward = (
        made,
        Gemm("values_dgrad", block, block, dv, dtype, batch=groups),
        Streaming("block_softmax_bwd", "elementwise", 4 * scores, launches=pairs),
        Gemm("values_wgrad", block, dv, block, dtype, batch=groups, layout="NT"),
        Gemm("scores_dgrad", block, d, block, dtype, batch=groups, layout="NN"),
        Gemm("scores_wgrad", d, block, block, dtype, batch=groups, layout="NT"),
        Streaming("block_grad_add", "elementwise", 3 * rows * (2 * d + dv), launches=3 * pairs),
    )
    return Part(
        forward,
        backward,
        (Alloc("logsumexp", 4 * shard.tokens * shard.heads),),
        forward_peak_bytes=2 * heads * block**2 * size,
        backward_peak_bytes=4 * heads * block**2 * size,
        module="core_attn",
    )
