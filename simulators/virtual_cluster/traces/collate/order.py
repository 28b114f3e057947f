"""Orders of communication that hang a job, or may.

A communicator runs its communications one after the other on its own stream, each when all
members have come to it and what the stream it was launched from waits for is over. So a job hangs
when ranks wait for each other in a circle; and it may hang when two ranks launch on two shared
communicators in different orders, because NCCL does not promise progress then (NCCL user guide,
"Using multiple NCCL communicators concurrently").
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from trainscout.simulators.virtual_cluster.traces.collate.communication import (
    Communication,
    Communicator,
    Launch,
)
from trainscout.simulators.virtual_cluster.traces.events import (
    Collective,
    Op,
    PointToPoint,
    WorkWait,
)
from trainscout.simulators.virtual_cluster.traces.rank_walk import Dependencies


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


@dataclass(eq=False, slots=True)
class _Arrival:
    """A launch comes to its ``rendezvous``, by number, once those of ``after`` are over; None is a
    stream's, where it waits."""

    launch: Launch | None
    rendezvous: int
    after: set[int]


def _arrivals(rank: Communication, numbers: dict[Hashable, int]) -> Iterator[_Arrival]:
    """Of a rank, in the host's order, by the walk of its communication."""
    dependencies = Dependencies(rank.rank)
    met: list[int] = []
    items: list[tuple[int, Launch | WorkWait]] = [*rank.waits]
    items += [(launch.index, launch) for launch in rank.launches]
    for index, item in sorted(items, key=lambda each: each[0]):
        event: Op | Collective | PointToPoint
        if isinstance(item, Launch):
            launch, event, identity = item, item.event, _identity(item)
        else:
            dependencies.follow(item)
            launch, event, identity = None, Op("wait", (), (), item.stream), (rank.rank, index)
        before = dependencies.launch(len(met), event)
        met.append(numbers.setdefault(identity, len(numbers)))
        yield _Arrival(launch, met[-1], {met[each] for each in before})


def _queue(launch: Launch) -> Hashable:
    """Rank, communicator, and the peer when the pair has a queue of its own."""
    event = launch.event
    peer = event.peer if isinstance(event, PointToPoint) and event.batch is None else None
    return launch.rank, launch.communicator, peer


def _circle(ranks: Sequence[Communication]) -> Iterator[OrderProblem]:
    """What is in front when nothing goes on: of ranks that wait for each other."""
    numbers: dict[Hashable, int] = {}
    arrivals = [each for rank in ranks for each in _arrivals(rank, numbers)]
    missing = Counter(each.rendezvous for each in arrivals)
    waiting: dict[int, list[_Arrival]] = defaultdict(list)
    for each in arrivals:
        for before in each.after:
            waiting[before].append(each)
    come = [each for each in arrivals if not each.after]
    for each in come:
        missing[each.rendezvous] -= 1
        if not missing[each.rendezvous]:
            for later in waiting[each.rendezvous]:
                later.after.remove(each.rendezvous)
                if not later.after:
                    come.append(later)
    fronts: dict[Hashable, Launch] = {}
    for each in arrivals:
        if missing[each.rendezvous] and not each.after and each.launch is not None:
            fronts.setdefault(_queue(each.launch), each.launch)
    if fronts:
        stuck = sorted(fronts.values(), key=lambda launch: launch.rank)
        yield OrderProblem(True, tuple([_described(launch) for launch in stuck]))


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
