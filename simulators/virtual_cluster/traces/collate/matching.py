"""Which launches of different ranks meet, and where they do not fit each other.

Collectives meet by communicator and sequence number, sends and receives by source, destination,
communicator and number (MAYA §4.1). Ranks that were not traced are not missed.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.traces.rank_walk import Dependencies

from .communication import Communication, Communicator, Launch

# What all members of a collective must agree on; buffers of rooted kinds differ by rank.
EVEN = ("kind", "dtype", "bytes_in", "bytes_out")
AGREED: dict[str, tuple[str, ...]] = {
    "broadcast": ("kind", "dtype", "root", "buffer"),
    "reduce": ("kind", "dtype", "root", "bytes_in"),
    "gather": ("kind", "dtype", "root", "bytes_in"),
    "scatter": ("kind", "dtype", "root", "bytes_out"),
    "all_to_all": ("kind", "dtype"),
}


@dataclass(frozen=True)
class Mismatch:
    """Two launches that should meet and do not fit; ``field`` differs.

    ``further`` counts those of the same communicator and field that follow: after the first
    everything is usually out of step. ``guessed``: as of launches.
    """

    communicator: Communicator
    sequence: int
    field: str
    first: str
    second: str
    further: int = 0
    guessed: bool = False

    def __str__(self) -> str:
        more = f"; {self.further} more like it follow" if self.further else ""
        return (
            f"{self.communicator} #{self.sequence}: {self.field} differs: "
            f"{self.first}; {self.second}{more}"
        )


@dataclass(frozen=True)
class Rendezvous:
    """Launches of traced ranks that are one communication: ranks in the communicator's order."""

    communicator: Communicator
    sequence: int
    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class Matching:
    """What meets (collectives, then sends with their receives), and what does not fit."""

    collectives: tuple[Rendezvous, ...]
    transfers: tuple[Rendezvous, ...]
    mismatches: tuple[Mismatch, ...]


def match(ranks: Sequence[Communication]) -> Matching:
    """Match the launches of the traced ranks.

    A collective that only one traced rank takes part in is a rendezvous of one launch; so is a
    send to a rank that was not traced.
    """
    found = list(_missing_communicators(ranks))
    collectives, transfers = _met(ranks, events.Collective), _met(ranks, events.PointToPoint)
    traced = {rank.rank for rank in ranks}
    for rendezvous in collectives:
        found += _unlike(rendezvous)
    found += _uneven_counts(ranks)
    for rendezvous in transfers:
        found += _unlike_transfer(rendezvous, traced)
    return Matching(collectives, transfers, tuple(_first_of_each(found)))


def _identity(launch: Launch) -> tuple[Communicator, tuple[int, ...], int]:
    """Equal for the launches that meet: communicator, ends of a transfer, number."""
    event, ends = launch.event, tuple[int, ...]()
    if type(event) is events.PointToPoint:
        ends = (launch.rank, event.peer) if event.kind == "send" else (event.peer, launch.rank)
    return launch.communicator, ends, event.sequence


def _met(ranks: Sequence[Communication], kind: type) -> tuple[Rendezvous, ...]:
    """Collectives, ranks in the communicator's order; or sends with their receives, these last."""
    met: dict[tuple[Communicator, tuple[int, ...], int], list[Launch]] = defaultdict(list)
    for rank in ranks:
        for launch in rank.launches:
            if type(launch.event) is kind:
                met[_identity(launch)].append(launch)
    return tuple(
        Rendezvous(communicator, sequence, tuple(_in_order(ends or communicator.ranks, group)))
        for (communicator, ends, sequence), group in met.items()
    )


def _in_order(ranks: tuple[int, ...], launches: list[Launch]) -> list[Launch]:
    if len(launches) == 1:
        return launches
    position = {rank: i for i, rank in enumerate(ranks)}
    return sorted(launches, key=lambda launch: position[launch.rank])


def _kind(launch: Launch) -> str:
    return launch.event.kind


def _unlike(rendezvous: Rendezvous) -> Iterator[Mismatch]:
    reference = rendezvous.launches[0]
    for other in rendezvous.launches[1:]:
        for field in AGREED.get(_kind(reference), EVEN):
            values = _field(reference.event, field), _field(other.event, field)
            if values[0] != values[1]:
                yield _mismatch(rendezvous, field, reference, other, values)
                break
        else:
            if _kind(reference) == "all_to_all":
                yield from _unlike_splits(rendezvous, reference, other)


def _field(event: events.Collective | events.PointToPoint, field: str) -> object:
    if field == "buffer":
        # Frameworks name the buffer of a broadcast as input on one rank and as output on others.
        return event.bytes
    return getattr(event, field)


def _unlike_splits(rendezvous: Rendezvous, first: Launch, second: Launch) -> Iterator[Mismatch]:
    """What one sends the other must be what the other receives from it, both ways."""
    ranks = rendezvous.communicator.ranks
    for source, destination in ((first, second), (second, first)):
        sent = _share(source, "splits_in", ranks.index(destination.rank), len(ranks))
        received = _share(destination, "splits_out", ranks.index(source.rank), len(ranks))
        if sent is not None and received is not None and sent != received:
            field = f"bytes from {source.rank} to {destination.rank}"
            yield _mismatch(rendezvous, field, source, destination, (sent, received))
            return


