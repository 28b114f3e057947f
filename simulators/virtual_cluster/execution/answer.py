"""What comes of an executed job: step time, breakdowns, memory, how sure, how much understood."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.replay.engine import Floats
from trainscout.simulators.predictor.replay.priced import BUBBLE, PART_INDEX, PARTS
from trainscout.simulators.predictor.workload.ir import Communicator
from trainscout.simulators.virtual_cluster.allocator.allocator import AllocatorSettings
from trainscout.simulators.virtual_cluster.execution.breakdown import breakdown
from trainscout.simulators.virtual_cluster.execution.issue import Issued
from trainscout.simulators.virtual_cluster.execution.memory import RankMemory, rank_memory
from trainscout.simulators.virtual_cluster.execution.program import MARK
from trainscout.simulators.virtual_cluster.execution.shares import (
    Replay,
    contents_of,
    main_precision,
    shares_of,
)
from trainscout.simulators.virtual_cluster.traces.perfetto import EventTimes

# A part smaller than this fraction of the step is rounding left over from subtractions.
ROUNDING = 1e-12


@dataclass(frozen=True)
class RankStep:
    """One played rank and the ``ranks`` of the job it stands for.

    ``times``: of each event of its trace from the step's beginning on, NaN before.
    ``breakdown_s``: its own, by part, summing to the step time. ``flops``: of its step.
    """

    rank: int
    ranks: int
    times: EventTimes
    breakdown_s: dict[str, float]
    memory: RankMemory
    flops: float


@dataclass(frozen=True)
class TracedStep:
    """What one step of a traced job takes.

    ``breakdown_s`` is that of ``critical_rank``, which waits least for others. ``hfu``: FLOPs of
    all products and attention kernels over the peak of ``precision``, that of most of them;
    ``mfu`` the same of the model's own FLOPs where they were given. ``evidence_share``: share of
    device seconds priced as measured, fitted, estimated; ``coverage_share``: by what turned
    operations into kernels; ``unknown_operations``: share of those no rule knows, by name.
    """

    step_time_s: float
    world_size: int
    ranks: tuple[RankStep, ...]
    critical_rank: int
    breakdown_s: dict[str, float]
    precision: str
    hfu: float
    mfu: float | None
    evidence_share: dict[str, float]
    estimated_operations: tuple[str, ...]
    coverage_share: dict[str, float]
    unknown_operations: dict[str, float]
    mismatches: tuple[str, ...]
    assumptions: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return all(rank.memory.headroom_bytes >= 0 for rank in self.ranks)


def answer(
    replay: Replay,
    groups_of: Callable[[int], Sequence[Communicator]],
    allocator: AllocatorSettings,
    model_flops: float | None,
    assumptions: tuple[str, ...],
) -> TracedStep:
    """Read the times of a replay. ``groups_of``: the communicators a played rank uses."""
    ends = {rank: _ends(replay, issued) for rank, issued in replay.issued.items()}
    before_s = max(end[0] for end in ends.values())
    step_s = max(end[1] for end in ends.values()) - before_s
    begin_s = min(_begin(replay, issued) for issued in replay.issued.values())
    ranks, parts = [], []
    for place, (rank, issued) in enumerate(replay.issued.items()):
        # Ranks come to their updates in their own order: each is asked for its own last step.
        till_s = ends[rank][1] if issued.run_up else step_s
        parts.append(breakdown(replay.played, place, till_s - step_s, till_s, replay.excess))
        trace = replay.job.traces[rank]
        memory = rank_memory(
            trace.events,
            issued,
            replay.played.times,
            begin_s,
            replay.gpu,
            replay.cluster,
            groups_of(rank),
            allocator,
        )
        ranks.append(
            RankStep(
                rank=rank,
                ranks=len(replay.job.ranks_of_class(rank)),
                times=_event_times(replay, issued, begin_s),
                breakdown_s=_named(parts[-1], step_s),
                memory=memory,
                flops=float(replay.priced.flops[contents_of(replay, issued)].sum()),
            )
        )
    critical = min(range(len(ranks)), key=lambda place: parts[place][PART_INDEX[BUBBLE]])
    hardware = sum(rank.flops * rank.ranks for rank in ranks)
    precision = main_precision(replay)
    peak = replay.gpu.peak(precision) * replay.job.world_size * step_s
    shares = shares_of(replay)
    return TracedStep(
        step_time_s=step_s,
        world_size=replay.job.world_size,
        ranks=tuple(ranks),
        critical_rank=ranks[critical].rank,
        breakdown_s=ranks[critical].breakdown_s,
        precision=precision,
        hfu=hardware / peak if peak else 0.0,
        mfu=model_flops / peak if peak and model_flops is not None else None,
        evidence_share=shares.evidence,
        estimated_operations=shares.estimated,
        coverage_share=shares.coverage,
        unknown_operations=shares.unknown,
        mismatches=tuple(map(str, replay.job.mismatches)),
        assumptions=assumptions,
    )


def _ends(replay: Replay, issued: Issued) -> tuple[float, float]:
    """When a rank was done with the run-up, and with the step that counts.

    After a run-up a step is from one update of the parameters to the next: what is launched
    between them may already belong to the next step, and repeats. A step alone is all there is.
    """
    end = replay.played.times.end
    if issued.run_up and issued.step:
        return float(end[issued.run_up].max()), float(end[issued.step].max())
    tasks = np.array(issued.device + issued.host, dtype=np.int64)
    return 0.0, float(end[tasks[tasks >= 0]].max(initial=0.0))


def _begin(replay: Replay, issued: Issued) -> float:
    """When a rank came to the step: its host, or earlier work on the device."""
    device = np.array(issued.device[issued.step_start :], dtype=np.int64)
    host = np.array(issued.host[issued.step_start :], dtype=np.int64)
    times = replay.played.times
    ran = times.start[device[device >= 0]].min(initial=np.inf)
    return float(min(ran, times.end[host[host >= 0]].min(initial=np.inf)))


def _named(parts: Floats, step_s: float) -> dict[str, float]:
    return {
        name: float(part)
        for name, part in zip(PARTS, parts, strict=True)
        if part > ROUNDING * step_s
    }


def _event_times(replay: Replay, issued: Issued, begin_s: float) -> EventTimes:
    """Times of every event from the step's beginning on; what launches nothing is where the host
    was, and a wait lasts from when the host came to it."""
    played = replay.played
    device, host = np.array(issued.device), np.array(issued.host)
    start = np.where(host >= 0, played.times.end[host], np.nan)
    end = start.copy()
    has = device >= 0
    start[has] = played.times.start[device[has]]
    end[has] = played.times.end[device[has]]
    waits = np.flatnonzero(has & (played.role[device] == MARK))
    before = played.previous[played.tasks.stream_start[device[waits]]]
    start[waits] = np.where(before >= 0, played.times.end[before], start[waits])
    earlier = np.ones(len(device), dtype=np.bool_)
    earlier[issued.step_start :] = False
    start[earlier] = end[earlier] = np.nan
    return EventTimes(start - begin_s, end - begin_s)
