"""Mixers with a state, and what they have in common: a causal convolution before, products chunk
by chunk, and shards of the sequence that become shards of the heads.

Mamba-2's fused kernels (``mamba_ssm``'s) are priced as the products and the bytes that the
algorithm has (state-space duality, arXiv 2405.21060, section 6), at the shares of the peak and of
the bandwidth measured on H100.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trainscout.simulators.predictor.question.layers import Mamba1, Mamba2, ShortConv
from trainscout.simulators.predictor.workload.elementwise import Passes, norm_ops
from trainscout.simulators.predictor.workload.ir import Alloc, Gemm, Op, Streaming
from trainscout.simulators.predictor.workload.linear_layers.adapters import input_bytes
from trainscout.simulators.predictor.workload.linear_layers.linear import exchange, linear
from trainscout.simulators.predictor.workload.part import MIXER_IN, Part
from trainscout.simulators.predictor.workload.shard import Shard


def convolution(shard: Shard, name: str, channels: int, remade: bool = False) -> Part:
    """A depthwise causal convolution of few taps with its SiLU, a pass over its channels each way
    (``causal_conv1d``): bound by memory, its input kept. Backward adds gradients of taps and
    biases up in fp32, cleared before and cast after; ``remade``: it runs forward again first."""
    moved = shard.tokens * channels * shard.element_bytes
    forward = Streaming(f"{name}_conv_fwd", "conv_fwd", 2 * moved)
    return Part(
        (forward,),
        (
            *([forward] if remade else ()),
            Streaming(f"{name}_conv_bwd", "conv_bwd", 3 * moved, launches=5),
        ),
        (Alloc(f"{name}_conv_input", moved),),
        forward_peak_bytes=moved,
        backward_peak_bytes=2 * moved,
    )


def product(shard: Shard, name: str, within: str, batch: int, m: int, n: int, k: int) -> Passes:
    """``batch`` small products and, backward, those of both gradients, within fused kernels."""
    forward = Gemm(f"{name}_fwd", m, n, k, shard.dtype, batch, within=f"{within}_fwd")
    backward = replace(forward, within=f"{within}_bwd")
    return (
        [forward],
        [
            replace(backward, name=f"{name}_dgrad", n=k, k=n, layout="NN"),
            replace(backward, name=f"{name}_wgrad", m=n, n=k, k=m, layout="NT"),
        ],
    )


def again(ops: Iterable[Op]) -> list[Op]:
    """Forward products that backward's kernels make once more."""
    return [
        replace(op, within=op.within.replace("_fwd", "_bwd")) if isinstance(op, Gemm) else op
        for op in ops
    ]


