"""Which traced rank stands for each rank of the job.

Ranks do what their places in the parallel grid make them do: stages of a pipeline differ,
replicas do not. So the classes of the traced ranks are explained by as few families as possible:
those whose position tells the class. Every position that occurs must have been traced. Where none
do, ranks of one group are taken to do the same, unless traced ones do not; and rank 0 to be alone
in what ranks 1 and the last do not do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from trainscout.simulators.predictor.question.errors import InputError

from .communication import Communicator, ranks_text

# Communicators of a whole job from those of a few ranks.

# Of every rank that has one, the members of its group.
Groups = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Family:
    """Communicators that are one shifted: ``offsets`` of the members from the lowest, in order.

    ``occurrence`` distinguishes those that a rank has several of.
    """

    description: str
    offsets: tuple[int, ...]
    occurrence: int = 0

    def __hash__(self) -> int:
        # Of thousands of members, and asked for often.
        return hash((self.description, self.offsets[-1], len(self.offsets), self.occurrence))

    def __str__(self) -> str:
        number = f" (number {self.occurrence + 1})" if self.occurrence else ""
        return f"{self.description}{number} of {len(self.offsets)}"


def families(communicators: Iterable[Communicator]) -> dict[Family, Communicator]:
    """A rank's communicators by family, in order of creation."""
    seen: Counter[tuple[str, tuple[int, ...]]] = Counter()
    found = {}
    for communicator in communicators:
        lowest = min(communicator.ranks)
        offsets = tuple([rank - lowest for rank in communicator.ranks])
        key = (communicator.description, offsets)
        found[Family(*key, occurrence=seen[key])] = communicator
        seen[key] += 1
    return found


def tile(family: Family, domain: Iterable[int]) -> Groups:
    """The group of every rank of ``domain``, when shifted copies of the family tile it.

    The lowest rank that has no group yet must be the lowest member of its own, so there is at most
    one way.

    Raises:
        InputError: when they do not tile it.
    """
    ranks = sorted(domain)
    allowed = set(ranks)
    group_of: dict[int, tuple[int, ...]] = {}
    for rank in ranks:
        if rank in group_of:
            continue
        members = tuple([rank + offset for offset in family.offsets])
        for member in members:
            if member not in allowed or member in group_of:
                what = "has another group" if member in group_of else "has no such group"
                problem = f"do not tile the ranks: of {ranks_text(members)}, rank {member} {what}"
                raise InputError("communicators", family, problem, "traces of more ranks")
            group_of[member] = members
    return group_of


def distinct(group_of: Groups) -> list[tuple[int, ...]]:
    """Each group once. Members may be thousands, so groups are not compared."""
    return [members for rank, members in group_of.items() if rank == members[0]]


def check_seen(family: Family, group_of: Groups, seen: Mapping[int, Communicator]) -> None:
    """Hold the tiles to the groups that traced ranks have.

    Raises:
        InputError: for a traced rank with another group than its tile.
    """
    for rank, communicator in seen.items():
        if group_of.get(rank) != communicator.ranks:
            tiled = ranks_text(group_of[rank]) if rank in group_of else "none"
            problem = f"rank {rank} has {ranks_text(communicator.ranks)}, by its shape {tiled}"
            raise InputError("communicators", family, problem, "traces of more ranks")


PIPELINE = ("pipeline", "pp")
MAX_DISTINGUISHING = 3
# Of every rank of the world, its position in its group.
Positions = list[int]


def is_pipeline(family: Family) -> bool:
    """Whether the description says so: PIPELINE_MODEL_PARALLEL_GROUP, a mesh's ``pp``."""
    words = family.description.lower().replace("_", " ").replace("-", " ").split()
    return any(word.startswith(PIPELINE[0]) or word == PIPELINE[1] for word in words)


