"""From plain lists of tasks, edges and stream orders to the engine's arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainscout.simulators.predictor.interference.overlap import overlap_slowdowns
from trainscout.simulators.predictor.question.gpu import Gpu

from .engine import Floats, Ints, Tasks

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
    """Engine tasks of plain lists.

    Args:
        work: seconds of each task, shape (n,).
        kind: row of ``slowdown`` of each task, shape (n,).
        edges: tasks before, tasks after, lags in seconds; equal shapes.
        orders: task numbers of each stream, in order; every task is on one stream or several.
        stream_rank: rank of each stream.
        slowdown: factor on a row's kind while a column's kind runs beside it.
        side: side stream of each main stream, see ``Tasks``.
    """
    before, after, lags = edges
    count = len(work)
    by_source = np.argsort(before, kind="stable")
    lengths = [len(order) for order in orders]
    stream_tasks = np.concatenate(orders)
    streams = np.repeat(np.arange(len(orders)), lengths)
    if len(stream_tasks) == count:
        stream_start = np.arange(count + 1, dtype=np.int64)
        task_streams = np.empty(count, dtype=np.int64)
        task_streams[stream_tasks] = streams
    else:
        stream_start = _starts(np.bincount(stream_tasks, minlength=count))
        task_streams = streams[np.argsort(stream_tasks, kind="stable")]
    return Tasks(
        work=work,
        kind=kind,
        stream_start=stream_start,
        task_streams=task_streams,
        successor_start=_starts(np.bincount(before, minlength=count)),
        successors=after[by_source],
        lags=lags[by_source],
        order_start=_starts(lengths),
        stream_tasks=stream_tasks,
        stream_rank=stream_rank,
        slowdown=slowdown,
        side=side,
    )


def _starts(lengths: Sequence[int] | Ints) -> Ints:
    """Where each of so many stretches begins, and where the last ends."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


class Kinds:
    """Numbers what runs at once and makes the slowdown matrix of it.

    Kind 0 is neutral. A compute kind is a share of kernel time (the rest does not compete) and
    the mix of those kernels; a communication kind is its channels and the bytes per second it
    moves through device memory. Both have the share of their time that a node's NICs are busy
    for them: side by side they divide them, as long as both are.
    """

    def __init__(self) -> None:
        self._computes: dict[tuple[float, bytes, float], int] = {}
        self._wires: dict[tuple[float, float, float], int] = {}

    def compute(self, share: float, kernel_s: Floats, nic_share: float = 0.0) -> int:
        """The kind of kernels, ``kernel_s`` their seconds as in ``PricedBlock``."""
        key = (share, kernel_s.tobytes(), nic_share)
        return self._computes.setdefault(key, self._next())

    def communication(self, channels: float, bytes_per_s: float, nic_share: float = 0.0) -> int:
        return self._wires.setdefault((channels, bytes_per_s, nic_share), self._next())

    def _next(self) -> int:
        return len(self._computes) + len(self._wires) + 1

    def slowdowns(self, gpu: Gpu, excess: float) -> Floats:
        """Shape (kinds, kinds): factor on the row's kind while the column's runs beside it.
        ``excess`` as in ``overlap_slowdowns``."""
        matrix = np.ones((self._next(),) * 2)
        if not self._wires:
            return matrix
        rows, columns = (np.array([*of.values()]) for of in (self._computes, self._wires))
        channels, bytes_per_s, nic_share = np.array(list(self._wires)).T
        matrix[columns[:, None], columns] += np.outer(nic_share, nic_share)
        if not self._computes:
            return matrix
        shares, kernels, sends = zip(*self._computes, strict=True)
        share = np.array(shares)[:, None]
        kernel_s = np.frombuffer(b"".join(kernels)).reshape(len(kernels), 2, -1)
        on_compute, on_wires = overlap_slowdowns(gpu, kernel_s, channels, bytes_per_s, excess)
        # Of a pass its kernels compete, and its own communication for the NICs.
        both_send = np.array(sends)[:, None] * nic_share
        matrix[rows[:, None], columns] = 1 + share * (on_compute - 1) + both_send
        matrix[columns[:, None], rows] = 1 + (share * (on_wires - 1) + both_send).T
        return matrix