def chunks(shard: Shard, chunk: int) -> tuple[int, int]:
    """Chunks of a micro-batch, and tokens of one; of all sequence shards together, whose heads
    are then as many times fewer."""
    whole = shard.sequence * shard.cp
    length = min(chunk, whole)
    return shard.batch * -(-whole // length), length


def by_heads(shard: Shard, name: str, *widths: int) -> list[Op]:
    """The exchanges that make shards of the heads of shards of the sequence, or the other way
    round, of tensors of so many elements a token (Megatron-Core's ``MambaContextParallel``)."""
    if shard.cp == 1:
        return []
    token = shard.tokens * shard.element_bytes
    return [op for width in widths if width for op in exchange(shard, name, token * width)]


def joined(shard: Shard, made: int, copies: int) -> list[Op]:
    """What was exchanged apart put together, and its tokens in their order or in that which
    balances causal attention: ``copies`` of the whole."""
    return [Streaming("ssm_order", "memcpy", copies * 2 * made, copies)] if shard.cp > 1 else []


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
    groups = ssm.groups * ssm.state // shard.tp
    if shard.cp > 1:
        # Every rank has a group, shared where they are fewer.
        groups *= max(1, shard.cp * shard.tp // ssm.groups)
    apart = (inner, inner, groups, groups, ssm.steps // shard.tp)
    # Megatron-Core's activations are sequence first, the kernels' batch first.
    turns = shard.batch > 1 and not shard.batch_first
    turned = [Streaming("ssm_turn", "memcpy", 2 * made)] if turns else []
    turned_back = [Streaming("ssm_turn_back", "memcpy", 2 * values)] if turns else []
    return [
        Part(
            (
                *into,
                *by_heads(shard, "ssm_exchange", *apart),
                *joined(shard, made, 1),
                *turned,
            ),
            (
                *turned,
                *joined(shard, made, 2),
                *by_heads(shard, "ssm_grad_exchange", *apart),
                *into_back,
            ),
            # What the convolution does not take: the gate and the steps.
            (Alloc("ssm_gate", gate),),
            forward_peak_bytes=gathered + made,
            backward_peak_bytes=made + full + gathered,
            module=MIXER_IN,
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
            _kept_of_output(shard, ssm, values),
            forward_peak_bytes=full + values,
            backward_peak_bytes=2 * full,
        ),
    ]


def _kept_of_output(shard: Shard, ssm: Mamba2, values: int) -> tuple[Alloc, ...]:
    """The scan's output before its gate (``out_x``), and with a norm behind it also after. Modules
    of Transformers and AutoModel give the function norm and projection, too: it makes again what
    comes between (``mamba_split_conv1d_scan_combined``)."""
    scanned = Alloc("ssm_output", values)
    if shard.batch_first and shard.cp == 1 and not ssm.fixed_decay:
        return (scanned,)
    kept = int(values / shard.element_bytes * input_bytes(shard, "ssm_out"))
    gated = [Alloc("ssm_gated", values)] * (ssm.norm and not ssm.fixed_decay)
    return (scanned, *gated, Alloc("ssm_out_input", kept))


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


# For each token, channel and state, in multiply-adds (csrc/selective_scan of mamba_ssm). Forward
# takes about as many, but its exponential takes the time of eight: an SM starts 16 of these a
# clock, and 128 of those (CUDA C++ programming guide, arithmetic throughput). Backward scans from
# both ends and makes the gradients of step, decay, B and C.
_SCAN_FORWARD, _SCAN_BACKWARD = 8, 25


def mamba1_parts(shard: Shard, ssm: Mamba1) -> list[Part]:
    """The parts of one mixer, from the projection in to the projection out, whole on a rank.

    No timing of its scan, one kernel a pass, is published. It keeps states in registers and is
    bound by what it computes of each, not by memory: priced as so many products on fp32 units, and
    the bytes it moves.
    """
    hidden, size, tokens = shard.model.hidden_size, shard.element_bytes, shard.tokens
    inner, small = ssm.inner, ssm.rank + 2 * ssm.state
    into, into_back = linear(shard, "ssm_in", tokens, hidden, 2 * inner)
    select, select_back = linear(shard, "ssm_select", tokens, inner, small)
    step, step_back = linear(shard, "ssm_step", tokens, ssm.rank, inner)
    out, out_back = linear(shard, "ssm_out", tokens, inner, hidden)
    norms, norms_back = norm_ops(shard, "ssm_norm", tokens * small) if ssm.norms else ([], [])
    full, values = tokens * hidden * size, tokens * inner * size
    selected = Alloc("ssm_selected", tokens * small * size)
    # One function for the whole mixer (mamba_inner_fn) makes the convolution's output and the
    # steps again; norms between them leave every tensor to autograd.
    kept = [Alloc("ssm_inputs", values), Alloc("ssm_steps", values)] if ssm.norms else []
    return [
        Part(
            tuple(into),
            tuple(into_back),
            (Alloc("ssm_gate", values),),
            forward_peak_bytes=2 * values,
            backward_peak_bytes=2 * values + full,
        ),
        convolution(shard, "ssm", inner),
        Part(
            (*select, *norms, *step),
            (*step_back, *norms_back, *select_back),
            (selected, *kept),
            forward_peak_bytes=values,
            backward_peak_bytes=2 * values,
        ),
        _selective_scan(shard, ssm),
        Part(
            tuple(out),
            tuple(out_back),
            (Alloc("ssm_out_input", int(tokens * inner * input_bytes(shard, "ssm_out"))),),
            forward_peak_bytes=full,
            backward_peak_bytes=2 * full,
        ),
    ]


def _selective_scan(shard: Shard, ssm: Mamba1) -> Part:
    """Inputs, steps and gates in, outputs out; backward reads them, the output and its gradient,
    and writes three gradients."""
    tokens, size = shard.tokens, shard.element_bytes
    values, states = tokens * ssm.inner * size, tokens * 2 * ssm.state * size

    def computed(name: str, products: int) -> Gemm:
        return Gemm(name, tokens, ssm.inner, products * ssm.state, "fp32", estimated=True)

    return Part(
        (
            computed("ssm_scan_fwd", _SCAN_FORWARD),
            Streaming("ssm_scan_fwd", "elementwise", 4 * values + states),
        ),
        (
            computed("ssm_scan_bwd", _SCAN_BACKWARD),
            Streaming("ssm_scan_bwd", "elementwise", 8 * values + 3 * states),
        ),
        (Alloc("ssm_output", values),),
        forward_peak_bytes=values,
        backward_peak_bytes=3 * values,
    )


def short_conv_parts(shard: Shard, conv: ShortConv) -> list[Part]:
    """The parts of one mixer (LFM2), whole on a rank: ``out(C conv(B x))``, all projected."""
    hidden, tokens = shard.model.hidden_size, shard.tokens
    into, into_back = linear(shard, "conv_in", tokens, hidden, 3 * conv.channels)
    out, out_back = linear(shard, "conv_out", tokens, conv.channels, hidden)
    full = tokens * hidden * shard.element_bytes
    values = tokens * conv.channels * shard.element_bytes
    kept = input_bytes(shard, "conv_out")
    return [
        Part(
            (*into, Streaming("conv_gate_fwd", "elementwise", 3 * values)),
            (Streaming("conv_gate_bwd", "elementwise", 5 * values), *into_back),
            (Alloc("conv_projected", 3 * values),),
            forward_peak_bytes=values,
            backward_peak_bytes=3 * values + full,
        ),
        convolution(shard, "short", conv.channels),
        Part(
            (Streaming("conv_output_gate_fwd", "elementwise", 3 * values), *out),
            (*out_back, Streaming("conv_output_gate_bwd", "elementwise", 5 * values)),
            (
                Alloc("conv_output", values),
                Alloc("conv_out_input", int(tokens * conv.channels * kept)),
            ),
            forward_peak_bytes=full,
            backward_peak_bytes=2 * full,
        ),
    ]
