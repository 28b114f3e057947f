"""What is to be shown of a step operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.workload.ranks import check_rank, stage_rank

ALL = "all"
_RANKS = "timeline.ranks"


@dataclass(frozen=True)
class TimelineChoice:
    """The timeline of a step, written to files (None: not written)."""

    file: str | None = None
    """Operations as Chrome trace events, for ui.perfetto.dev; compressed when its name ends in
    .gz."""
    chakra: str | None = None
    """A directory for MLCommons Chakra execution traces, one a rank."""
    memory: str | None = None
    """A CSV file of the bytes that every stage holds over the step."""
    micro_batches: int | None = None
    """How many to play; None plays two rounds of the pipeline, or the whole step when it is
    shorter."""
    stages: tuple[int, ...] | None = None
    """Stages whose first rank is shown (None: all)."""
    ranks: Any = None
    """The global ranks to show in place of ``stages``, a list or ``all``."""


def shown_ranks(job: Job, stages: Sequence[int] | None, ranks: object) -> tuple[int, ...]:
    """Global ranks to show, in order, each once.

    Args:
        job: a valid job.
        stages: pipeline stages, each of which its first rank stands for; None: all of them.
        ranks: global ranks, one or a list, or ``all``; None: one a stage.

    Raises:
        InputError: for stages or ranks that the job does not have, none, or both kinds.
    """
    if ranks is None:
        return _of_stages(job, range(job.recipe.pp) if stages is None else stages)
    if stages is not None:
        raise InputError(
            _RANKS, _given(ranks), "is not for use with timeline.stages", "one of both"
        )
    if ranks == ALL:
        return tuple(range(job.world_size))
    listed = ranks if isinstance(ranks, Sequence) and not isinstance(ranks, str) else [ranks]
    chosen = []
    for rank in listed:
        if type(rank) is not int:
            allowed = f"{ALL}, or numbers from 0 to {job.world_size - 1}, as [0,8]"
            raise InputError(_RANKS, rank, "is not a rank's number", allowed)
        check_rank(job, rank, _RANKS)
        chosen.append(rank)
    if not chosen:
        raise InputError(_RANKS, _given(ranks), "names no rank", f"0 to {job.world_size - 1}")
    return tuple(sorted(set(chosen)))


def _of_stages(job: Job, stages: Sequence[int]) -> tuple[int, ...]:
    last = job.recipe.pp - 1
    for stage in stages:
        if not 0 <= stage <= last:
            raise InputError("timeline.stages", stage, "is no stage of the job", f"0 to {last}")
    if not stages:
        raise InputError("timeline.stages", list(stages), "names no stage", f"0 to {last}")
    return tuple(sorted({stage_rank(job, stage) for stage in stages}))


def _given(ranks: object) -> object:
    return list(ranks) if isinstance(ranks, tuple) else ranks
