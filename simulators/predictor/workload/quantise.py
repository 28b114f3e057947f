"""Making the 8-bit operands of linear layers, as Transformer Engine's recipes do.

A tensor is used twice: in the product at hand, and laid out the other way in a later one (an
input in the weight gradient, an output gradient in both gradients). Hopper's tensor cores take
8-bit operands only with the inner dimension contiguous, so the second use needs a transposed
copy; Blackwell's take either layout, but blocks of 32 (MXFP8) lie along the inner dimension and
are scaled for each use. Where weights are frozen there is no second use.
"""

from __future__ import annotations

from trainscout.simulators.predictor.workload.ir import Op, Streaming
from trainscout.simulators.predictor.workload.shard import Shard

_MX_BLOCK = 32


def quantise(shard: Shard, name: str, elements: int, *, gathered: bool = False) -> list[Op]:
    """Read ``elements`` at activation width, write them at one byte; nothing in 16 bits.

    ``gathered``: they are put together over tensor-parallel ranks before the second use, which
    transposes them then.
    """
    if not shard.is_fp8:
        return []
    written, scales, launches = 1, 0, 1
    if shard.precision == "mxfp8":
        # A scale of one byte for each block, written, then put in the order of the tensor cores.
        written, scales, launches = 2, 2 * 3 * elements // _MX_BLOCK, 3
        if not shard.trains:
            written, scales, launches = 1, 3 * elements // _MX_BLOCK, 2
    elif shard.fp8_transposes and shard.trains and not gathered:
        written = 2
    ops: list[Op] = []
    if shard.precision == "fp8_current":
        # The scale comes from the tensor itself: its largest value, then the scale.
        largest = elements * shard.element_bytes
        ops.append(Streaming(f"{name}_amax", "reduce", largest, launches=2))
    size = elements * (shard.element_bytes + written) + scales
    ops.append(Streaming(f"{name}_cast", "cast", size, launches=launches))
    return ops


def quantise_weights(shard: Shard, name: str, elements: int) -> list[Op]:
    """The 8-bit copies of a layer's weights where those are gathered in 16 bits for each pass.

    Weights that stay are quantised once a step, which takes milliseconds and is left out.
    """
    return quantise(shard, f"{name}_weight", elements) if shard.quantises_weights else []


def transpose(shard: Shard, name: str, elements: int) -> list[Op]:
    """The transposed copy of what was gathered in 8 bits, where tensor cores need one."""
    if not shard.is_fp8 or not shard.fp8_transposes:
        return []
    return [Streaming(f"{name}_transpose", "cast", 2 * elements)]
