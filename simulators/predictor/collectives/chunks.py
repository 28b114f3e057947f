"""How NCCL cuts a message: the channels a call keeps busy and the chunk each handles at once.

Rules of NCCL's enqueue step, versions 2.10 to 2.30; Moye (Table 5) lists what they give for a
tree all-reduce on 32 H800.
"""

from __future__ import annotations

import math

from trainscout.simulators.predictor.collectives.cost import Option, tree_depth
from trainscout.simulators.predictor.collectives.graph import Wiring

KIB = 1024
# Data bytes of one step of the FIFO between two peers (NCCL_STEPS is 8).
STEP_BYTES = {"ll": 32 * KIB, "ll128": 576_000, "simple": 512 * KIB}
# Bytes on the wire per byte of data: flags ride along in LL and LL128.
WIRE_BYTES_PER_BYTE = {"ll": 2.0, "ll128": 16 / 15, "simple": 1.0}
# Before 2.22: threads of a channel and the bytes each must have before another channel joins.
_THREADS = {"ll": 512, "ll128": 640, "simple": 512}
_BYTES_PER_THREAD = {"ll": 8, "ll128": 8, "simple": 64}


def channels_used(kind: str, size_bytes: int, option: Option, wiring: Wiring) -> int:
    """Channels (hence SMs) that a call of this size keeps busy.

    From 2.22 on a channel takes part only with a least amount of traffic (NCCL counts LL's four
    times); before, with a least number of bytes per thread.
    """
    graphs = wiring.graphs
    if option.algorithm.startswith("nvls"):
        return graphs.nvls_channels
    most, version = graphs.channels, wiring.version
    if version >= (2, 22, 0):
        least = 512 if version < (2, 23, 0) else 16 * KIB if version < (2, 30, 0) else 32 * KIB
        traffic = size_bytes * (2 if kind == "all_reduce" else 1)
        if option.protocol == "ll":
            traffic *= 4
        return max(1, min(most, traffic // least))
    per_channel = _THREADS[option.protocol] * _BYTES_PER_THREAD[option.protocol]
    if option.algorithm == "ring" and option.protocol == "ll":
        per_channel *= wiring.ranks
    return max(1, min(most, size_bytes // per_channel))


def ring_chunk_bytes(kind: str, protocol: str) -> int:
    """Chunk of a ring: four steps in Simple, except where a single pipeline is filled."""
    steps = 4 if protocol == "simple" and kind not in ("broadcast", "reduce") else 1
    return steps * STEP_BYTES[protocol]


def tree_chunk_bytes(size_bytes: int, protocol: str, wiring: Wiring, channels: int) -> int:
    """Chunk of a tree all-reduce; NCCL halves LL128's while the message is short."""
    chunk = STEP_BYTES[protocol]
    if protocol == "simple" and wiring.version < (2, 20, 0):
        depth = wiring.ranks_per_node - 1 + tree_depth(wiring.nodes)
        for loops, floor in ((8 * depth, 128 * KIB), (4 * depth, 64 * KIB), (depth, 32 * KIB)):
            while size_bytes / (channels * chunk) < loops and chunk > floor:
                chunk //= 2
    if protocol != "ll128":
        return chunk
    steps = 1 + math.log2(wiring.nodes) + 0.1 * wiring.ranks_per_node
    for limit, floor in ((64.0, 131072), (16.0, 32768)):
        target = limit * steps / wiring.ranks_per_node
        while size_bytes // (channels * chunk) < target and chunk > floor:
            chunk //= 2
    return chunk


# NVLS shrinks its 128 KiB chunk below so many loops: (loops, smaller chunk).
_NVLS_SHRINK = ((64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB))
# Of a head and channel of CollNet, which NCCL halves for short messages.
COLLNET_CHUNK_BYTES = 128 * KIB
_NVLS_TREE_SHRINK = ((4, 64 * KIB), (1, 32 * KIB))


def nvls_chunk_bytes(size_bytes: int, option: Option, wiring: Wiring, heads: int) -> int:
    """Chunk of one head and channel of NVLS, or of NVLSTree between nodes."""
    operations = wiring.graphs.nvls_channels * heads
    chunk = 128 * KIB
    shrink: tuple[tuple[int, int], ...] = _NVLS_SHRINK
    if option.algorithm == "nvls_tree":
        shrink = _NVLS_TREE_SHRINK
        if wiring.nodes >= 4:
            chunk = 64 * KIB
    for loops, smaller in shrink:
        if chunk > smaller and size_bytes < loops * operations * chunk:
            chunk = smaller
    return chunk