def _share(launch: Launch, field: str, position: int, members: int) -> float | None:
    event = launch.event
    assert type(event) is events.Collective
    splits: tuple[int, ...] | None = getattr(event, field)
    total = event.bytes_in if field == "splits_in" else event.bytes_out
    if splits is None:
        return total / members
    if len(splits) != members:
        return None
    # Splits count rows; the bytes of a row are the buffer's over all of them.
    return total * splits[position] / sum(splits) if sum(splits) else 0.0


def _uneven_counts(ranks: Sequence[Communication]) -> Iterator[Mismatch]:
    """Communicators on which traced members launched different numbers of collectives."""
    last: dict[Communicator, dict[int, Launch]] = defaultdict(dict)
    made = {rank.rank: set(rank.communicators.values()) for rank in ranks}
    for rank in ranks:
        for launch in rank.launches:
            if type(launch.event) is events.Collective:
                last[launch.communicator][rank.rank] = launch
    for communicator, by_rank in last.items():
        counts = {
            rank: by_rank[rank].event.sequence + 1 if rank in by_rank else 0
            for rank, communicators in made.items()
            if communicator in communicators
        }
        most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
        if counts[most] != counts[least]:
            yield Mismatch(
                communicator,
                counts[least],
                "number of collectives",
                f"{counts[most]} of {by_rank[most].where} (the last)",
                f"{counts[least]} of "
                + (by_rank[least].where if least in by_rank else f"rank {least}"),
                guessed=any(launch.guessed for launch in by_rank.values())
                or any(rank.guessed for rank in ranks if rank.rank in counts),
            )


def _unlike_transfer(rendezvous: Rendezvous, traced: set[int]) -> Iterator[Mismatch]:
    first = rendezvous.launches[0]
    event = first.event
    assert type(event) is events.PointToPoint
    if len(rendezvous.launches) == 1:
        if event.peer in traced:
            missing = "receive" if event.kind == "send" else "send"
            yield Mismatch(
                rendezvous.communicator,
                rendezvous.sequence,
                f"the other side of a {event.kind}",
                f"{event.bytes} bytes of {first.where}",
                f"no such {missing} of rank {event.peer}",
            )
        return
    second = rendezvous.launches[1]
    for field in ("bytes", "dtype"):
        values = _field(event, field), _field(second.event, field)
        if values[0] != values[1]:
            yield _mismatch(rendezvous, field, first, second, values)
            return


def _missing_communicators(ranks: Sequence[Communication]) -> Iterator[Mismatch]:
    """Communicators in use that a traced member never made."""
    used: dict[Communicator, Launch] = {}
    for rank in ranks:
        for launch in rank.launches:
            used.setdefault(launch.communicator, launch)
    made = {rank.rank: set(rank.communicators.values()) for rank in ranks}
    for communicator, launch in used.items():
        for member in communicator.ranks:
            if member in made and communicator not in made[member]:
                yield Mismatch(
                    communicator,
                    launch.event.sequence,
                    "membership",
                    f"{launch.event.kind} of {launch.where}",
                    f"rank {member} never made this communicator",
                )


def _mismatch(
    rendezvous: Rendezvous,
    field: str,
    first: Launch,
    second: Launch,
    values: tuple[object, object],
) -> Mismatch:
    def side(launch: Launch, value: object) -> str:
        kind = "" if field == "kind" else f" ({_kind(launch)})"
        return f"{value} of {launch.where}{kind}"

    return Mismatch(
        rendezvous.communicator,
        rendezvous.sequence,
        field,
        side(first, values[0]),
        side(second, values[1]),
        guessed=first.guessed or second.guessed,
    )


def _first_of_each(found: Iterable[Mismatch]) -> Iterator[Mismatch]:
    groups: dict[tuple[Communicator, str], list[Mismatch]] = defaultdict(list)
    for each in found:
        groups[each.communicator, each.field].append(each)
    for same in groups.values():
        first = min(same, key=lambda each: each.sequence)
        yield dataclasses.replace(first, further=len(same) - 1)


# Orders of communication that hang a job, or may.


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
    items: list[tuple[int, Launch | events.WorkWait]] = [*rank.waits]
    items += [(launch.index, launch) for launch in rank.launches]
    for index, item in sorted(items, key=lambda each: each[0]):
        event: events.Op | events.Collective | events.PointToPoint
        identity: Hashable
        if isinstance(item, Launch):
            launch, event, identity = item, item.event, _identity(item)
        else:
            dependencies.follow(item)
            launch, event = None, events.Op("wait", (), (), item.stream)
            identity = rank.rank, index
        before = dependencies.launch(len(met), event)
        met.append(numbers.setdefault(identity, len(numbers)))
        yield _Arrival(launch, met[-1], {met[each] for each in before})


def _queue(launch: Launch) -> Hashable:
    """Rank, communicator, and the peer when the pair has a queue of its own."""
    event = launch.event
    peer = event.peer if isinstance(event, events.PointToPoint) and event.batch is None else None
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
        if launch.communicator in shared and type(launch.event) is events.Collective
    ]


def _described(launch: Launch) -> str:
    event = launch.event
    other = f" with {event.peer}" if type(event) is events.PointToPoint else ""
    return f"{event.kind}{other} #{event.sequence} on {launch.communicator} of {launch.where}"
