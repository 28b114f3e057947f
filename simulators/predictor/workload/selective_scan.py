"""Mamba-1: projections, convolution and the selective scan, one kernel a pass.

No timing of that kernel is published. It keeps states in registers and is bound by what it
computes of each, not by memory: priced as so many products on fp32 units, and the bytes it moves.
"""

from __future__ import annotations

from trainscout.simulators.predictor.question.layers import Mamba1

from .adapters import input_bytes
from .elementwise import norm_ops
from .ir import Alloc, Gemm, Streaming
from .linear import linear
from .part import Part
from .scan import convolution
from .shard import Shard

# For each token, channel and state, in multiply-adds (csrc/selective_scan of mamba_ssm). Forward
# takes about as many, but its exponential takes the time of eight: an SM starts 16 of these a
# clock, and 128 of those (CUDA C++ programming guide, arithmetic throughput). Backward scans from
# both ends and makes the gradients of step, decay, B and C.
_FORWARD, _BACKWARD = 8, 25


def mamba1_parts(shard: Shard, ssm: Mamba1) -> list[Part]:
    """The parts of one mixer, from the projection in to the projection out, whole on a rank."""
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
        _scan(shard, ssm),
        Part(
            tuple(out),
            tuple(out_back),
            (
                Alloc(
                    "ssm_out_input",
                    int(tokens * inner * input_bytes(shard, "ssm_out")),
                ),
            ),
            forward_peak_bytes=full,
            backward_peak_bytes=2 * full,
        ),
    ]


def _scan(shard: Shard, ssm: Mamba1) -> Part:
    """Inputs, steps and gates in, outputs out; backward reads them, the output and its gradient,
    and writes three gradients."""
    tokens, size = shard.tokens, shard.element_bytes
    values, states = tokens * ssm.inner * size, tokens * 2 * ssm.state * size

    def computed(name: str, products: int) -> Gemm:
        return Gemm(name, tokens, ssm.inner, products * ssm.state, "fp32", estimated=True)

    return Part(
        (
            computed("ssm_scan_fwd", _FORWARD),
            Streaming("ssm_scan_fwd", "elementwise", 4 * values + states),
        ),
        (
            computed("ssm_scan_bwd", _BACKWARD),
            Streaming("ssm_scan_bwd", "elementwise", 8 * values + 3 * states),
        ),
        (Alloc("ssm_output", values),),
        forward_peak_bytes=values,
        backward_peak_bytes=3 * values,
    )
