"""Which operations of several ranks are one communication."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.timeline import PIPELINE, Timeline
from trainscout.simulators.predictor.workload.ir import Collective, SendRecv
from trainscout.simulators.predictor.workload.ranks import group_of, place_of


def rendezvous_of(
    job: Job, timeline: Timeline, ranks: Sequence[int]
) -> Iterator[list[tuple[int, int]]]:
    """Each communication that two or more of ``ranks`` take part in, but for what stages send
    each other: (rank, row of the timeline) of each, in order of the ranks.

    Members of one communicator run its communications in one order; what only some of the ranks
    run is left out.
    """
    rows_of = {stage: _by_communicator(timeline, stage) for stage in range(job.recipe.pp)}
    members: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    stage_of = {rank: place_of(job, rank).stage for rank in ranks}
    for rank in ranks:
        for communicator in rows_of[stage_of[rank]]:
            group = _group(job, communicator, rank)
            if group:
                members[communicator, group].append(rank)
    for (communicator, _), present in members.items():
        if len(present) < 2:
            continue
        rows = [rows_of[stage_of[rank]][communicator] for rank in present]
        for together in zip(*rows, strict=False):
            yield list(zip(present, together, strict=True))


def _group(job: Job, communicator: str, rank: int) -> tuple[int, ...]:
    try:
        return group_of(job, communicator, rank)
    except InputError:
        # A communicator of a source that does not name its members.
        return ()


def _by_communicator(timeline: Timeline, stage: int) -> dict[str, list[int]]:
    """Rows of a stage that communicate and take time, by communicator, in the order they ran."""
    found: dict[str, list[int]] = defaultdict(list)
    rows = np.flatnonzero(
        (timeline.stage == stage)
        & (timeline.stream != PIPELINE)
        & (timeline.end_s > timeline.start_s)
    )
    for row in rows[np.argsort(timeline.start_s[rows], kind="stable")].tolist():
        priced = timeline.operations[timeline.operation[row]]
        if priced is not None and isinstance(priced.op, Collective | SendRecv):
            found[priced.op.communicator].append(row)
    return dict(found)
