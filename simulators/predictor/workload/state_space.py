"""Mamba-2: projections, convolution and the scan as products of chunks (state-space duality).

Its fused kernels (``mamba_ssm``'s) are priced as the products and the bytes that the algorithm has
(arXiv 2405.21060, section 6), at the shares of the peak and of the bandwidth measured on H100.
"""

from __future__ import annotations

from dataclasses import replace

from trainscout.simulators.predictor.question.layers import Mamba2

from .adapters import input_bytes
from .elementwise import norm_ops
from .ir import Alloc, Gemm, Streaming
from .linear import linear
from .part import Part
from .scan import again, by_heads, chunks, convolution, product
from .shard import Shard

# Kernels of ``mamba_chunk_scan_combined`` (mamba_ssm, August 2026), counted in profiles.
_LAUNCHES, _BACKWARD_LAUNCHES = 5, 31


def mamba2_parts(shard: Shard, ssm: Mamba2) -> list[Part]:
    """The parts of one mixer, from the projection in to the projection out; heads and groups are
    sharded over the tensor-parallel group, as in Megatron-Core."""
    hidden, size = shard.model.hidden_size, shard.element_bytes
    inner = ssm.inner // shard.tp
    width = (ssm.inner + ssm.convolved + ssm.steps) // shard.tp
    into, into_back = linear(shard, "ssm_in", shard.tokens, hidden, width, parallel="column")
    out, out_back = linear(shard, "ssm_out", shard.tokens, inner, hidden, parallel="row")
    full = shard.tokens * hidden * size
    made = shard.tokens * width * size
    gathered = full if shard.sp else 0
    values = shard.tokens * inner * size
    gate = shard.tokens * (inner + ssm.steps // shard.tp) * size
    norm, norm_back = norm_ops(shard, "ssm_norm", shard.tokens * inner) if ssm.norm else ([], [])
    if ssm.groups > 1 and shard.fused_norm:
        # Programs of a group each, not of whole rows (``layernorm_gated.py``).
        kernels = [op for op in norm_back if isinstance(op, Streaming)]
        norm_back = [replace(op, kind="norm_bwd_groups") for op in kernels]
    kept = input_bytes(shard, "ssm_out")
    # Megatron-Core's activations are sequence first, the kernels' batch first.
    turns = shard.batch > 1 and not shard.batch_first
    turned = [Streaming("ssm_turn", "memcpy", 2 * made)] if turns else []
    turned_back = [Streaming("ssm_turn_back", "memcpy", 2 * values)] if turns else []
    return [
        Part(
            (*into, *by_heads(shard, "ssm_exchange", width), *turned),
            (*turned, *by_heads(shard, "ssm_grad_exchange", width), *into_back),
            # What the convolution does not take: the gate and the steps.
            (Alloc("ssm_gate", gate),),
            forward_peak_bytes=gathered + made,
            backward_peak_bytes=made + full + gathered,
        ),
        _before(shard, ssm),
        _scan(shard, ssm),
        Part(
            (
                Streaming("ssm_gate_fwd", "elementwise", 3 * values),
                *turned_back,
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


def _before(shard: Shard, ssm: Mamba2) -> Part:
    """The convolution with its SiLU, or that alone."""
    channels = ssm.convolved // shard.tp
    if not ssm.fixed_decay:
        return convolution(shard, "ssm", channels, remade=True)
    moved = shard.tokens * channels * shard.element_bytes
    return Part(
        (Streaming("ssm_activation_fwd", "activation", 2 * moved),),
        (Streaming("ssm_activation_bwd", "activation", 3 * moved),),
        (Alloc("ssm_activation_input", moved), Alloc("ssm_activated", moved)),
        backward_peak_bytes=moved,
    )


def _scan(shard: Shard, ssm: Mamba2) -> Part:
    """Within chunks, ``C B^T`` of each group, decayed, times the inputs; across chunks, each
    chunk's state, passed on, and what it adds to the outputs. Backward makes scores and states
    again before the gradients of every product, and the products of outputs' gradients and inputs
    twice: for the scores, and for the decays (``mamba_chunk_scan_combined``)."""
    number, length = chunks(shard, ssm.chunk)
    heads = max(1, ssm.heads // (shard.tp * shard.cp))
    groups = max(1, ssm.groups // (shard.tp * shard.cp))
    dim, state, size = ssm.head_dim, ssm.state, shard.element_bytes
    scores, scores_back = product(
        shard, "ssm_scores", "scan", number * groups, length, length, state
    )
    inside, inside_back = product(shard, "ssm_inside", "scan", number * heads, length, dim, length)
    states, states_back = product(shard, "ssm_states", "scan", number * heads, dim, state, length)
    across, across_back = product(shard, "ssm_across", "scan", number * heads, length, dim, state)
    # States are fp32, written, read and rewritten as they are passed on.
    passed = number * heads * dim * state * 4
    tokens = number * length
    # Inputs, B and C, steps and outputs, read or written once by each fused kernel.
    moved = tokens * (2 * heads * dim + 2 * groups * state) * size
    moved += 0 if ssm.fixed_decay else tokens * heads * 4
    # Backward, five kernels read the inputs (states, the gradients of inputs, B, scores, decays),
    # five the outputs' gradients (of states, inputs, C, scores, decays), and one writes.
    moved_back = 2 * moved + 7 * tokens * heads * dim * size
    decays = Gemm(
        "ssm_decays_wgrad", length, length, dim, shard.dtype, number * heads, within="scan_bwd"
    )
    return Part(
        (
            *scores,
            *states,
            *inside,
            *across,
            Streaming("ssm_scan_fwd", "scan_fwd", moved + 2 * passed, _LAUNCHES),
        ),
        (
            *again((*scores, *states)),
            *inside_back,
            *([] if ssm.fixed_decay else [decays]),
            *across_back,
            *states_back,
            *scores_back,
            Streaming("ssm_scan_bwd", "scan_bwd", moved_back + 5 * passed, _BACKWARD_LAUNCHES),
        ),
        # The convolution's output and the steps are made again from what they came from.
        forward_peak_bytes=passed + moved,
        backward_peak_bytes=2 * passed + 2 * moved,
    )
