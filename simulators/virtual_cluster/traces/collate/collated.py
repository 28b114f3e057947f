"""A job from the traces of a few of its ranks."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.events import Collective, PointToPoint, Trace

from .classes import TOLERANCE, Classes, classes, told_apart_by_peers
from .communication import Communication, Communicator, Launch, communication
from .content import content
from .matching import Mismatch, OrderProblem, check_order, match
from .placement import Family, Groups, check_seen, distinct, families, is_pipeline, place, tile

# Of what keeps classes apart, in an error.
SHOWN_REASONS = 3


@dataclass(frozen=True)
class Collated:
    """A whole job: what each of its ranks does, and with whom.

    ``traces`` holds one rank of each class; ``class_of_rank[r]`` is the traced rank that stands
    for rank ``r``. ``classes`` are those of all ranks that were traced;
    ``mismatches`` and ``order_problems`` are of the whole job, ranks that others stand for
    included.
    """

    world_size: int
    traces: dict[int, Trace]
    class_of_rank: tuple[int, ...]
    classes: Classes
    mismatches: tuple[Mismatch, ...]
    order_problems: tuple[OrderProblem, ...]
    _families: dict[int, dict[str, Family]]
    _groups: dict[Family, Groups]
    _collnet: dict[int, frozenset[str]]

    def group(self, rank: int, name: str) -> tuple[int, ...]:
        """Members of the communicator that ``rank``'s trace (that of its class) calls ``name``.

        Raises:
            InputError: when there is none, or it is not used by any communication.
        """
        family = self._families[self.class_of_rank[rank]].get(name)
        if family is None or family not in self._groups:
            raise InputError("communicators", name, f"rank {rank} does not use such a one")
        return self._groups[family][rank]

    def collnet(self, rank: int, name: str) -> bool:
        """Whether switches were asked to sum for what ``rank``'s trace (that of its class) calls
        ``name``."""
        return name in self._collnet[self.class_of_rank[rank]]

    def peer(self, rank: int, event: PointToPoint) -> int:
        """Whom ``rank`` sends to or receives from, by an event of its class's trace."""
        first = self.class_of_rank[rank]
        theirs = self.group(first, event.group)
        return as_far(theirs, first, event.peer, self.group(rank, event.group), rank)

    def ranks_of_class(self, first: int) -> tuple[int, ...]:
        """All ranks that a traced rank stands for, itself included."""
        return tuple([rank for rank, of in enumerate(self.class_of_rank) if of == first])

    def groups_of(self, family: Family) -> list[tuple[int, ...]]:
        """All groups of the job that are of ``family``, each once."""
        return distinct(self._groups[family])

    def group_names(self, rank: int) -> dict[str, Family]:
        """The communicators that ``rank``'s class communicates on, by name in its trace."""
        return {
            name: family
            for name, family in self._families[self.class_of_rank[rank]].items()
            if family in self._groups
        }


def collate(traces: Sequence[Trace], tolerance: float = TOLERANCE) -> Collated:
    """Put a job together from the traces of all of its ranks, or of some of each class.

    Launches that do not fit are in the answer, not raised: see ``mismatches``.

    Raises:
        InputError: for no traces, traces of several jobs or twice of one rank; as
            ``communication``; for communicators that do not tile the ranks of the job, and ranks
            that do not tell what the others do.
    """
    world_size = _world_size(traces)
    communications = {trace.header.rank: communication(trace) for trace in traces}
    contents = [content(trace, communications[trace.header.rank]) for trace in traces]
    found = told_apart_by_peers(classes(contents, tolerance), communications)
    seen = {rank: families(one.communicators.values()) for rank, one in communications.items()}
    sends = any(
        type(launch.event) is PointToPoint and launch.event.peer in found.first_of
        for one in communications.values()
        for launch in one.launches
    )
    try:
        class_of_rank = place(world_size, found.first_of, seen, sends=sends)
    except InputError as error:
        why = "".join(f"; {each}" for each in found.separating[:SHOWN_REASONS])
        raise InputError("traces", error.value, error.problem + why, error.allowed) from error
    groups = _groups(world_size, class_of_rank, communications, seen)
    names = {
        first: _names(communications[first], seen[first]) for first in sorted(set(class_of_rank))
    }
    piped = _piped(communications, names)
    _check_stages(class_of_rank, found.first_of, {family: groups[family] for family in piped})
    mismatches = dict.fromkeys(match(list(communications.values())).mismatches)
    problems = dict.fromkeys(check_order(list(communications.values())))
    for standing in _stand_ins(class_of_rank, communications, names, groups):
        # What was seen between traced ranks need not be said again of those they stand for.
        known = {_about(one) for one in mismatches}
        more = [one for one in match(standing).mismatches if _about(one) not in known]
        mismatches |= dict.fromkeys(more)
        problems |= dict.fromkeys(check_order(standing))
    by_rank = {trace.header.rank: trace for trace in traces}
    return Collated(
        world_size,
        {first: by_rank[first] for first in names},
        class_of_rank,
        found,
        tuple(mismatches),
        tuple(problems),
        names,
        groups,
        {first: communications[first].collnet for first in names},
    )


def as_far(here: tuple[int, ...], one: int, peer: int, there: tuple[int, ...], other: int) -> int:
    """The member of ``there`` that is as far from ``other`` as ``peer`` is from ``one``, round the
    group: to the next in a ring, to the next stage."""
    distance = here.index(peer) - here.index(one)
    return there[(there.index(other) + distance) % len(there)]


