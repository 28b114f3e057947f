"""What a trace says about communication, put so that ranks can be compared.

Ranks name their communicators as they like (names may be hashes or counters), so here one is
identified by what all its members agree on: description, members in order, and which of several
equal ones it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces import events

SHOWN_RANKS = 8


@dataclass(frozen=True, slots=True)
class Communicator:
    """``occurrence`` counts those of equal description and members, in order of creation."""

    description: str
    ranks: tuple[int, ...]
    occurrence: int = 0

    def __hash__(self) -> int:
        # Of thousands of members, and asked for with every launch.
        return hash((self.description, self.ranks[0], len(self.ranks), self.occurrence))

    def __str__(self) -> str:
        number = f" (number {self.occurrence + 1})" if self.occurrence else ""
        return f"{self.description}{number} {ranks_text(self.ranks)}"


@dataclass(frozen=True, slots=True)
class Launch:
    """A communication that a rank launched, and where in the code (empty when not recorded).

    ``index``: of the event in the rank's trace. ``guessed``: whether the rank had read whole
    numbers before that it could not know, as of tokens that another sends it.
    """

    rank: int
    communicator: Communicator
    event: events.Collective | events.PointToPoint
    site: str
    index: int
    guessed: bool = False

    @property
    def where(self) -> str:
        """The rank, and the call site when there is one."""
        return f"rank {self.rank} at {self.site}" if self.site else f"rank {self.rank}"


@dataclass(frozen=True)
class Communication:
    """A rank's communicators by the name it gave them, its launches in the host's order, and the
    waits for them, each with the index of its event. ``collnet``: names of those for which it
    asked for switches that sum. ``guessed``: as of a launch after all of them."""

    rank: int
    communicators: dict[str, Communicator]
    launches: tuple[Launch, ...]
    waits: tuple[tuple[int, events.WorkWait], ...] = ()
    collnet: frozenset[str] = frozenset()
    guessed: bool = False


def communication(trace: events.Trace) -> Communication:
    """What ``trace`` says about communication. Communicators of others are left out.

    Raises:
        InputError: for a launch on a communicator that the rank never made, one that was made
            twice with other members, and sequence numbers that leave something out.
    """
    rank = trace.header.rank
    communicators: dict[str, Communicator] = {}
    made: Counter[tuple[str, tuple[int, ...]]] = Counter()
    sites: dict[int, events.Site] = {}
    launches: list[Launch] = []
    waits: list[tuple[int, events.WorkWait]] = []
    numbers: Counter[tuple[object, ...]] = Counter()
    guessed = False
    for index, event in enumerate(trace.events):
        if type(event) is events.Site:
            sites[event.number] = event
        elif type(event) is events.WorkWait:
            waits.append((index, event))
        elif type(event) is events.ValueRead:
            guessed |= event.grade != "exact" and _whole(event.value, event.grade)
        elif type(event) is events.Group:
            _add_group(rank, event, communicators, made)
        elif type(event) is events.Collective or type(event) is events.PointToPoint:
            communicator = communicators.get(event.group)
            if communicator is None:
                problem = f"launches on {event.group}, which it never made or is no member of"
                raise InputError("trace", f"rank {rank}", problem)
            order = _order(event)
            if event.sequence != numbers[order]:
                problem = f"number {event.sequence} follows {numbers[order] - 1} on {communicator}"
                raise InputError("trace", f"rank {rank}", problem)
            numbers[order] += 1
            site = site_text(sites, event.site)
            launches.append(Launch(rank, communicator, event, site, index, guessed))
    collnet = frozenset(
        event.name for event in trace.events if type(event) is events.Group and event.collnet
    )
    return Communication(rank, communicators, tuple(launches), tuple(waits), collnet, guessed)


def _whole(value: object, grade: str) -> bool:
    """As a number of this type, too, where it follows from what others do: how many of them still
    have inputs (``Join``)."""
    if isinstance(value, tuple):
        return any(_whole(each, grade) for each in value)
    counted = type(value) is float and grade == "expected" and value.is_integer()
    return counted or type(value) is int


def _order(event: events.Collective | events.PointToPoint) -> tuple[object, ...]:
    """Those that are numbered together."""
    if isinstance(event, events.PointToPoint):
        return (event.group, event.kind, event.peer)
    return (event.group,)


def _add_group(
    rank: int,
    group: events.Group,
    communicators: dict[str, Communicator],
    made: Counter[tuple[str, tuple[int, ...]]],
) -> None:
    if rank not in group.ranks:
        return
    known = communicators.get(group.name)
    if known is not None and (known.description, known.ranks) != (group.description, group.ranks):
        problem = f"makes {group.name} twice, with other members"
        raise InputError("trace", f"rank {rank}", problem)
    if known is None:
        key = (group.description, group.ranks)
        communicators[group.name] = Communicator(*key, occurrence=made[key])
        made[key] += 1


def site_text(sites: Mapping[int, events.Site], number: int | None) -> str:
    """``file:line in function``; empty when not recorded."""
    site = sites.get(number) if number is not None else None
    return "" if site is None else f"{site.file}:{site.line} in {site.function}"


def ranks_text(ranks: tuple[int, ...]) -> str:
    """``[0, 8, 16, .. 88] (12 ranks)``: long lists are cut."""
    if len(ranks) <= SHOWN_RANKS:
        return str(list(ranks))
    first = ", ".join(str(rank) for rank in ranks[:3])
    return f"[{first}, .. {ranks[-1]}] ({len(ranks)} ranks)"
