"""What mixers with a state have in common: a causal convolution before, products chunk by chunk,
and shards of the sequence that become shards of the heads."""

from __future__ import annotations

from dataclasses import replace

from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Attention,
    Collective,
    Gemm,
    Op,
    Streaming,
)
from trainscout.simulators.predictor.workload.part import Part
from trainscout.simulators.predictor.workload.shard import Shard

Passes = tuple[list[Op], list[Op]]


def estimated(part: Part) -> Part:
    """The part, its operations marked: no published timing holds the kernels they stand for."""
    forward, backward = (
        tuple(
            replace(op, estimated=True) if isinstance(op, Gemm | Attention | Streaming) else op
            for op in ops
        )
        for ops in (part.forward, part.backward)
    )
    return replace(part, forward=forward, backward=backward)


def convolution(shard: Shard, name: str, channels: int) -> Part:
    """A depthwise causal convolution of few taps with its SiLU, a pass over its channels each way
    (``causal_conv1d``): bound by memory, it keeps its input."""
    moved = shard.tokens * channels * shard.element_bytes
    return Part(
        (Streaming(f"{name}_conv_fwd", "elementwise", 2 * moved),),
        (Streaming(f"{name}_conv_bwd", "elementwise", 3 * moved, launches=2),),
        (Alloc(f"{name}_conv_input", moved),),
        forward_peak_bytes=moved,
        backward_peak_bytes=2 * moved,
    )


def product(shard: Shard, name: str, batch: int, m: int, n: int, k: int) -> Passes:
    """``batch`` small products and, backward, those of both gradients."""
    return (
        [Gemm(f"{name}_fwd", m, n, k, shard.dtype, batch=batch)],
        [
            Gemm(f"{name}_dgrad", m, k, n, shard.dtype, batch=batch, layout="NN"),
            Gemm(f"{name}_wgrad", n, k, m, shard.dtype, batch=batch, layout="NT"),
        ],
    )


def chunks(shard: Shard, chunk: int) -> tuple[int, int]:
    """Chunks of a micro-batch, and tokens of one; of all sequence shards together, whose heads
    are then as many times fewer."""
    whole = shard.sequence * shard.cp
    length = min(chunk, whole)
    return shard.batch * -(-whole // length), length


def by_heads(shard: Shard, name: str, width: int) -> list[Op]:
    """The exchange that makes shards of the heads of shards of the sequence, or the other way
    round, ``width`` elements a token (Megatron-Core's ``MambaContextParallel``)."""
    if shard.cp == 1:
        return []
    size = shard.tokens * width * shard.element_bytes
    return [
        Streaming(f"{name}_pack", "memcpy", 2 * size),
        Collective(name, "all_to_all", size, "cp", shard.dtype),
        Streaming(f"{name}_unpack", "memcpy", 2 * size),
    ]