def _about(mismatch: Mismatch) -> tuple[str, int, str]:
    return (mismatch.communicator.description, mismatch.sequence, mismatch.field)


def _world_size(traces: Sequence[Trace]) -> int:
    sizes = sorted({trace.header.world_size for trace in traces})
    if len(sizes) != 1:
        problem = "are of several jobs" if sizes else "there are none"
        raise InputError("traces", sizes, problem, "traces of one job")
    ranks = [trace.header.rank for trace in traces]
    if len(set(ranks)) != len(ranks):
        raise InputError("traces", sorted(ranks), "hold a rank twice")
    return sizes[0]


def _piped(
    communications: Mapping[int, Communication], names: Mapping[int, Mapping[str, Family]]
) -> set[Family]:
    """Pipelines: groups that join one with something else say so too, but transfer nothing."""
    return {
        family
        for first, by_name in names.items()
        for launch in communications[first].launches
        if type(launch.event) is PointToPoint
        and is_pipeline(family := by_name[launch.event.group])
    }


def _check_stages(
    class_of_rank: Sequence[int], first_of: Mapping[int, int], groups: Mapping[Family, Groups]
) -> None:
    """Nobody stands for a stage of a pipeline but ranks that were traced there.

    A middle stage sends to the next and receives from the one before, so traces of it alone would
    fit each other as a ring.
    """
    for family, group_of in groups.items():
        traced: dict[int, set[int]] = defaultdict(set)
        for rank, first in first_of.items():
            if rank in group_of:
                traced[first].add(group_of[rank].index(rank))
        for rank, members in group_of.items():
            stage, first = members.index(rank), class_of_rank[rank]
            if stage not in traced[first]:
                problem = f"no rank of stage {stage} of {family} was traced; rank {rank} is one"
                raise InputError("traces", sorted(first_of), problem, "one rank of each stage")


def _names(one: Communication, by_family: Mapping[Family, Communicator]) -> dict[str, Family]:
    family_of = {communicator: family for family, communicator in by_family.items()}
    return {name: family_of[communicator] for name, communicator in one.communicators.items()}


def _groups(
    world_size: int,
    class_of_rank: Sequence[int],
    communications: Mapping[int, Communication],
    seen: Mapping[int, Mapping[Family, Communicator]],
) -> dict[Family, Groups]:
    """Everybody's group, for the families that traced ranks communicate on."""
    used: dict[Family, set[int]] = defaultdict(set)
    for rank, one in communications.items():
        on = {launch.communicator for launch in one.launches}
        for family, communicator in seen[rank].items():
            if communicator in on:
                used[family].add(rank)
    everybody = len(communications) == world_size
    groups: dict[Family, Groups] = {}
    for family in used:
        members = {rank: each[family] for rank, each in seen.items() if family in each}
        if everybody:
            groups[family] = {rank: one.ranks for rank, one in members.items()}
            continue
        having = {first for first in set(class_of_rank) if family in seen[first]}
        domain = [rank for rank in range(world_size) if class_of_rank[rank] in having]
        groups[family] = tile(family, domain)
        check_seen(family, groups[family], members)
    return groups


def _stand_ins(
    class_of_rank: Sequence[int],
    communications: Mapping[int, Communication],
    names: Mapping[int, Mapping[str, Family]],
    groups: Mapping[Family, Groups],
) -> Iterator[list[Communication]]:
    """One group of each family and composition of classes, its members' launches on it.

    Members that were not traced do what the rank that stands for them does.
    """
    if len(communications) == len(class_of_rank):
        return
    for family, group_of in groups.items():
        launches = {
            first: [
                launch
                for launch in communications[first].launches
                if by_name[launch.event.group] == family
            ]
            for first, by_name in names.items()
        }
        transfers = any(
            type(launch.event) is PointToPoint for each in launches.values() for launch in each
        )
        compositions: set[tuple[int, ...]] = set()
        for members in distinct(group_of):
            composition = tuple([class_of_rank[rank] for rank in members])
            if composition in compositions or all(rank in communications for rank in members):
                continue
            compositions.add(composition)
            communicator = Communicator(family.description, members, family.occurrence)
            # Members of one class launch the same collectives: one of them will do.
            shown = members if transfers else _one_of_each(members, class_of_rank)
            yield [
                Communication(
                    rank,
                    {family.description: communicator},
                    tuple(
                        _moved(launch, rank, communicator)
                        for launch in launches[class_of_rank[rank]]
                    ),
                )
                for rank in shown
            ]


def _one_of_each(members: Iterable[int], class_of_rank: Sequence[int]) -> list[int]:
    found: dict[int, int] = {}
    for rank in members:
        found.setdefault(class_of_rank[rank], rank)
    return list(found.values())


def _moved(launch: Launch, rank: int, communicator: Communicator) -> Launch:
    """The launch as ``rank`` makes it on its own communicator of the family."""
    event = launch.event
    here, there = launch.communicator.ranks, communicator.ranks
    moved: Collective | PointToPoint = event
    if type(event) is PointToPoint:
        peer = as_far(here, launch.rank, event.peer, there, rank)
        moved = dataclasses.replace(event, peer=peer)
    elif type(event) is Collective and event.root is not None:
        moved = dataclasses.replace(event, root=there[here.index(event.root)])
    site = launch.site if rank == launch.rank else f"{launch.site} (as rank {launch.rank})"
    return Launch(rank, communicator, moved, site.strip(), launch.index)
