"""Gated short convolutions (LFM2): a projection to two gates and a value, few taps, and out."""

from __future__ import annotations

from trainscout.simulators.predictor.question.layers import ShortConv

from .adapters import input_bytes
from .ir import Alloc, Streaming
from .linear import linear
from .part import Part
from .scan import convolution
from .shard import Shard


def short_conv_parts(shard: Shard, conv: ShortConv) -> list[Part]:
    """The parts of one mixer, whole on a rank: ``out(C conv(B x))`` with B, C and x projected."""
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
