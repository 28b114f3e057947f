"""Where one rank's step went: by what it ran, and by what it waited for.

Kernels count as compute (or optimizer), what they lost to communication beside them as overlap
slowdown. In the gaps between kernels the chain of what the next kernel waited for is followed back
in time: communication and host work on this rank count as such, the wait for another rank as
bubble. So the parts sum to the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trainscout.simulators.predictor.replay import priced
from trainscout.simulators.predictor.replay.engine import Floats, Ints, Tasks, Times

from .program import DEVICE


@dataclass(frozen=True)
class Played:
    """A program that was played: columns of its tasks, and what the engine found."""

    tasks: Tasks
    times: Times
    role: Ints
    part: Ints
    content: Ints

    @cached_property
    def previous(self) -> Ints:
        """For every entry of ``Tasks.task_streams``, the task before it on that stream, or -1."""
        tasks = self.tasks
        before: Ints = np.concatenate(([-1], tasks.stream_tasks[:-1]))
        before[tasks.order_start[:-1][np.diff(tasks.order_start) > 0]] = -1
        return before[np.argsort(tasks.stream_tasks, kind="stable")]


def breakdown(played: Played, rank: int, start_s: float, end_s: float, excess: float) -> Floats:
    """Seconds by part between two times, shape (len(PARTS),); they sum to ``end_s - start_s``.

    ``rank``: its place among the played. ``excess``: the share by which kernels were priced
    longer because the slowest GPU sets the pace.
    """
    parts = np.zeros(len(priced.PARTS))
    kernels = _kernels(played, rank, start_s, end_s)
    starts = np.maximum(played.times.start[kernels], start_s)
    ends = np.minimum(played.times.end[kernels], end_s)
    covered = np.maximum.accumulate(np.concatenate(([start_s], ends)))
    # Kernels side by side take their time once.
    busy_s = float(np.maximum(0.0, ends - np.maximum(starts, covered[:-1])).sum())
    _add_kernels(parts, played, kernels, ends - starts, busy_s, excess)
    gaps = np.flatnonzero(starts > covered[:-1])
    walk = _Walk(played, rank)
    for at in gaps:
        walk.add(parts, int(kernels[at]), float(covered[at]), float(starts[at]))
    if covered[-1] < end_s:
        last = _last_task(played, rank, end_s)
        walk.add_end(parts, last, float(covered[-1]), end_s)
    return parts


def _kernels(played: Played, rank: int, start_s: float, end_s: float) -> Ints:
    """Kernels of a rank that run between two times, by start."""
    first_stream = played.tasks.task_streams[played.tasks.stream_start[:-1]]
    times = played.times
    chosen = (played.role == DEVICE) & (played.tasks.stream_rank[first_stream] == rank)
    chosen &= (times.end > start_s) & (times.start < end_s)
    numbers = np.flatnonzero(chosen)
    return numbers[np.lexsort((numbers, times.start[numbers]))]


def _add_kernels(
    parts: Floats, played: Played, kernels: Ints, ran: Floats, busy_s: float, excess: float
) -> None:
    """Kernels by what they take alone; what they were busy longer they lost to others."""
    took = played.times.end[kernels] - played.times.start[kernels]
    share = np.divide(ran, took, out=np.zeros_like(took), where=took > 0)
    own = played.tasks.work[kernels] * share
    # Two that share the GPU are no faster together than one after the other, but for rounding.
    own *= min(1.0, busy_s / max(float(own.sum()), np.finfo(np.float64).tiny))
    parts[priced.PART_INDEX[priced.OVERLAP_SLOWDOWN]] += busy_s - float(own.sum())
    slowest = own * excess / (1 + excess)
    parts[priced.PART_INDEX[priced.STRAGGLERS]] += float(slowest.sum())
    np.add.at(parts, played.part[kernels], own - slowest)


def _last_task(played: Played, rank: int, end_s: float) -> int:
    """Whatever of a rank ended last before a time, or -1."""
    spots = played.tasks.stream_rank[played.tasks.task_streams] == rank
    counts = np.diff(played.tasks.stream_start)
    numbers = np.repeat(np.arange(len(counts)), counts)[spots]
    numbers = numbers[played.times.end[numbers] <= end_s]
    if not len(numbers):
        return -1
    return int(numbers[np.lexsort((numbers, played.times.end[numbers]))[-1]])


class _Walk:
    """Follows a task's causes back through a gap."""

    def __init__(self, played: Played, rank: int) -> None:
        tasks, times = played.tasks, played.times
        self.rank = rank
        self.start: list[float] = times.start.tolist()
        self.end: list[float] = times.end.tolist()
        self.released_by: list[int] = times.released_by.tolist()
        self.spots: list[int] = tasks.stream_start.tolist()
        self.previous: list[int] = played.previous.tolist()
        self.rank_at: list[int] = tasks.stream_rank[tasks.task_streams].tolist()
        self.part: list[int] = played.part.tolist()
        self.bubble = priced.PART_INDEX[priced.BUBBLE]

    def add(self, parts: Floats, task: int, low: float, high: float) -> None:
        """Explain the time from ``low`` to ``high``, at which ``task`` starts."""
        now = high
        while now > low:
            cause = self.cause(task)
            if cause < 0 or not self.here(cause):
                break
            began = max(self.start[cause], low)
            # What ended before ``now`` released the task with no delay, or it did not wait.
            if self.end[cause] < now:
                parts[self.bubble] += now - max(self.end[cause], low)
                now = max(self.end[cause], low)
            if began < now:
                parts[self.part[cause]] += now - began
                now = began
            task = cause
        parts[self.bubble] += max(0.0, now - low)

    def add_end(self, parts: Floats, last: int, low: float, high: float) -> None:
        """Explain the time after the last kernel: its tail, then waiting for the others."""
        if last < 0 or self.end[last] <= low:
            parts[self.bubble] += high - low
            return
        parts[self.bubble] += high - self.end[last]
        now = self.end[last]
        began = max(self.start[last], low)
        parts[self.part[last]] += now - began
        self.add(parts, last, low, began)

    def cause(self, task: int) -> int:
        """The task whose end let another start: of those before it, the one that ended last."""
        best = self.released_by[task]
        for spot in range(self.spots[task], self.spots[task + 1]):
            other = self.previous[spot]
            if other >= 0 and (best < 0 or self.end[other] > self.end[best]):
                best = other
        return best

    def here(self, task: int) -> bool:
        spots = range(self.spots[task], self.spots[task + 1])
        return any(self.rank_at[spot] == self.rank for spot in spots)
