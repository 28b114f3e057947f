"""Most activations a stage holds at once, from its own order of passes."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from trainscout.pruning.bounds.blocks import Ints, PassSizes
from trainscout.simulators.predictor.workload.schedule import FORWARD, stage_order


@functools.lru_cache(maxsize=65536)
def moments(
    schedule: str, stage: int, pp: int, micro_batches: int, kinds: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When a stage may hold most: before a pass, how many micro-batches of each of its chunks are
    kept, shape (moments, chunks); and the pass's direction and chunk, shape (moments, 2).

    Of moments with the same pass only those remain where no other keeps as much of every chunk.
    """
    vpp = len(kinds)
    direction, chunk, _ = stage_order(schedule, stage, pp, vpp, micro_batches)
    change = np.eye(vpp, dtype=np.int64)[chunk] * np.where(direction == FORWARD, 1, -1)[:, None]
    before = np.cumsum(change, axis=0) - change
    # Chunks of one kind keep the same: only their sum matters.
    same = np.array([[a == b for b in kinds] for a in kinds], dtype=np.int64)
    place = np.array([kinds.index(kind) for kind in kinds], dtype=np.int64)
    held = before @ same * (place == np.arange(vpp))
    passes = np.column_stack([direction, place[chunk]])
    found, when = [], []
    for way, at in sorted(set(map(tuple, passes.tolist()))):
        front = _most(held[(passes == (way, at)).all(axis=1)])
        found += front
        when += [(way, at)] * len(front)
    return np.array(found), np.array(when, dtype=np.int64)


def _most(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The rows that no other is at least as large as in every column."""
    front = []
    while len(rows):
        # Nothing exceeds the row of the largest sum everywhere.
        front.append(rows[int(np.argmax(rows.sum(axis=1)))])
        rows = rows[(rows > front[-1]).any(axis=1)]
    return front


def most_held(
    schedule: str,
    stage: int,
    pp: int,
    micro_batches: int,
    kinds: tuple[int, ...],
    passes: list[PassSizes],
    output_bytes: Ints,
) -> Ints:
    """Bytes of activations and temporaries at a stage's peak, shape (rows,).

    Args:
        schedule, stage, pp, micro_batches: the pipeline.
        kinds: kind of each of the stage's chunks.
        passes: passes of each kind.
        output_bytes: what stays of each pass's result besides, shape (rows,).
    """
    held, when = moments(schedule, stage, pp, micro_batches, kinds)
    saved = np.stack([passes[kind].saved + output_bytes for kind in kinds])
    most = np.zeros(len(output_bytes), dtype=np.int64)
    for counts, (way, chunk) in zip(held, when, strict=True):
        own = passes[kinds[chunk]]
        peak = own.forward_peak + output_bytes if way == FORWARD else own.backward_peak
        np.maximum(most, counts @ saved + peak, out=most)
    return most
