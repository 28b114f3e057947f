"""Which traced ranks do the same work, phase by phase.

The forward and backward schedule must be the same, launch by launch; only sizes may differ a
little, as they do where shards are uneven. What surrounds it may differ more between ranks of one
kind: a distributed optimizer cuts every rank's shard out of other parameters, a gradient norm
counts replicated parameters on one tensor-parallel rank only, one rank prints. Such differences
are reported, and tolerated while the work differs by little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trainscout.simulators.virtual_cluster.traces.events import BACKWARD, FORWARD, PointToPoint

from .communication import Communication
from .content import Content

EXACT_PHASES = (FORWARD, BACKWARD)
# Of the elements that a phase's operations touch, and of the bytes it communicates.
TOLERANCE = 0.02
# Of those of the whole step: a phase may be little more than what one rank prints.
STEP_TOLERANCE = 0.001


@dataclass(frozen=True)
class Difference:
    """Where a rank does not do what the first of its class does, or of another class.

    ``operations``: (name, launches of ``like``, launches of ``rank``) of those launched another
    number of times; empty when only sizes or order differ. ``work`` and ``communicated`` are
    differences of elements touched and bytes communicated, relative to the phase's; ``of_step``
    is the larger of the two relative to the whole step's. ``same_schedule``: the same is launched
    and waited for in the same order.
    """

    rank: int
    like: int
    phase: str
    step: int
    operations: tuple[tuple[str, int, int], ...]
    work: float
    communicated: float
    of_step: float
    same_schedule: bool

    def __str__(self) -> str:
        shown = [f"{name} {theirs}->{ours}" for name, theirs, ours in self.operations[:4]]
        if len(self.operations) > len(shown):
            shown.append(f"{len(self.operations) - len(shown)} more")
        return (
            f"rank {self.rank} is not rank {self.like} in {self.phase} of step {self.step}: "
            f"{', '.join(shown) or ('other sizes' if self.same_schedule else 'another order')} "
            f"(work {self.work:.2%}, communicated {self.communicated:.2%}; "
            f"{self.of_step:.2%} of the step)"
        )


@dataclass(frozen=True)
class Classes:
    """``first_of``: traced rank -> lowest rank of its class.

    ``tolerated`` are differences within classes; ``separating``, one for each class but the first,
    say what keeps it from being of the class most like it.
    """

    first_of: dict[int, int]
    tolerated: tuple[Difference, ...]
    separating: tuple[Difference, ...]


@dataclass(frozen=True)
class _Phase:
    digests: tuple[str, ...]
    schedules: tuple[str, ...]
    operations: Counter[str]
    elements: int
    communicated_bytes: int


_NOTHING = _Phase((), (), Counter(), 0, 0)


def classes(contents: Sequence[Content], tolerance: float = TOLERANCE) -> Classes:
    """Sort ranks into classes of equal work.

    ``tolerance`` is relative, for each phase around the schedule; what is below ``STEP_TOLERANCE``
    of the step is tolerated always.
    """
    firsts: dict[int, dict[tuple[str, int], _Phase]] = {}
    first_of: dict[int, int] = {}
    tolerated: list[Difference] = []
    separating: list[Difference] = []
    for each in sorted(contents, key=lambda one: one.rank):
        phases = _phases(each)
        nearest: list[Difference] = []
        for like, theirs in firsts.items():
            found = list(_differences(each.rank, phases, like, theirs))
            if all(_tolerable(one, tolerance) for one in found):
                first_of[each.rank] = like
                tolerated += found
                break
            grave = [one for one in found if not _tolerable(one, tolerance)]
            if not nearest or len(grave) < len(nearest):
                nearest = sorted(grave, key=lambda one: one.phase not in EXACT_PHASES)
        else:
            first_of[each.rank] = each.rank
            firsts[each.rank] = phases
            separating += nearest[:1]
    return Classes(first_of, tuple(tolerated), tuple(separating))


def told_apart_by_peers(found: Classes, communications: Mapping[int, Communication]) -> Classes:
    """Classes of which no member sends to another, but where all do so alike (a ring).

    Inner stages of a pipeline may do the same work in the same order (GPipe), and yet wait for
    each other: played as one rank, it would wait for itself.
    """
    peers = {rank: _peers(one, found.first_of) for rank, one in communications.items()}
    first_of = found.first_of
    while True:
        linked = {
            first
            for rank, first in first_of.items()
            if any(first_of[peer] == first for peer in peers[rank].values())
        }
        firsts: dict[Hashable, int] = {}
        finer = {}
        for rank in sorted(first_of):
            key: tuple[Hashable, ...] = (first_of[rank],)
            if first_of[rank] in linked:
                key += tuple(sorted((way, first_of[peer]) for way, peer in peers[rank].items()))
            finer[rank] = firsts.setdefault(key, rank)
        if finer == first_of:
            same = [one for one in found.tolerated if finer[one.rank] == finer[one.like]]
            return replace(found, first_of=finer, tolerated=tuple(same))
        first_of = finer


def _peers(one: Communication, traced: Mapping[int, int]) -> dict[tuple[str, int, int], int]:
    """Traced ranks that a rank sends to or receives from, by how far round which group."""
    found = {}
    for launch in one.launches:
        if isinstance(launch.event, PointToPoint) and launch.event.peer in traced:
            communicator = launch.communicator
            place = communicator.ranks.index
            ahead = (place(launch.event.peer) - place(one.rank)) % len(communicator.ranks)
            way = communicator.description, communicator.occurrence, ahead
            found[way] = launch.event.peer
    return found


def _phases(one: Content) -> dict[tuple[str, int], _Phase]:
    """All parts of each phase of each step, together."""
    phases: dict[tuple[str, int], _Phase] = {}
    for part in one.phases:
        so_far = phases.get((part.phase, part.step), _NOTHING)
        phases[part.phase, part.step] = _Phase(
            (*so_far.digests, part.digest),
            (*so_far.schedules, part.schedule),
            so_far.operations + part.operations,
            so_far.elements + part.elements,
            so_far.communicated_bytes + part.communicated_bytes,
        )
    return phases


def _differences(
    rank: int,
    ours: dict[tuple[str, int], _Phase],
    like: int,
    theirs: dict[tuple[str, int], _Phase],
) -> Iterator[Difference]:
    for phase, step in dict.fromkeys([*theirs, *ours]):
        here, there = ours.get((phase, step), _NOTHING), theirs.get((phase, step), _NOTHING)
        if here.digests == there.digests:
            continue
        names = dict.fromkeys([*there.operations, *here.operations])
        elements, communicated = _of_step(theirs, step)
        yield Difference(
            rank,
            like,
            phase,
            step,
            tuple(
                (name, there.operations[name], here.operations[name])
                for name in names
                if there.operations[name] != here.operations[name]
            ),
            _relative(here.elements, there.elements),
            _relative(here.communicated_bytes, there.communicated_bytes),
            max(
                abs(here.elements - there.elements) / max(elements, 1),
                abs(here.communicated_bytes - there.communicated_bytes) / max(communicated, 1),
            ),
            here.schedules == there.schedules,
        )


def _of_step(phases: dict[tuple[str, int], _Phase], step: int) -> tuple[int, int]:
    """Elements touched and bytes communicated in all phases of a step."""
    within = [one for (_, number), one in phases.items() if number == step]
    return sum(one.elements for one in within), sum(one.communicated_bytes for one in within)


def _tolerable(difference: Difference, tolerance: float) -> bool:
    if difference.phase in EXACT_PHASES and not difference.same_schedule:
        return False
    of_phase = max(difference.work, difference.communicated)
    return of_phase <= tolerance or difference.of_step <= STEP_TOLERANCE


def _relative(ours: int, theirs: int) -> float:
    return abs(ours - theirs) / max(ours, theirs) if ours != theirs else 0.0
