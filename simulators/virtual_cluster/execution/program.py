"""Tasks of the engine, grown from the events of several ranks.

Every rank has a host stream, its device streams, and a stream for each communicator, which run
what is put on them in order; what else a task waits for are edges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.replay.engine import Floats, Ints, Tasks
from trainscout.simulators.predictor.replay.graph import NEUTRAL_KIND, Kinds, make_tasks
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.workload.ir import Collective, SendRecv
from trainscout.simulators.virtual_cluster.traces.lowering.tensors import Lowered
from trainscout.simulators.virtual_cluster.walk.prices import (
    SHARED_GPU,
    Content,
    Price,
    price_contents,
)

# Different contents of device work, each priced once.


@dataclass(frozen=True)
class Priced:
    """Prices by content, and columns of them of length n.

    ``seconds``: on the device, alone. ``kind``: row of ``slowdown``. ``flops``: of kernels.
    """

    prices: tuple[Price, ...]
    seconds: Floats
    flops: Floats
    kind: Ints
    slowdown: Floats


class Contents:
    """Numbers contents of device work as they come: lowered operations and communication."""

    def __init__(self) -> None:
        self._lowered: dict[int, int] = {}
        self._wires: dict[Collective | SendRecv, int] = {}
        self.items: list[Content] = []
        self.launches: list[int] = []

    def operation(self, lowered: Lowered) -> int:
        # Equal operations are one object; it is kept, so its identity stays its own.
        number = self._lowered.get(id(lowered))
        if number is None:
            number = self._lowered[id(lowered)] = self._add(lowered, lowered.launches)
        return number

    def communication(self, op: Collective | SendRecv) -> int:
        number = self._wires.get(op)
        if number is None:
            number = self._wires[op] = self._add(op, 1)
        return number

    def _add(self, item: Content, launches: int) -> int:
        self.items.append(item)
        self.launches.append(launches)
        return len(self.items) - 1

    def price(self, pricer: Pricer) -> Priced:
        """Everything that has come so far.

        Raises:
            InputError: for a precision the GPU does not have, or a collective NCCL has not.
        """
        prices = price_contents(pricer, self.items)
        kind = np.full(len(prices), NEUTRAL_KIND, dtype=np.int64)
        kinds = Kinds()
        computes: set[int] = set()
        for number, (item, price) in enumerate(zip(self.items, prices, strict=True)):
            if price.mix:
                kind[number] = kinds.compute(1.0, np.frombuffer(price.mix))
                computes.add(int(kind[number]))
            elif price.seconds and not isinstance(item, Lowered):
                kind[number] = kinds.communication(price.channels, price.memory_bytes_per_s)
        slowdown = kinds.slowdowns(pricer.gpu, pricer.factors.overlap_time)
        rows = np.array(sorted(computes), dtype=np.int64)
        slowdown[np.ix_(rows, rows)] = SHARED_GPU
        seconds = np.array([price.seconds for price in prices])
        flops = np.array([price.flops for price in prices])
        return Priced(tuple(prices), seconds, flops, kind, slowdown)


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
