"""The physical overlap model: what a communication kernel takes from computation, and the reverse.

Two resources are shared. *SMs*: a channel is a thread block that keeps one SM for the life of
its kernel, so computation is left ``sms - channels``; this holds for streaming kernels too,
whose loads in flight are spread over all SMs (with 20 of 132 SMs reserved and little traffic,
public H800 traces show elementwise kernels at 1.12-1.25). *Device memory*: in the part of its
time in which a kernel is limited by DRAM, both sides ask for more than there is and each gets
its share, so both stretch by ``1 + traffic / bandwidth``. ``traffic`` is what the communication
reads and writes in memory, which is 2 to 3 times what it sends (the NCCL maintainers' figure,
issue 1428; here counted from the ring's steps by the collective's price).

What it leaves out: wave quantisation (a GEMM of exactly one wave loses a whole second one, 1.7
on H100), kernels of few thread blocks, clock changes under load.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu

Floats = NDArray[np.float64]

# What a kernel is bound by when it runs alone; every kernel of the IR is one of these.
KERNEL_CLASSES = ("gemm", "grouped_gemm", "attention", "norm", "streaming")


def overlap_slowdowns(
    gpu: Gpu,
    kernel_s: NDArray[np.floating],
    channels: NDArray[np.integer] | NDArray[np.floating],
    comm_bytes_per_s: NDArray[np.floating],
    excess: float = 1.0,
) -> tuple[Floats, Floats]:
    """Factors by which compute block i and communication j run longer side by side.

    A block's factor is the mean over its kernels' time. ``excess`` multiplies by how much longer.

    Args:
        gpu: where they run.
        kernel_s: shape (c, 2, len(KERNEL_CLASSES)), seconds of each block's kernels by class,
            and how many of those are limited by DRAM.
        channels, comm_bytes_per_s: see ``physical_slowdowns``.

    Returns:
        ``(compute_slowdown, comm_slowdown)``, both of shape (c, k) and >= 1.

    Raises:
        InputError: for negative or NaN seconds, channels or traffic, or more seconds limited by
            DRAM than there are.
    """
    kernels = np.asarray(kernel_s, dtype=np.float64)
    seconds, dram_s = kernels[:, 0], kernels[:, 1]
    if not np.all((dram_s >= 0) & (dram_s <= seconds * (1 + 1e-9))):
        raise InputError("kernel_s", kernel_s, "is out of range", "0 <= DRAM seconds <= seconds")
    total = np.maximum(seconds.sum(axis=1), np.finfo(np.float64).tiny)
    bound = np.minimum(dram_s.sum(axis=1) / total, 1.0)
    on_compute, on_wires = physical_slowdowns(gpu, bound, channels, comm_bytes_per_s)
    return 1 + excess * (on_compute - 1), 1 + excess * (on_wires - 1)


def physical_slowdowns(
    gpu: Gpu,
    memory_bound: NDArray[np.floating],
    channels: NDArray[np.integer] | NDArray[np.floating],
    comm_bytes_per_s: NDArray[np.floating],
) -> tuple[Floats, Floats]:
    """Factors by which compute block i and communication j run longer side by side.

    Args:
        gpu: where they run.
        memory_bound: shape (c,), share 0..1 of each block's time limited by DRAM.
        channels: shape (k,), SMs each communication holds (0 for copy engines).
        comm_bytes_per_s: shape (k,), bytes/s each reads and writes in device memory.

    Returns:
        ``(compute_slowdown, comm_slowdown)``, both of shape (c, k) and >= 1.

    Raises:
        InputError: for a share outside 0..1, or negative or NaN channels or traffic.
    """
    bound = np.asarray(memory_bound, dtype=np.float64)[:, None]
    held = np.asarray(channels, dtype=np.float64)[None, :]
    traffic = np.asarray(comm_bytes_per_s, dtype=np.float64)[None, :]
    if not np.all((bound >= 0) & (bound <= 1)):
        raise InputError("memory_bound", memory_bound, "is out of range", "0 <= x <= 1")
    if not np.all(held >= 0):
        raise InputError("channels", channels, "is out of range", ">= 0")
    if not np.all((traffic >= 0) & np.isfinite(traffic)):
        raise InputError("comm_bytes_per_s", comm_bytes_per_s, "is out of range", "finite, >= 0")
    # Blocks of a kernel that asks for every SM still leave time slices of one.
    left = np.maximum(gpu.sms - held, 1.0)
    memory = 1.0 + bound * (traffic / gpu.memory_bandwidth_bytes_per_s)
    return gpu.sms / left * memory, memory