def place(
    world_size: int,
    first_of: Mapping[int, int],
    seen: Mapping[int, Mapping[Family, Communicator]],
    *,
    sends: bool = False,
) -> tuple[int, ...]:
    """For every rank of the world, the class (by its first traced rank) that it is of.

    ``first_of`` gives the classes of the traced ranks, ``seen`` their communicators by family.
    ``sends``: whether traced ranks send to each other, as stages do, which whole groups then are.

    Raises:
        InputError: when no positions explain the classes, when several ways to do so disagree, or
            when a position was not traced; more ranks must then be traced.
    """
    if len(first_of) == world_size:
        return tuple([first_of[rank] for rank in range(world_size)])
    shared = _shared_families(world_size, seen)
    for size in range(MAX_DISTINGUISHING + 1):
        answers: dict[tuple[int, ...], tuple[Family, ...]] = {}
        for chosen in combinations(shared, size):
            answer = _explained(world_size, first_of, [shared[family] for family in chosen])
            if answer is not None:
                answers.setdefault(answer, chosen)
        if len(answers) > 1:
            by_pipeline = {
                answer: chosen
                for answer, chosen in answers.items()
                if any(is_pipeline(family) for family in chosen)
            }
            answers = by_pipeline or answers
        if len(answers) > 1:
            ways = " or ".join(", ".join(map(str, chosen)) for chosen in answers.values())
            raise InputError(
                "ranks", sorted(first_of), f"leaves open what tells them apart: {ways}", "more"
            )
        if answers:
            return next(iter(answers))
    if sends and (alike := _by_replicas(world_size, first_of, shared)):
        return alike
    others = {first for rank, first in first_of.items() if rank}
    if not sends and {0, 1, world_size - 1} <= first_of.keys() and len(others) == 1:
        # Rank 0 prints, evaluates or keeps averages of weights for all.
        return (0, *(world_size - 1) * tuple(others))
    raise InputError(
        "ranks",
        sorted(first_of),
        "their places in the communicators do not tell what the others do",
        "one rank of every pipeline stage and of whatever else differs",
    )


def _by_replicas(
    world_size: int, first_of: Mapping[int, int], shared: Iterable[Family]
) -> tuple[int, ...] | None:
    """For every rank the class of whom it shares a group with, where no group of such a family
    has traced ranks of two: stages that send to each other on the world's group, and replicas."""
    groups: list[tuple[int, ...]] = []
    for family in shared:
        theirs = distinct(tile(family, range(world_size)))
        if all(len(_classes_in(members, first_of)) <= 1 for members in theirs):
            groups += theirs
    found, known = dict(first_of), 0
    while len(found) > known:
        known = len(found)
        for members in groups:
            inside = _classes_in(members, found)
            if len(inside) > 1:
                return None
            found |= {rank: first for first in inside for rank in members}
    return tuple([found[rank] for rank in range(world_size)]) if known == world_size else None


def _classes_in(members: Iterable[int], class_of: Mapping[int, int]) -> set[int]:
    return {class_of[rank] for rank in members if rank in class_of}


def _shared_families(
    world_size: int, seen: Mapping[int, Mapping[Family, Communicator]]
) -> dict[Family, Positions]:
    """Families that all traced ranks have and that tile the world, with everybody's position."""
    every = list(seen.values())
    found = {}
    for family in every[0]:
        if len(family.offsets) == 1 or not all(family in each for each in every[1:]):
            continue
        try:
            groups = tile(family, range(world_size))
            check_seen(family, groups, {rank: each[family] for rank, each in seen.items()})
        except InputError:
            continue
        positions = [0] * world_size
        for members in distinct(groups):
            for position, rank in enumerate(members):
                positions[rank] = position
        found[family] = positions
    return found


def _explained(
    world_size: int, first_of: Mapping[int, int], positions: Sequence[Positions]
) -> tuple[int, ...] | None:
    """The class of every rank by its positions, when they tell; None when they do not."""

    signatures = list(zip(*positions, strict=True)) if positions else [()] * world_size
    class_of: dict[tuple[int, ...], int] = {}
    for rank, first in first_of.items():
        if class_of.setdefault(signatures[rank], first) != first:
            return None
    answer = [class_of.get(signature) for signature in signatures]
    return tuple([first for first in answer if first is not None]) if None not in answer else None
