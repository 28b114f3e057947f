"""What the learned model sees of a kernel and the communication beside it (Moye, Table 4).

What a row does not state is NaN, which the trees route by themselves. GPUs enter by their SMs
and memory bandwidth, never by name, so that a GPU without rows of its own is still described.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "send_recv", "all_to_all")
PROTOCOLS = ("ll", "ll128", "simple")
ALGORITHMS = ("ring", "tree", "nvls", "p2p")


@dataclass(frozen=True)
class Features:
    """Columns of shape (n,); shares are fractions, NaN where a figure is not known.

    Communication: ``collective``, ``protocol`` and ``algorithm`` are indices into the tuples
    above, ``message_bytes`` the buffer of one call, ``channels`` the SMs it holds,
    ``channel_share`` those over the GPU's, ``traffic_share`` its device-memory traffic over
    the memory bandwidth. Kernel: ``kernel_class``, its time alone ``time_us``, and the
    profiler's compute (SM) and memory (DRAM) throughput, occupancy and cache hit rates.
    ``reserved_share`` is the share of SMs that the kernel's launch leaves free, alone too.
    """

    collective: Floats
    protocol: Floats
    algorithm: Floats
    message_bytes: Floats
    channels: Floats
    channel_share: Floats
    traffic_share: Floats
    kernel_class: Floats
    time_us: Floats
    compute_throughput: Floats
    memory_throughput: Floats
    occupancy: Floats
    l1_hit_rate: Floats
    l2_hit_rate: Floats
    reserved_share: Floats
    sms: Floats
    dram_bytes_per_s: Floats

    def matrix(self) -> Floats:
        """Shape (n, len(FEATURES)), columns in the order of ``FEATURES``."""
        return np.column_stack([getattr(self, name) for name in FEATURES])


FEATURES = tuple(item.name for item in fields(Features))
