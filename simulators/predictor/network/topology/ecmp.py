"""The hash that spreads flows over equal paths, the same for every engine.

Switches hash a packet's headers, so one flow keeps one path and two flows may collide. Here the
headers are (source GPU, destination GPU, label): a label stands for the source port, so several
connections between two GPUs are distinguished. Arithmetic is modulo 2**64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mixed(state: Hashes, value: NDArray[np.int64] | int) -> Hashes:
    """``state`` with ``value`` stirred in: the output function of SplitMix64 (Steele 2014)."""
    word = (state ^ np.asarray(value, dtype=np.int64).astype(np.uint64)) + _GOLDEN
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def flow_hash(
    seed: int,
    source: NDArray[np.int64],
    destination: NDArray[np.int64],
    label: NDArray[np.int64],
) -> Hashes:
    """One hash a flow; arrays of shape (n,) give shape (n,)."""
    state = np.full(source.shape, seed, dtype=np.uint64)
    return mixed(mixed(mixed(state, source), destination), label)


def choice(flow: Hashes, stage: int, options: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Which of ``options`` (>= 1) equal ways each flow takes at one stage of its path."""
    count = np.asarray(options, dtype=np.int64).astype(np.uint64)
    return (mixed(flow, stage) % count).astype(np.int64)
