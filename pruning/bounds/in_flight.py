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
    place = [kinds.index(kind) for kind in kinds]
    keep = np.array([place[c] == c for c in range(vpp)], dtype=np.int64)
    held = before @ same * keep
    passes = np.column_stack([direction, np.array(place)[chunk]])
    rows = np.unique(np.concatenate([passes, held], axis=1), axis=0)
    kept = []
    for way, at in np.unique(rows[:, :2], axis=0):
        alike = rows[(rows[:, 0] == way) & (rows[:, 1] == at)]
        below = (alike[:, None] <= alike[None]).all(axis=2)
        np.fill_diagonal(below, False)
        kept.append(alike[~below.any(axis=1)])
    found = np.concatenate(kept)
    return found[:, 2:], found[:, :2]


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
