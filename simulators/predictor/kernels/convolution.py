"""Time of convolutions: a product of matrices whose operand is read in windows.

Libraries compute a convolution as one implicit matrix product (cuDNN API reference,
``IMPLICIT_PRECOMP_GEMM`` and the tensor-core kernels that follow it). With N images, C channels,
P and Q pixels in and out, K taps of the filter and g groups,

    pass    m           n         k                   times
    fwd     N Q         C_out/g   C_in/g K            g
    dgrad   N P         C_in/g    C_out/g K Q/P       g
    wgrad   C_out/g     C_in/g K  N Q                 g

so every pass does ``2 N Q K C_in C_out / g`` FLOPs: a strided input gradient skips the taps that
meet no output pixel. Compute time is that of the fitted matrix product (``gemm.py``) with
channels rounded up to what 16-byte loads need, which cuDNN pads to; DRAM sees each tensor once,
because windows overlap in caches. What a convolution loses beyond that (index arithmetic, short
inner loops) is not known here, nor what Winograd's transform saves in fp32: evidence is estimated.

Tensor-core kernels want channels last; cuDNN transposes other tensors before and after ("some
overhead due to automatic transpose operations", NVIDIA, Convolutional Layers User's Guide), which
is priced as copies. One channel a group (depthwise) leaves no product to speak of: direct kernels
run on the fp32 units at the roofline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trainscout.simulators.predictor.question.errors import require_choice
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import Convolution

from .gemm import ELEMENT_BYTES, Floats, join, price_gemms
from .streaming import price_streaming

PASSES = ("fwd", "dgrad", "wgrad")
# Channels that one 16-byte load holds.
CHANNEL_GRANULE = {"bf16": 8, "fp16": 8, "tf32": 4, "fp32": 1}


def implicit_gemm(op: Convolution, granule: int = 1) -> tuple[int, int, int, int]:
    """m, n, k and number of the products; what lies contiguously rounded up to ``granule``."""
    inward = _round_up(op.in_channels // op.groups, granule)
    outward = _round_up(op.out_channels // op.groups, granule)
    pixels_in, pixels_out = op.batch * math.prod(op.in_size), op.batch * math.prod(op.out_size)
    taps = math.prod(op.kernel)
    if op.pass_ == "fwd":
        return pixels_out, outward, inward * taps, op.groups
    if op.pass_ == "dgrad":
        met = -(-outward * taps * pixels_out // pixels_in)
        return pixels_in, inward, _round_up(met, granule), op.groups
    return outward, inward * taps, pixels_out, op.groups


def _round_up(elements: int, granule: int) -> int:
    return -(-elements // granule) * granule


def convolution_elements(op: Convolution) -> tuple[int, int, int]:
    """Elements of input, filter and output; a pass reads two of them and writes the third."""
    taps = math.prod(op.kernel)
    return (
        op.batch * op.in_channels * math.prod(op.in_size),
        op.out_channels * op.in_channels // op.groups * taps,
        op.batch * op.out_channels * math.prod(op.out_size),
    )


def price_convolutions(gpu: Gpu, dtype: str, ops: Sequence[Convolution]) -> tuple[Floats, Floats]:
    """Seconds and DRAM share of convolutions of one precision, each of shape (ops,).

    Raises:
        InputError: for an unknown pass or precision, or one that the GPU does not have.
    """
    require_choice("convolution.dtype", dtype, CHANNEL_GRANULE)
    for pass_ in {op.pass_ for op in ops}:
        require_choice("convolution.pass_", pass_, PASSES)
    element = ELEMENT_BYTES[dtype]
    moved = np.array([element * sum(convolution_elements(op)) for op in ops], dtype=np.float64)
    sizes = np.array([implicit_gemm(op, CHANNEL_GRANULE[dtype]) for op in ops], dtype=np.int64)
    gradient = np.array([op.pass_ == "wgrad" for op in ops])
    none, written = np.zeros(len(ops), dtype=bool), np.zeros(len(ops), dtype=np.int64)
    seconds, share, _ = price_gemms(gpu, dtype, sizes, gradient, written, none, dram_bytes=moved)
    # Each output channel sees one input channel of several.
    depthwise = np.array([op.groups == op.in_channels > 1 for op in ops])
    if depthwise.any():
        flops = np.array([op.flops for op in ops], dtype=np.float64)
        direct, direct_share = _direct(gpu, flops, moved)
        seconds = np.where(depthwise, direct, seconds)
        share = np.where(depthwise, direct_share, share)
    transposed = np.array([dtype != "fp32" and not op.channels_last for op in ops]) & ~depthwise
    if transposed.any():
        copies, copy_share = _transposes(gpu, moved)
        copies = np.where(transposed, copies, 0.0)
        share = (share * seconds + copy_share * copies) / (seconds + copies)
        seconds = seconds + copies
    return seconds, share


def _direct(gpu: Gpu, flops: Floats, moved: Floats) -> tuple[Floats, Floats]:
    """Kernels without tensor cores, at the roofline of fp32 units and streaming bandwidth."""
    launches = np.stack([moved, np.ones(len(moved))], axis=1).astype(np.int64)
    streamed, _, _ = price_streaming(gpu, ["elementwise"] * len(moved), launches)
    seconds = join(flops / gpu.peak("fp32"), streamed, 2.0)
    return seconds, np.minimum(moved / gpu.memory_bandwidth_bytes_per_s / seconds, 1.0)


def _transposes(gpu: Gpu, moved: Floats) -> tuple[Floats, Floats]:
    """Each tensor read and written once more by a copy kernel of its own."""
    copied = np.stack([2.0 * moved, np.full(len(moved), 3.0)], axis=1).astype(np.int64)
    seconds, share, _ = price_streaming(gpu, ["memcpy"] * len(moved), copied)
    return seconds, share
