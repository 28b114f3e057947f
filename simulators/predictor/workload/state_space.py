"""Mamba-2: projections, convolution and the scan as products of chunks (state-space duality).

No backward timing of its kernels is published: they are priced as the batched products and the
bytes that the algorithm has (arXiv 2405.21060, section 6; ``mamba_ssm`` fuses most of the bytes).
"""

from __future__ import annotations

from trainscout.simulators.predictor.question.layers import Mamba2
from trainscout.simulators.predictor.workload.adapters import input_bytes
from trainscout.simulators.predictor.workload.elementwise import norm_ops
from trainscout.simulators.predictor.workload.ir import Alloc, Gemm, Op, Streaming
from trainscout.simulators.predictor.workload.linear import linear
from trainscout.simulators.predictor.workload.part import Part
from trainscout.simulators.predictor.workload.scan import (
    by_heads,
    chunks,
    convolution,
    estimated,
    product,
)
from trainscout.simulators.predictor.workload.shard import Shard


def mamba2_parts(shard: Shard, ssm: Mamba2) -> list[Part]:
    """The parts of one mixer, from the projection in to the projection out; heads and groups are
    sharded over the tensor-parallel group, as in Megatron-Core."""
    hidden, size = shard.model.hidden_size, shard.element_bytes
    inner, heads = ssm.inner // shard.tp, ssm.heads // shard.tp
    width = (ssm.inner + ssm.convolved + ssm.heads) // shard.tp
    into, into_back = linear(shard, "ssm_in", shard.tokens, hidden, width, parallel="column")
    out, out_back = linear(shard, "ssm_out", shard.tokens, inner, hidden, parallel="row")
    full = shard.tokens * hidden * size
    made = shard.tokens * width * size
    gathered = full if shard.sp else 0
    values = shard.tokens * inner * size
    gate = shard.tokens * (inner + heads) * size
    norm, norm_back = norm_ops(shard, "ssm_norm", shard.tokens * inner) if ssm.norm else ([], [])
    kept = input_bytes(shard, "ssm_out", shard.linear_input_bytes)
    return [
        Part(
            (*into, *by_heads(shard, "ssm_exchange", width)),
            (*by_heads(shard, "ssm_grad_exchange", width), *into_back),
            # What the convolution does not take: the gate and the steps.
            (Alloc("ssm_gate", gate),),
            forward_peak_bytes=gathered + made,
            backward_peak_bytes=made + full + gathered,
        ),
        convolution(shard, "ssm", ssm.convolved // shard.tp),
        estimated(_scan(shard, ssm)),
        Part(
            (
                Streaming("ssm_gate_fwd", "elementwise", 3 * values),
                *norm,
                *by_heads(shard, "ssm_output_exchange", inner),
                *out,
            ),
            (
                *out_back,
                *by_heads(shard, "ssm_output_grad_exchange", inner),
                *norm_back,
                Streaming("ssm_gate_bwd", "elementwise", 5 * values),
            ),
            (
                Alloc("ssm_output", values),
                Alloc("ssm_out_input", int(shard.tokens * inner * kept)),
            ),
            forward_peak_bytes=full + values,
            backward_peak_bytes=2 * full,
        ),
    ]


def _scan(shard: Shard, ssm: Mamba2) -> Part:
    """Within chunks, ``C B^T`` of each group, decayed, times the inputs; across chunks, each
    chunk's state, passed on, and what it adds to the outputs. Backward makes scores and states
    again before the gradients of every product, and the products of outputs' gradients and inputs
    twice: for the scores, and for the decays (``mamba_chunk_scan_combined``)."""
    number, length = chunks(shard, ssm.chunk)
    heads = max(1, ssm.heads // (shard.tp * shard.cp))
    groups = max(1, ssm.groups // (shard.tp * shard.cp))
    dim, state, size = ssm.head_dim, ssm.state, shard.element_bytes
    scores, scores_back = product(shard, "ssm_scores", number * groups, length, length, state)
    inside, inside_back = product(shard, "ssm_inside", number * heads, length, dim, length)
    states, states_back = product(shard, "ssm_states", number * heads, dim, state, length)
    across, across_back = product(shard, "ssm_across", number * heads, length, dim, state)
    # States are fp32, written, read and rewritten as they are passed on.
    passed = number * heads * dim * state * 4
    tokens = number * length
    # Inputs, B and C, steps and outputs, read or written once by each fused kernel.
    moved = tokens * (2 * heads * dim + 2 * groups * state) * size + tokens * heads * 4
    # Backward, five kernels read the inputs (states, the gradients of inputs, B, scores, decays),
    # five the outputs' gradients (of states, inputs, C, scores, decays), and one writes.
    moved_back = 2 * moved + 7 * tokens * heads * dim * size
    decays = Gemm("ssm_decays_wgrad", length, length, dim, shard.dtype, batch=number * heads)
    again: list[Op] = [*scores, *states, Streaming("ssm_pass_again", "elementwise", 2 * passed)]
    return Part(
        (
            *scores,
            *states,
            Streaming("ssm_pass_fwd", "elementwise", 2 * passed),
            *inside,
            *across,
            Streaming("ssm_scan_fwd", "elementwise", moved, launches=3),
        ),
        (
            *again,
            *inside_back,
            decays,
            *across_back,
            Streaming("ssm_pass_bwd", "elementwise", 3 * passed),
            *states_back,
            *scores_back,
            Streaming("ssm_scan_bwd", "elementwise", moved_back, launches=5),
        ),
        # The convolution's output and the steps are made again from what they came from.
        forward_peak_bytes=passed + moved,
        backward_peak_bytes=2 * passed + 2 * moved,
    )
