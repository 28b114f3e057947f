"""Hyper-connections (mHC, arXiv 2512.24880): a residual of several streams, of which each half of
a layer reads a weighted sum, and to which its output is added while they are mixed.

Kernels are fused by hand or by a compiler: each reads and writes the streams once, but for the
norm's look at them. Written as operations, what is done in fp32 goes through memory.
"""

from __future__ import annotations

from trainscout.simulators.predictor.workload.ir import Alloc, Gemm, Streaming
from trainscout.simulators.predictor.workload.part import Part
from trainscout.simulators.predictor.workload.shard import Shard


def read_part(shard: Shard, name: str) -> Part:
    """In front of a half: its weights, by a projection of the normed streams and iterations over a
    few numbers a token, and the sum that it takes."""
    return _read(shard, name, shard.model.mixing_weights)


def collapse_part(shard: Shard) -> Part:
    """In front of the final norm: the same sum alone."""
    return _read(shard, "streams", shard.model.residual_streams)


def expand_part(shard: Shard) -> Part:
    """Behind the embedding: as many copies of it as there are streams."""
    streams, one = shard.model.residual_streams, _one(shard)
    return Part(
        (Streaming("streams_expand", "memcpy", (1 + streams) * one),),
        (Streaming("streams_expand_bwd", "reduce", (1 + streams) * one),),
        forward_peak_bytes=streams * one,
        backward_peak_bytes=streams * one,
    )


def write_part(shard: Shard, name: str) -> Part:
    """Behind a half, in the residual addition's place: streams mixed by a small matrix a token,
    and the output added to each by its weight."""
    streams, one = shard.model.residual_streams, _one(shard)
    forward, backward = (2 * streams + 1) * one, (4 * streams + 2) * one
    if shard.fusion == "eager":
        # The product with the output, the mixed streams, their sum.
        forward, backward = (5 * streams + 1) * one, (8 * streams + 2) * one
    return Part(
        (Streaming(f"{name}_mix", "elementwise", forward, launches=_launches(shard, 3)),),
        (Streaming(f"{name}_mix_bwd", "elementwise", backward, launches=_launches(shard, 6)),),
        (Alloc(f"{name}_mix_output", one),),
        forward_peak_bytes=streams * one,
        backward_peak_bytes=streams * one,
        module=name,
    )


# The iterations that make rows and columns of a token's matrix sum to one, each two sums and two
# quotients of their own where operations are written apart.
_ITERATIONS = 20


def _read(shard: Shard, name: str, weights: int) -> Part:
    streams, one = shard.model.residual_streams, _one(shard)
    wide, tokens = streams * shard.model.hidden_size, shard.local_tokens
    size = shard.element_bytes
    # A look for the norm, the projection's operand in fp32, and the weighted sum.
    forward = (2 * streams + 1) * one
    backward = (3 * streams + 1) * one
    if shard.fusion == "eager":
        per_stream = tokens * wide
        forward += per_stream * (size + 4 + 12 + size + 4)
        backward += 2 * per_stream * (size + 16)
    mixes = weights > 2 * streams
    launches = 4 + 4 * _ITERATIONS * mixes
    iterated = tokens * weights * 4 * (4 * _ITERATIONS if mixes else 4)
    if shard.fusion != "eager":
        iterated = 2 * tokens * weights * 4
    small = Streaming(f"{name}_weights", "elementwise", iterated, _launches(shard, launches))
    undone = Streaming(
        f"{name}_weights_bwd", "elementwise", 2 * iterated, _launches(shard, 2 * launches)
    )
    gradients = [Gemm(f"{name}_weights_dgrad", tokens, wide, weights, shard.dtype, layout="NN")]
    if shard.trains:
        shape = (f"{name}_weights_wgrad", weights, wide, tokens)
        gradients.append(Gemm(*shape, shard.dtype, layout="NT"))
    return Part(
        (
            Gemm(f"{name}_weights_fwd", tokens, weights, wide, shard.dtype),
            small,
            Streaming(f"{name}_read", "elementwise", forward, launches=_launches(shard, 6)),
        ),
        (
            Streaming(f"{name}_read_bwd", "elementwise", backward, launches=_launches(shard, 10)),
            undone,
            *gradients,
        ),
        (
            Alloc(f"{name}_streams", streams * one),
            Alloc(f"{name}_mixing", tokens * weights * 4 * (2 if mixes else 1)),
        ),
        forward_peak_bytes=one + (4 * tokens * wide if shard.fusion == "eager" else 0),
        backward_peak_bytes=2 * streams * one,
    )


def _launches(shard: Shard, written: int) -> int:
    return written if shard.fusion == "eager" else 1


def _one(shard: Shard) -> int:
    """Bytes of one stream."""
    return shard.local_tokens * shard.model.hidden_size * shard.element_bytes
