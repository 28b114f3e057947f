"""Slowdowns as the replay asks for them: physical, or learned where that was shown better."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.interference.features import KERNEL_CLASSES, Floats
from trainscout.simulators.predictor.interference.learned import learned_classes, learned_factors
from trainscout.simulators.predictor.interference.overlap import physical_slowdowns
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu


def overlap_slowdowns(
    gpu: Gpu,
    kernel_s: NDArray[np.floating],
    channels: NDArray[np.integer] | NDArray[np.floating],
    comm_bytes_per_s: NDArray[np.floating],
) -> tuple[Floats, Floats]:
    """Factors by which compute block i and communication j run longer side by side.

    A block's factor is the mean over its kernels' time. Classes for which the learned model
    did better out of sample (``fitted/overlap.yaml``) are corrected by it inside the range it
    was trained on; all others, and every communication, are physical.

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
    kernels = np.asarray(kernel_s, dtype=np.float64)
    seconds, dram_s = kernels[:, 0], kernels[:, 1]
    if not np.all((dram_s >= 0) & (dram_s <= seconds * (1 + 1e-9))):
        raise InputError("kernel_s", kernel_s, "is out of range", "0 <= DRAM seconds <= seconds")
    total = np.maximum(seconds.sum(axis=1), np.finfo(np.float64).tiny)
    bound = np.minimum(dram_s.sum(axis=1) / total, 1.0)
    on_compute, on_wires = physical_slowdowns(gpu, bound, channels, comm_bytes_per_s)
    for name in learned_classes():
        which = KERNEL_CLASSES.index(name)
        own_bound = dram_s[:, which] / np.maximum(seconds[:, which], np.finfo(np.float64).tiny)
        own, _ = physical_slowdowns(gpu, np.minimum(own_bound, 1.0), channels, comm_bytes_per_s)
        factors = learned_factors(name, gpu, own_bound, channels, comm_bytes_per_s)
        share = (seconds[:, which] / total)[:, None]
        on_compute = on_compute + share * (np.maximum(own * factors, 1.0) - own)
    return on_compute, on_wires
