"""Which traced rank stands for each rank of the job.

Ranks do what their places in the parallel grid make them do: stages of a pipeline differ,
replicas do not. So the classes of the traced ranks are explained by as few families as possible:
those whose position tells the class. Every position that occurs must have been traced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.collate.communication import Communicator
from trainscout.simulators.virtual_cluster.traces.collate.families import (
    Family,
    check_seen,
    distinct,
    tile,
)

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
) -> tuple[int, ...]:
    """For every rank of the world, the class (by its first traced rank) that it is of.

    ``first_of`` gives the classes of the traced ranks, ``seen`` their communicators by family.

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
    raise InputError(
        "ranks",
        sorted(first_of),
        "their places in the communicators do not tell what the others do",
        "one rank of every pipeline stage and of whatever else differs",
    )


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
