"""Orders of communication that hang a job, or may.

A communicator runs its communications one after the other on its own stream, each when all
members have come to it. So a job hangs when ranks wait for each other in a circle; and it may
hang when two ranks launch on two shared communicators in different orders, because NCCL does not
promise progress then (NCCL user guide, "Using multiple NCCL communicators concurrently").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, count

from trainscout.simulators.virtual_cluster.traces.collate.communication import (
    Communication,
    Communicator,
    Launch,
)
from trainscout.simulators.virtual_cluster.traces.events import Collective, PointToPoint

# Rank, communicator, and the peer when the pair has a queue of its own.
Queue = tuple[int, Communicator, int | None]


@dataclass(frozen=True)
class OrderProblem:
    """``hangs``: a circle of waiting ranks; otherwise launches in different orders."""

    hangs: bool
    launches: tuple[str, ...]

    def __str__(self) -> str:
        what = "ranks wait for each other" if self.hangs else "launched in different orders"
        return f"{what}: " + "; ".join(self.launches)


def check_order(ranks: Sequence[Communication]) -> tuple[OrderProblem, ...]:
    """What hangs (at most one problem), then what is launched in different orders by two ranks.

    Launches must match already (``match``): those without a counterpart among the traced ranks are
    taken as done.
    """
    return (*_circle(ranks), *_inversions(ranks))


def _identity(launch: Launch) -> Hashable:
    """Equal for the launches that meet."""
    event = launch.event
    if type(event) is Collective:
        return (launch.communicator, event.sequence)
    assert type(event) is PointToPoint
    ends = (launch.rank, event.peer) if event.kind == "send" else (event.peer, launch.rank)
    return (launch.communicator, ends, event.sequence)


def _queues(rank: Communication) -> Iterator[tuple[Queue, list[Hashable]]]:
    """What runs one after the other: (queue, what runs together in it), in order of launch.

    Grouped sends and receives run together on their communicator; single ones have a queue for
    each pair of ranks (torch gives each pair a communicator of its own).
    """
    alone = count()
    batches: dict[Hashable, list[Hashable]] = {}
    for launch in rank.launches:
        event = launch.event
        queue: Queue = (rank.rank, launch.communicator, None)
        step: Hashable = next(alone)
        if type(event) is PointToPoint:
            if event.batch is None:
                queue = (rank.rank, launch.communicator, event.peer)
            else:
                step = ("batch", queue, event.batch)
        if step in batches:
            batches[step].append(_identity(launch))
        else:
            batches[step] = [_identity(launch)]
            yield queue, batches[step]


def _circle(ranks: Sequence[Communication]) -> Iterator[OrderProblem]:
    """Run the queues: a communication is done when all its launches are in front of theirs."""
    launches: dict[Hashable, list[Launch]] = defaultdict(list)
    for rank in ranks:
        for launch in rank.launches:
            launches[_identity(launch)].append(launch)
    queues: dict[Queue, list[list[Hashable]]] = defaultdict(list)
    for rank in ranks:
        # A batch is whole only when all launches were seen.
        for queue, step in list(_queues(rank)):
            queues[queue].append(step)
    position = dict.fromkeys(queues, 0)
    arrived: dict[Hashable, int] = defaultdict(int)
    waiting: dict[Hashable, list[Queue]] = defaultdict(list)
    left: dict[Queue, int] = {}
    ready = list(queues)
    while ready:
        queue = ready.pop()
        if position[queue] == len(queues[queue]):
            continue
        step = queues[queue][position[queue]]
        left[queue] = len(step)
        for identity in step:
            arrived[identity] += 1
            waiting[identity].append(queue)
            if arrived[identity] == len(launches[identity]):
                for member in waiting.pop(identity):
                    left[member] -= 1
                    if left[member] == 0:
                        position[member] += 1
                        ready.append(member)
    stuck = [queue for queue in queues if position[queue] < len(queues[queue])]
    if stuck:
        fronts = [
            next(
                launch
                for identity in queues[queue][position[queue]]
                for launch in launches[identity]
                if launch.rank == queue[0] and arrived[identity] < len(launches[identity])
            )
            for queue in stuck
        ]
        yield OrderProblem(True, tuple([_described(launch) for launch in fronts]))


def _inversions(ranks: Sequence[Communication]) -> Iterator[OrderProblem]:
    """Pairs of ranks that launch the collectives they share in different orders."""
    reported: set[frozenset[Communicator]] = set()
    for first, second in combinations(ranks, 2):
        shared = set(first.communicators.values()) & set(second.communicators.values())
        if len(shared) < 2:
            continue
        ours, theirs = _shared(first, shared), _shared(second, shared)
        common = {_identity(launch) for launch in ours} & {_identity(launch) for launch in theirs}
        ours = [launch for launch in ours if _identity(launch) in common]
        theirs = [launch for launch in theirs if _identity(launch) in common]
        for here, there in zip(ours, theirs, strict=True):
            if _identity(here) != _identity(there):
                pair = frozenset((here.communicator, there.communicator))
                if pair not in reported:
                    reported.add(pair)
                    yield OrderProblem(False, (_described(here), _described(there)))
                break


def _shared(rank: Communication, shared: set[Communicator]) -> list[Launch]:
    return [
        launch
        for launch in rank.launches
        if launch.communicator in shared and type(launch.event) is Collective
    ]


def _described(launch: Launch) -> str:
    event = launch.event
    other = f" with {event.peer}" if type(event) is PointToPoint else ""
    return f"{event.kind}{other} #{event.sequence} on {launch.communicator} of {launch.where}"
