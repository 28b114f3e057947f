"""What mixers with a state have in common: a causal convolution before, products chunk by chunk,
and shards of the sequence that become shards of the heads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .elementwise import Passes
from .ir import Alloc, Collective, Gemm, Op, Streaming
from .part import Part
from .shard import Shard


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


def by_heads(shard: Shard, name: str, width: int) -> list[Op]:
    """The exchange that makes shards of the heads of shards of the sequence, or the other way
    round, ``width`` elements a token (Megatron-Core's ``MambaContextParallel``)."""
    if shard.cp == 1:
        return []
    return exchange(shard, name, shard.tokens * width * shard.element_bytes)


def exchange(shard: Shard, name: str, size: int) -> list[Op]:
    """``size`` bytes packed by destination, exchanged over ``cp``, and put in order after it."""
    return [
        Streaming(f"{name}_pack", "memcpy", 2 * size),
        Collective(name, "all_to_all", size, "cp", shard.dtype),
        Streaming(f"{name}_unpack", "memcpy", 2 * size),
    ]
