"""The physical overlap model: what a communication kernel takes from computation, and the reverse.

Two resources are shared. *SMs*: a channel is a thread block that keeps one SM for the life of
its kernel, so computation is left ``sms - channels``; this holds for streaming kernels too,
whose loads in flight are spread over all SMs (with 20 of 132 SMs reserved and little traffic,
public H800 traces show elementwise kernels at 1.12-1.25). *Device memory*: DRAM serves requests
as they come, so two kernels that together ask for more than there is divide it by their requests
in flight, each SM having as many (``REQUESTS``), and the channels, on few SMs, get what is left:
a kernel that streams is slowed little, and the communication beside it much (measured on one
H100: a stand-in of 16 channels that moves 990 GB/s alone is 2 to 6 times slower beside PyTorch's
elementwise kernels, which take 1.05 to 1.10 times as long). ``traffic`` is what the communication
reads and writes in memory, which is 2 to 3 times what it sends (the NCCL maintainers' figure,
issue 1428; here counted from the ring's steps by the collective's price).

What it leaves out: wave quantisation (a GEMM of exactly one wave loses a whole second one, 1.7
on H100), kernels of few thread blocks, stores that wait for a slow link, clock changes under load.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu

Floats = NDArray[np.float64]

# What a kernel is bound by when it runs alone; every kernel of the IR is one of these.
KERNEL_CLASSES = ("gemm", "grouped_gemm", "attention", "norm", "streaming")
# Requests that an SM of such a kernel has in flight for each of a channel's; products and
# attention wait for their tensor cores and do not crowd a channel out (0). A norm's rows are
# summed before they are written. Measured on one H100 beside 4 to 32 channels, rounded to halves.
REQUESTS = np.array([0.0, 0.0, 0.0, 0.5, 1.0])
_TINY = np.finfo(np.float64).tiny


def overlap_slowdowns(
    gpu: Gpu,
    kernel_s: NDArray[np.floating],
    channels: NDArray[np.integer] | NDArray[np.floating],
    comm_bytes_per_s: NDArray[np.floating],
    excess: float = 1.0,
) -> tuple[Floats, Floats]:
    """Factors by which compute block i and communication j run longer side by side.

    A block's factor is the mean over its kernels' time, the communication's that of its mean
    speed. ``excess`` multiplies by how much longer.

    Args:
        gpu: where they run.
        kernel_s: shape (c, 2, len(KERNEL_CLASSES)), seconds of each block's kernels by class,
            and how many of those are limited by DRAM.
        channels: shape (k,), SMs each communication holds (0 for copy engines).
        comm_bytes_per_s: shape (k,), bytes/s each reads and writes in device memory.

    Returns:
        ``(compute_slowdown, comm_slowdown)``, both of shape (c, k) and >= 1.

    Raises:
        InputError: for negative or NaN seconds, channels or traffic, or more seconds limited by
            DRAM than there are.
    """
    left, limited, on_kernel, comm_speed = _shared(gpu, kernel_s, channels, comm_bytes_per_s)
    compute: Floats = gpu.sms / left * (1.0 + limited @ (on_kernel - 1.0))
    comm: Floats = 1.0 / (1.0 - limited @ (1.0 - comm_speed))
    return 1 + excess * (compute - 1), 1 + excess * (comm - 1)


def paired_slowdowns(
    gpu: Gpu,
    kernel_s: NDArray[np.floating],
    channels: NDArray[np.integer] | NDArray[np.floating],
    comm_bytes_per_s: NDArray[np.floating],
    excess: float = 1.0,
) -> tuple[Floats, Floats]:
    """As ``overlap_slowdowns`` of compute block i and communication i only: shape (c,) each, and
    the same of some pairs as of all."""
    left, limited, on_kernel, comm_speed = _shared(gpu, kernel_s, channels, comm_bytes_per_s)
    slower = (limited * (on_kernel - 1.0).T).sum(axis=1)
    compute: Floats = gpu.sms / left * (1.0 + slower)
    comm: Floats = 1.0 / (1.0 - (limited * (1.0 - comm_speed).T).sum(axis=1))
    return 1 + excess * (compute - 1), 1 + excess * (comm - 1)


def _shared(
    gpu: Gpu,
    kernel_s: NDArray[np.floating],
    channels: NDArray[np.integer] | NDArray[np.floating],
    comm_bytes_per_s: NDArray[np.floating],
) -> tuple[Floats, Floats, Floats, Floats]:
    """SMs that each communication leaves, shape (k,); shares of each block's time that DRAM
    limits, by class, shape (c, classes); and what ``_memory_shared`` says of each
    communication."""
    kernels = np.asarray(kernel_s, dtype=np.float64)
    seconds, dram_s = kernels[:, 0], kernels[:, 1]
    if not ((dram_s >= 0) & (dram_s <= seconds * (1 + 1e-9))).all():
        raise InputError("kernel_s", kernel_s, "is out of range", "0 <= DRAM seconds <= seconds")
    held = np.asarray(channels, dtype=np.float64)
    traffic = np.asarray(comm_bytes_per_s, dtype=np.float64)
    if not (held >= 0).all():
        raise InputError("channels", channels, "is out of range", ">= 0")
    if not ((traffic >= 0) & (traffic < np.inf)).all():
        raise InputError("comm_bytes_per_s", comm_bytes_per_s, "is out of range", "finite, >= 0")
    total = np.maximum(seconds.sum(axis=1, keepdims=True), _TINY)
    limited = np.minimum(dram_s / total, 1.0)
    on_kernel, comm_speed = _memory_shared(gpu, held, traffic / gpu.memory_bandwidth_bytes_per_s)
    # Blocks of a kernel that asks for every SM still leave time slices of one.
    left = np.maximum(gpu.sms - held, 1.0)
    return left, limited, on_kernel, comm_speed


def _memory_shared(gpu: Gpu, held: Floats, demand: Floats) -> tuple[Floats, Floats]:
    """Of a kernel of each class while DRAM limits it: its factor, and the communication's speed
    beside it, both of shape (classes, k). ``demand``: the share of DRAM's bandwidth, (k,)."""
    rivals = gpu.sms * REQUESTS[:, None]
    # What has no requests of its own to count (copy engines, and beside tensor kernels) adds up.
    crowded = (rivals > 0) & (held > 0)
    fair = np.where(crowded, held / np.where(crowded, held + rivals, 1.0), 1.0)
    granted = np.minimum(demand / (1.0 + demand), fair)
    granted = np.where(crowded, np.minimum(demand, fair), granted)
    speed = np.divide(granted, demand, out=np.ones_like(granted), where=demand > 0)
    return 1.0 / (1.0 - granted), speed
