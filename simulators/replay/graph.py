"""From plain lists of tasks, edges and stream orders to the engine's arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulators.interference import overlap_slowdowns
from simulators.job import Gpu
from simulators.replay.engine import Floats, Ints, Tasks

NEUTRAL_KIND = 0


def make_tasks(
    work: Floats,
    kind: Ints,
    edges: tuple[Ints, Ints, Floats],
    orders: Sequence[Ints],
    stream_rank: Ints,
    slowdown: Floats,
    side: Ints | None = None,
) -> Tasks:
    """Engine tasks in which every task sits on one stream.

    Args:
        work: seconds of each task, shape (n,).
        kind: row of ``slowdown`` of each task, shape (n,).
        edges: tasks before, tasks after, lags in seconds; equal shapes.
        orders: task numbers of each stream, in order; together every task once.
        stream_rank: rank of each stream.
        slowdown: factor on a row's kind while a column's kind runs beside it.
        side: side stream of each main stream, see ``Tasks``.
    """
    before, after, lags = edges
    count = len(work)
    by_source = np.argsort(before, kind="stable")
    successor_start = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(before, minlength=count), out=successor_start[1:])
    order_start = np.zeros(len(orders) + 1, dtype=np.int64)
    np.cumsum([len(order) for order in orders], out=order_start[1:])
    stream_tasks = np.concatenate(orders)
    stream_of = np.empty(count, dtype=np.int64)
    stream_of[stream_tasks] = np.repeat(np.arange(len(orders)), np.diff(order_start))
    return Tasks(
        work=work,
        kind=kind,
        stream_start=np.arange(count + 1, dtype=np.int64),
        task_streams=stream_of,
        successor_start=successor_start,
        successors=after[by_source],
        lags=lags[by_source],
        order_start=order_start,
        stream_tasks=stream_tasks,
        stream_rank=stream_rank,
        slowdown=slowdown,
        side=side,
    )


class Kinds:
    """Numbers what runs at once and makes the slowdown matrix of it.

    Kind 0 is neutral. A compute kind is a share of kernel time (the rest does not compete) and
    how memory-bound those kernels are; a communication kind is its channels and the bytes per
    second it moves through device memory.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[bool, float, float], int] = {}

    def compute(self, share: float, memory_bound: float) -> int:
        return self._number(False, share, memory_bound)

    def communication(self, channels: float, bytes_per_s: float) -> int:
        return self._number(True, channels, bytes_per_s)

    def _number(self, *key: bool | float) -> int:
        is_communication, first, second = key
        full = (bool(is_communication), float(first), float(second))
        return self._numbers.setdefault(full, len(self._numbers) + 1)

    def slowdowns(self, gpu: Gpu) -> Floats:
        """Shape (kinds, kinds): factor on the row's kind while the column's runs beside it."""
        matrix = np.ones((len(self._numbers) + 1,) * 2)
        entries = [(number, key[1], key[2]) for key, number in self._numbers.items() if not key[0]]
        wires = [(number, key[1], key[2]) for key, number in self._numbers.items() if key[0]]
        if not entries or not wires:
            return matrix
        rows, share, memory_bound = (np.array(column) for column in zip(*entries, strict=True))
        columns, channels, bytes_per_s = (np.array(column) for column in zip(*wires, strict=True))
        on_compute, on_wires = overlap_slowdowns(gpu, memory_bound, channels, bytes_per_s)
        # Only the kernels of a pass compete; its own exposed communication does not.
        matrix[np.ix_(rows, columns)] = 1 + share[:, None] * (on_compute - 1)
        matrix[np.ix_(columns, rows)] = 1 + (share[:, None] * (on_wires - 1)).T
        return matrix
