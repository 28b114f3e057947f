"""Making the 8- and 4-bit operands of linear layers, as Transformer Engine's recipes do.

A tensor is used twice: in the product at hand, and laid out the other way in a later one (an
input in the weight gradient, an output gradient in both gradients). Hopper's tensor cores take
8-bit operands only with the inner dimension contiguous, so the second use needs a transposed
copy; Blackwell's take either layout, but blocks of 32 (MXFP8) lie along the inner dimension and
are scaled for each use. Where weights are frozen there is no second use.

NVFP4 (arXiv 2509.25149) scales 16 values under one scale of the tensor: each tensor is read for
its largest value, which ranks that gather shares of it agree on first, and cast along both
dimensions. Operands of the weight gradient go through a Hadamard transform, so that the cast along
the other dimension is a kernel of its own until software fuses both (``fused_fp4_casts``).
Stochastic rounding of gradients and two-dimensional blocks of weights move no further bytes: what
the first one's arithmetic costs is published of casts without a transform alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Collective,
    Op,
    Streaming,
    group_launches,
)
from trainscout.simulators.predictor.workload.shard import Shard

_MX_BLOCK, _NVFP4_BLOCK = 32, 16
_WEIGHT_CAST = "_weight_cast"


def quantise(
    shard: Shard, name: str, elements: int, *, gathered: bool = False, groups: int = 1
) -> list[Op]:
    """Read ``elements`` at activation width, write them at one byte; nothing in 16 bits.

    ``gathered``: they are put together over tensor-parallel ranks before the second use, which
    transposes them then. ``groups``: they are of so many experts, whose tensors are scaled one by
    one where the scale comes from the tensor (``multi_tensor_quantize_impl`` of Transformer
    Engine's extensions/cast.cpp; delayed scales are in one kernel).
    """
    if not shard.is_quantised or (shard.fuses_casts and shard.precision == "fp8"):
        return []
    if shard.linear_dtype == "fp4":
        return _nvfp4(shard, name, elements, gathered)
    written, scales, launches = 1, 0, 1
    if shard.precision == "mxfp8":
        # A scale of one byte for each block, written, then put in the order of the tensor cores.
        written, scales, launches = 2, 2 * 3 * elements // _MX_BLOCK, 3
        if not shard.trains:
            written, scales, launches = 1, 3 * elements // _MX_BLOCK, 2
    elif shard.precision == "fp8_block":
        # Blocks lie along the inner dimension of either product.
        written = 2 if shard.trains else 1
    elif shard.fp8_transposes and shard.trains and not gathered:
        written = 2
    ops: list[Op] = []
    if shard.precision == "fp8_current":
        # The scale comes from the tensor itself: its largest value, then the scale.
        largest = elements * shard.element_bytes
        reads = 2
        if groups > 1 and not shard.fused_experts:
            reads, launches = group_launches(groups, 2), group_launches(groups)
        ops.append(Streaming(f"{name}_amax", "reduce", largest, launches=reads))
    size = elements * (shard.element_bytes + written) + scales
    ops.append(Streaming(f"{name}_cast", "cast", size, launches=launches))
    return ops


def cast_weights(shard: Shard, name: str, elements: int, tensors: int = 1) -> list[Op]:
    """The 16-bit copies of fp32 weights, of so many ``tensors``, under autocast; the 8- or 4-bit
    copies of a layer's weights, for both products, where those are gathered in 16 bits for each
    pass.

    Weights that stay are quantised once a step (``weights.weights``).
    """
    if shard.autocast or (shard.fp32_outputs and name == "logits"):
        moved = (4 + shard.element_bytes) * elements
        return [Streaming(f"{name}{_WEIGHT_CAST}", "cast", moved, tensors)]
    if not shard.quantises_weights:
        return []
    # Weights are not transformed, and make the input's gradient even where they are frozen.
    return quantise(replace(shard, hadamard=False, trains=True), f"{name}_weight", elements)


def weight_copies(shard: Shard, ops: Iterable[Op]) -> tuple[Alloc, ...]:
    """What the casts of weights in a forward pass make: kept for its backward pass."""
    if shard.is_quantised:
        return ()
    casts = (each for each in ops if isinstance(each, Streaming) and _WEIGHT_CAST in each.name)
    elements = sum(each.bytes for each in casts) // (4 + shard.element_bytes)
    return (Alloc("weight_copies", elements * shard.element_bytes),) if elements else ()


def _nvfp4(shard: Shard, name: str, elements: int, gathered: bool) -> list[Op]:
    """The amax, a cast along each dimension with its scales, and their swizzle."""
    size, uses = shard.element_bytes, 2 if shard.trains else 1
    ops: list[Op] = [Streaming(f"{name}_amax", "cast_fp4", elements * size, launches=2)]
    if gathered and shard.tp > 1:
        ops.append(Collective(f"{name}_amax_max", "all_reduce", 4 * uses, "tp", "fp32"))
    apart = uses == 2 and shard.hadamard and not shard.fused_fp4_casts
    reads = uses if apart else 1
    scales = elements // _NVFP4_BLOCK
    moved = reads * size * elements + uses * (elements // 2 + scales)
    ops.append(Streaming(f"{name}_cast", "cast_fp4", moved, launches=reads))
    swizzled = 2 * uses * scales
    ops.append(Streaming(f"{name}_swizzle", "cast_fp4", swizzled, launches=uses))
    return ops


def transpose(shard: Shard, name: str, elements: int) -> list[Op]:
    """The transposed copy of what was gathered in 8 bits, where tensor cores need one."""
    if shard.linear_dtype != "fp8" or not shard.fp8_transposes:
        return []
    return [Streaming(f"{name}_transpose", "cast", 2 * elements)]
