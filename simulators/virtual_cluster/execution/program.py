"""Tasks of the engine, grown from the events of several ranks.

Every rank has a host stream, its device streams, and a stream for each communicator, which run
what is put on them in order; what else a task waits for are edges.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trainscout.simulators.predictor.replay.engine import Tasks
from trainscout.simulators.predictor.replay.graph import NEUTRAL_KIND, make_tasks
from trainscout.simulators.virtual_cluster.execution.contents import Priced

NO_CONTENT = -1
HOST, DEVICE, WIRE, MARK = range(4)


class Program:
    """Columns of tasks and the edges between them.

    ``role``: HOST, DEVICE (kernels), WIRE (communication) or MARK (no work: an order in time).
    ``part``: what a breakdown calls the task, an index into ``PARTS``.
    """

    def __init__(self) -> None:
        self.fixed_s: list[float] = []
        self.content: list[int] = []
        self.role: list[int] = []
        self.part: list[int] = []
        self.before: list[int] = []
        self.after: list[int] = []
        self.orders: list[list[int]] = []
        self.stream_rank: list[int] = []

    def stream(self, rank: int) -> int:
        """A new stream of a rank (by its place among the played ones)."""
        self.orders.append([])
        self.stream_rank.append(rank)
        return len(self.orders) - 1

    def task(self, role: int, part: int, content: int = NO_CONTENT, fixed_s: float = 0.0) -> int:
        """A new task, on no stream yet."""
        self.fixed_s.append(fixed_s)
        self.content.append(content)
        self.role.append(role)
        self.part.append(part)
        return len(self.role) - 1

    def append(self, stream: int, task: int) -> None:
        """Put a task at the end of a stream."""
        self.orders[stream].append(task)

    def edges(self, before: Iterable[int], after: int) -> None:
        for task in before:
            self.before.append(task)
            self.after.append(after)

    def edge(self, before: int, after: int) -> None:
        self.before.append(before)
        self.after.append(after)

    def freeze(self, priced: Priced) -> Tasks:
        """The engine's arrays, with prices filled in."""
        content = np.array(self.content, dtype=np.int64)
        has = content != NO_CONTENT
        work = np.array(self.fixed_s)
        work[has] += priced.seconds[content[has]]
        kind = np.full(len(content), NEUTRAL_KIND, dtype=np.int64)
        kind[has] = priced.kind[content[has]]
        edges = np.array(self.before, np.int64), np.array(self.after, np.int64)
        lags = np.zeros(len(self.after))
        orders = [np.array(order, dtype=np.int64) for order in self.orders]
        ranks = np.array(self.stream_rank, dtype=np.int64)
        return make_tasks(work, kind, (*edges, lags), orders, ranks, priced.slowdown)
