"""Programs for the engine from plain lists, and a slow twin of its event loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.replay.engine import Tasks


@dataclass(frozen=True)
class Program:
    """``streams[t]`` are the streams of task ``t``; ``edges`` are (before, after, lag)."""

    work: list[float]
    streams: list[list[int]]
    edges: list[tuple[int, int, float]] = field(default_factory=list)
    ranks: list[int] | None = None
    kinds: list[int] | None = None
    slowdown: list[list[float]] | None = None
    # Order of each stream; by default the order of the tasks' numbers.
    orders: list[list[int]] | None = None

    @property
    def stream_orders(self) -> list[list[int]]:
        if self.orders is not None:
            return self.orders
        count = 1 + max(stream for streams in self.streams for stream in streams)
        return [
            [task for task, streams in enumerate(self.streams) if stream in streams]
            for stream in range(count)
        ]

    @property
    def stream_ranks(self) -> list[int]:
        return self.ranks if self.ranks is not None else list(range(len(self.stream_orders)))

    def tasks(self) -> Tasks:
        n = len(self.work)
        edges = sorted(self.edges)
        starts = np.searchsorted([edge[0] for edge in edges], np.arange(n + 1))
        orders = self.stream_orders

        def offsets(lists: list[list[int]]) -> NDArray[np.int64]:
            return np.cumsum([0, *(len(each) for each in lists)]).astype(np.int64)

        def ints(values: object) -> NDArray[np.int64]:
            return np.array(values, dtype=np.int64)

        return Tasks(
            work=np.array(self.work, dtype=np.float64),
            kind=ints(self.kinds or [0] * n),
            stream_start=offsets(self.streams),
            task_streams=ints([s for streams in self.streams for s in streams]),
            successor_start=starts.astype(np.int64),
            successors=ints([edge[1] for edge in edges]),
            lags=np.array([edge[2] for edge in edges], dtype=np.float64),
            order_start=offsets(orders),
            stream_tasks=ints([task for order in orders for task in order]),
            stream_rank=ints(self.stream_ranks),
            slowdown=np.array(self.slowdown or [[1.0]]),
        )


def play(program: Program) -> tuple[list[float], list[float]]:
    """Start and end of every task: every quantity looked at again at every instant."""
    n = len(program.work)
    kinds = program.kinds or [0] * n
    slowdown = program.slowdown or [[1.0]]
    orders, rank_of = [list(order) for order in program.stream_orders], program.stream_ranks
    start: list[float] = [math.nan] * n
    end: list[float] = [math.nan] * n
    left = list(program.work)
    running: set[int] = set()
    finished: set[int] = set()
    now = 0.0

    def release(task: int) -> float:
        """When the task's dependencies allow it; infinite while one has not ended."""
        before = [(first, lag) for first, after, lag in program.edges if after == task]
        if any(first not in finished for first, _ in before):
            return math.inf
        return max((end[first] + lag for first, lag in before), default=0.0)

    def factor(task: int) -> float:
        worst = 1.0
        for rank in {rank_of[stream] for stream in program.streams[task]}:
            beside = [
                other
                for other in running
                if other != task and rank in {rank_of[s] for s in program.streams[other]}
            ]
            total = 1 + sum(slowdown[kinds[task]][kinds[other]] - 1 for other in beside)
            worst = max(worst, total)
        return worst

    while len(finished) < n:
        for task in range(n):
            at_front = all(orders[s] and orders[s][0] == task for s in program.streams[task])
            if task not in running | finished and at_front and release(task) <= now:
                running.add(task)
                start[task] = now
        factors = {task: factor(task) for task in running}
        ends = {task: now + left[task] * factors[task] for task in running}
        waiting = [release(t) for t in range(n) if t not in running | finished]
        later = [time for time in waiting if now < time < math.inf]
        after = min([*ends.values(), *later])
        for task in list(running):
            if ends[task] == after:
                running.remove(task)
                finished.add(task)
                end[task] = after
                for stream in program.streams[task]:
                    orders[stream].pop(0)
            else:
                left[task] -= (after - now) / factors[task]
        now = after
    return start, end
