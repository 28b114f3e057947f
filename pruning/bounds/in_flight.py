"""Most activations a stage holds at once, from its own order of passes."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from trainscout.pruning.bounds.blocks import Ints, PassSizes
from trainscout.simulators.predictor.workload.schedules.passes import (
    BACKWARD,
    FORWARD,
    WEIGHT_GRADIENT,
)
from trainscout.simulators.predictor.workload.schedules.schedule import stage_order


@functools.lru_cache(maxsize=65536)
def moments(
    schedule: str, stage: int, pp: int, micro_batches: int, kinds: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When a stage may hold most: before a pass, how many micro-batches of chunks of each kind are
    kept, shape (moments, kinds); and the pass's direction and kind of chunk, shape (moments, 2).
    Kinds are counted in the order of ``distinct_kinds``.

    Of moments with the same pass only those remain where no other keeps as much of every kind.
    """
    distinct = distinct_kinds(kinds)
    direction, chunk, _ = stage_order(schedule, stage, pp, len(kinds), micro_batches)
    # Half a backward pass frees no more than a whole one; what waits for the rest is left out.
    held = direction != WEIGHT_GRADIENT
    direction, chunk = np.minimum(direction[held], BACKWARD), chunk[held]
    # Chunks of one kind keep the same: only their sum matters.
    kind = np.array([distinct.index(kind) for kind in kinds])[chunk]
    change = np.zeros((len(kind), len(distinct)), dtype=np.int64)
    change[np.arange(len(kind)), kind] = np.where(direction == FORWARD, 1, -1)
    before = np.cumsum(change, axis=0) - change
    passes = direction * len(distinct) + kind
    found, when = [], []
    for each in range(2 * len(distinct)):
        front = _most(before[passes == each])
        found += front
        when += [divmod(each, len(distinct))] * len(front)
    return np.array(found), np.array(when, dtype=np.int64)


def distinct_kinds(kinds: tuple[int, ...]) -> tuple[int, ...]:
    """The kinds of a stage's chunks, each once."""
    return tuple(dict.fromkeys(kinds))


def _most(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The rows that no other is at least as large as in every column."""
    front = []
    while len(rows):
        # Nothing exceeds the row of the largest sum everywhere.
        front.append(rows[int(np.argmax(rows.sum(axis=1)))])
        if rows.shape[1] == 1:
            break
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
    distinct = [passes[kind] for kind in distinct_kinds(kinds)]
    saved = np.stack([each.saved + output_bytes for each in distinct])
    most = np.zeros(len(output_bytes), dtype=np.int64)
    for counts, (way, kind) in zip(held, when.tolist(), strict=True):
        own = distinct[kind]
        peak = own.forward_peak + output_bytes if way == FORWARD else own.backward_peak
        np.maximum(most, counts @ saved + peak, out=most)
    return most
