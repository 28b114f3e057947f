"""Orders of communication that hang a job, or may.

A communicator runs its communications one after the other on its own stream, each when all
members have come to it and what the stream it was launched from waits for is over. So a job hangs
when ranks wait for each other in a circle; and it may hang when two ranks launch on two shared
communicators in different orders, because NCCL does not promise progress then (NCCL user guide,
"Using multiple NCCL communicators concurrently").
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from trainscout.simulators.virtual_cluster.traces.collate.communication import (
    Communication,
    Communicator,
    Launch,
    Waited,
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


@dataclass(slots=True)
class _Step:
    """What runs together in a queue: one launch, or a batch of sends and receives."""

    queue: Queue
    identities: list[Hashable]


# A program is what the host puts on one stream: steps for queues, and waits for communications.
_Program = list[_Step | Hashable]


def _programs(rank: Communication) -> list[_Program]:
    """By stream, in the host's order; a wait of the host is one of every stream.

    Grouped sends and receives run together on their communicator; single ones have a queue for
    each pair of ranks (torch gives each pair a communicator of its own).
    """
    programs: dict[int, _Program] = {launch.event.stream: [] for launch in rank.launches}
    batches: dict[Hashable, _Step] = {}
    works: dict[int, Hashable] = {}
    items: list[Launch | Waited] = [*rank.launches, *rank.waits]
    for item in sorted(items, key=lambda each: each.index):
        if isinstance(item, Waited):
            known = works.get(item.work)
            for stream, program in programs.items():
                if known is not None and item.stream in (None, stream):
                    program.append(known)
            continue
        event = item.event
        identity = works[event.work] = _identity(item)
        queue: Queue = (rank.rank, item.communicator, None)
        if type(event) is PointToPoint and event.batch is None:
            queue = (rank.rank, item.communicator, event.peer)
        elif type(event) is PointToPoint:
            batch = batches.get((queue, event.batch))
            if batch is not None:
                batch.identities.append(identity)
                continue
        step = _Step(queue, [identity])
        if type(event) is PointToPoint and event.batch is not None:
            batches[queue, event.batch] = step
        programs[event.stream].append(step)
    return list(programs.values())


class _Play:
    """Streams hand steps to queues; queues run theirs one after the other.

    A communication is done when all its launches are in front of their queues.
    """

    def __init__(self, ranks: Sequence[Communication]) -> None:
        self.launches: dict[Hashable, list[Launch]] = defaultdict(list)
        for rank in ranks:
            for launch in rank.launches:
                self.launches[_identity(launch)].append(launch)
        self.arrived: dict[Hashable, int] = defaultdict(int)
        self.queues: dict[Queue, deque[_Step]] = defaultdict(deque)
        self._left: dict[Queue, int] = {}
        self._members: dict[Hashable, list[Queue]] = defaultdict(list)
        self._waiting: dict[Hashable, list[tuple[_Program, int]]] = defaultdict(list)
        self._ready: list[tuple[_Program, int]] = [
            (program, 0) for rank in ranks for program in _programs(rank)
        ]

    def run(self) -> None:
        """As far as it goes."""
        while self._ready:
            program, at = self._ready.pop()
            while at < len(program):
                item = program[at]
                if not isinstance(item, _Step):
                    if not self.done(item):
                        self._waiting[item].append((program, at))
                        break
                else:
                    queue = self.queues[item.queue]
                    queue.append(item)
                    if len(queue) == 1:
                        self._start(item)
                at += 1

    def done(self, identity: Hashable) -> bool:
        """Whether all its launches have come."""
        return self.arrived[identity] == len(self.launches[identity])

    def _start(self, first: _Step) -> None:
        started = [first]
        while started:
            step = started.pop()
            self._left[step.queue] = len(step.identities)
            for identity in step.identities:
                self.arrived[identity] += 1
                self._members[identity].append(step.queue)
                if not self.done(identity):
                    continue
                self._ready += self._waiting.pop(identity, [])
                for queue in self._members.pop(identity):
                    self._left[queue] -= 1
                    if not self._left[queue]:
                        self.queues[queue].popleft()
                        if self.queues[queue]:
                            started.append(self.queues[queue][0])


def _circle(ranks: Sequence[Communication]) -> Iterator[OrderProblem]:
    """What is in front when nothing goes on: of ranks that wait for each other."""
    play = _Play(ranks)
    play.run()
    stuck = [(queue, steps[0]) for queue, steps in play.queues.items() if steps]
    stuck.sort(key=lambda each: each[0][0])
    if stuck:
        fronts = [
            next(
                launch
                for identity in step.identities
                for launch in play.launches[identity]
                if launch.rank == queue[0]
                and play.arrived[identity] < len(play.launches[identity])
            )
            for queue, step in stuck
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
