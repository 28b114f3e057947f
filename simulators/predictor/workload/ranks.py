"""Global ranks of a job: where each lies in every dimension, and with whom it communicates."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job

from .communicators import Span, spans


@dataclass(frozen=True)
class Place:
    """Coordinates of one rank: its ``stage`` and its position in each parallel dimension.

    ``ep`` is 0 where the model has no experts.
    """

    stage: int
    tp: int
    cp: int
    dp: int
    ep: int


def place_of(job: Job, rank: int) -> Place:
    """Where a rank of the job lies.

    Raises:
        InputError: when the job has no such rank.
    """
    check_rank(job, rank)
    lie = _spans(job)
    ep = _coordinate(rank, lie["ep"][0]) if "ep" in lie else 0
    # The last dimension of ``dp`` is data parallelism, the first context parallelism.
    stage, dp = _coordinate(rank, lie["pp"][0]), _coordinate(rank, lie["dp"][-1])
    return Place(stage, _coordinate(rank, lie["tp"][0]), _coordinate(rank, lie["cp"][0]), dp, ep)


def check_rank(job: Job, rank: int, field: str = "rank") -> None:
    """Refuse what is no rank of the job."""
    if not 0 <= rank < job.world_size:
        raise InputError(field, rank, "is no rank of the job", f"0 to {job.world_size - 1}")


def stage_rank(job: Job, stage: int) -> int:
    """The first rank of a pipeline stage: at the start of every other dimension."""
    ((_, apart),) = _spans(job)["pp"]
    return stage * apart


def group_of(job: Job, communicator: str, rank: int) -> tuple[int, ...]:
    """Members, in order, of the group of ``communicator`` that ``rank`` is in.

    Raises:
        InputError: for a communicator whose ranks are not known, or when the rank is in none.
    """
    lie = _spans(job)
    if communicator == "embedding":
        pipeline = group_of(job, "pp", rank)
        ends = tuple(dict.fromkeys((pipeline[0], pipeline[-1])))
        if rank not in ends:
            raise InputError("rank", rank, "holds no embedding", " or ".join(map(str, ends)))
        return ends
    if communicator not in lie:
        raise InputError("communicator", communicator, "has no known ranks", lie)
    span = lie[communicator]
    first = rank - sum(_coordinate(rank, each) * each[1] for each in span)
    # Innermost first: the outermost dimension varies slowest.
    steps = [[place * apart for place in range(count)] for count, apart in reversed(span)]
    return tuple(first + sum(step) for step in itertools.product(*steps))


def _coordinate(rank: int, dimension: tuple[int, int]) -> int:
    count, apart = dimension
    return rank // apart % count


@functools.lru_cache(maxsize=64)
def _spans(job: Job) -> dict[str, Span]:
    """Those of ``communicators.spans``, and what layers of other sources use besides."""
    lie = spans(job)
    sharing = job.recipe.tp * job.recipe.cp
    return lie | {"tp_cp": ((sharing, 1),), "stage": (*lie["tp"], *lie["dp"])}
