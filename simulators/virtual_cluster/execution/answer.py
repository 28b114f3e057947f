"""What comes of an executed job: step time, breakdowns, memory, how sure, how much understood."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.collectives.price import open_connections
from trainscout.simulators.predictor.memory.footprint import process_bytes
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.replay.engine import Floats, Ints, Times
from trainscout.simulators.predictor.replay.priced import BUBBLE, EVIDENCE, PART_INDEX, PARTS
from trainscout.simulators.predictor.workload.ir import Communicator
from trainscout.simulators.virtual_cluster.allocator.allocator_settings import AllocatorSettings
from trainscout.simulators.virtual_cluster.allocator.allocator_trace import (
    Clock,
    MemoryOverTime,
    memory_over_time,
)
from trainscout.simulators.virtual_cluster.traces.collate.collated import Collated
from trainscout.simulators.virtual_cluster.traces.events import Event, Op
from trainscout.simulators.virtual_cluster.traces.lowering.pointwise import UNKNOWN_RULE
from trainscout.simulators.virtual_cluster.traces.lowering.tensors import Lowered
from trainscout.simulators.virtual_cluster.traces.perfetto import EventTimes

from .breakdown import Played, breakdown
from .issue import Issued
from .program import MARK, NO_CONTENT, Contents, Priced
from .window import Window

# Memory of one rank over its trace: the allocator's events at the times of the replay.

# What a rank that does not fit would need is found on a device so many times larger.
_AMPLE = 16


@dataclass(frozen=True)
class RankMemory:
    """Memory of one rank, setup included.

    ``over_time``: see ``MemoryOverTime``, as far as the rank got, or on a larger device when it
    ran out of memory. ``time_s``: of each row, from the beginning of the step (NaN before).
    ``outside_bytes``: by kind, what the allocator does not see. ``headroom_bytes``: what is left
    of ``capacity_bytes`` at the peak, negative by how much it misses. ``runs_out``: even after
    the allocator has given back what it cached.
    """

    over_time: MemoryOverTime
    time_s: Floats
    outside_bytes: dict[str, int]
    capacity_bytes: int
    headroom_bytes: int
    runs_out: bool

    @property
    def peak_allocated_bytes(self) -> int:
        return self.over_time.peak_allocated_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        return self.over_time.peak_reserved_bytes


def rank_memory(
    events: Sequence[Event],
    issued: Issued,
    times: Times,
    begin_s: float,
    gpu: Gpu,
    cluster: Cluster,
    groups: Sequence[Communicator],
    settings: AllocatorSettings,
) -> RankMemory:
    """Play a rank's allocations at the host's pace.

    ``begin_s``: when the step begins. ``groups``: the communicators the rank uses.
    """
    outside = outside_of(gpu, cluster, groups)
    host_s = _host_s(issued, times)
    clock = Clock(host_s, _Passing(issued, times))
    used = sum(outside.values())
    # At its end the allocator gives back what it cached: what is reserved may fill all there is.
    capacity = device = int(gpu.memory_bytes * (1 - cluster.memory_reserve))
    memory = memory_over_time(events, device, settings, used, clock)
    runs_out = memory.out_of_memory is not None
    if runs_out:
        device *= _AMPLE
        memory = memory_over_time(events, device, settings, used, clock)
    played = np.array(issued.host)[memory.event] >= 0
    time_s = np.where(played, host_s[memory.event] - begin_s, np.nan)
    headroom = capacity - used - memory.peak_reserved_bytes
    return RankMemory(memory, time_s, outside, capacity, headroom, runs_out)


def outside_of(gpu: Gpu, cluster: Cluster, groups: Sequence[Communicator]) -> dict[str, int]:
    """Bytes a process holds outside the allocator's events: context, NCCL's buffers, and scratch
    that libraries are given and traces do not show."""
    connections = open_connections(groups, {}, gpu, cluster)
    workspace = {"workspace": gpu.architecture.workspace_bytes}
    return process_bytes(gpu, cluster, connections) | workspace


def _host_s(issued: Issued, times: Times) -> Floats:
    """When the host came to each event; 0 before what was played."""
    tasks = np.array(issued.host)
    return np.where(tasks >= 0, times.end[tasks], 0.0)


class _Passing:
    """When a stream had run what was launched on it before an event."""

    def __init__(self, issued: Issued, times: Times) -> None:
        self._events = {
            stream: [event for event, _ in pairs] for stream, pairs in issued.launches.items()
        }
        self._ends = {
            stream: np.maximum.accumulate(times.end[[task for _, task in pairs]])
            for stream, pairs in issued.launches.items()
        }

    def __call__(self, stream: int, event: int) -> float:
        before = bisect_left(self._events.get(stream, []), event)
        return float(self._ends[stream][before - 1]) if before else 0.0


# What a replay's device time is made of: how sure, by which rule, in which arithmetic.

COMMUNICATION_RULE = "communication"


@dataclass(frozen=True)
class Replay:
    """A job that was played. ``excess``: see ``breakdown``."""

    job: Collated
    gpu: Gpu
    cluster: Cluster
    issued: dict[int, Issued]
    played: Played
    priced: Priced
    contents: Contents
    excess: float


@dataclass(frozen=True)
class Shares:
    """Shares of device seconds: by grade of evidence, by rule of lowering, of operations no rule
    knows by name; and the names of what was only estimated."""

    evidence: dict[str, float]
    coverage: dict[str, float]
    unknown: dict[str, float]
    estimated: tuple[str, ...]


def contents_of(replay: Replay, issued: Issued) -> Ints:
    """Contents of a rank's device work in the step, once for every time they ran."""
    counted = issued.counted
    tasks = np.array(issued.device[counted.start : counted.stop], dtype=np.int64)
    contents = replay.played.content[tasks[tasks >= 0]]
    chosen: Ints = contents[contents != NO_CONTENT]
    return chosen


def main_precision(replay: Replay) -> str:
    """The arithmetic of most FLOPs, of all ranks together."""
    flops: dict[str, float] = defaultdict(float)
    for rank, issued in replay.issued.items():
        counts = np.bincount(contents_of(replay, issued), minlength=len(replay.contents.items))
        weight = len(replay.job.ranks_of_class(rank))
        for number in np.flatnonzero(counts):
            item = replay.contents.items[number]
            if isinstance(item, Lowered) and replay.priced.flops[number]:
                dtype = str(getattr(item.kernels[0], "dtype", ""))
                flops[dtype] += float(replay.priced.flops[number] * counts[number]) * weight
    known = {name: sum_ for name, sum_ in flops.items() if name in replay.gpu.peak_flops}
    return max(known, key=known.__getitem__) if known else next(iter(replay.gpu.peak_flops))


def shares_of(replay: Replay) -> Shares:
    """What all ranks' device seconds of the step are made of."""
    grades = np.zeros(len(EVIDENCE))
    rules: dict[str, float] = defaultdict(float)
    unknown: dict[str, float] = defaultdict(float)
    estimated: set[str] = set()
    for rank, issued in replay.issued.items():
        weight = len(replay.job.ranks_of_class(rank))
        counts = np.bincount(contents_of(replay, issued), minlength=len(replay.contents.items))
        for number in np.flatnonzero(counts):
            item = replay.contents.items[number]
            price = replay.priced.prices[number]
            each = np.array(price.evidence_s) * counts[number] * weight
            seconds = float(each.sum())
            rule = COMMUNICATION_RULE
            if isinstance(item, Lowered):
                rule = item.rule
                if item.estimated:
                    estimated |= {kernel.name for kernel in item.kernels}
                    # However well bytes are priced, that they are all it costs is a guess.
                    each = np.zeros(len(EVIDENCE))
                    each[-1] = seconds
            grades += each
            rules[rule] += seconds
            estimated |= price.estimated
        for name, seconds in _unknown(replay, rank, issued).items():
            unknown[name] += seconds * weight
    total = float(grades.sum()) or 1.0
    evidence = {str(grade): float(s) / total for grade, s in zip(EVIDENCE, grades, strict=True)}
    coverage = {name: s / total for name, s in sorted(rules.items(), key=lambda each: -each[1])}
    shares = {name: s / total for name, s in sorted(unknown.items(), key=lambda each: -each[1])}
    return Shares(evidence, coverage, shares, tuple(sorted(estimated)))


def _unknown(replay: Replay, rank: int, issued: Issued) -> dict[str, float]:
    """Seconds of operations no rule knows, by name."""
    found: dict[str, float] = defaultdict(float)
    events = replay.job.traces[rank].events
    for index in issued.counted:
        task = issued.device[index]
        event = events[index]
        if task < 0 or not isinstance(event, Op):
            continue
        content = int(replay.played.content[task])
        item = replay.contents.items[content]
        if isinstance(item, Lowered) and item.rule == UNKNOWN_RULE:
            found[event.name] += float(replay.priced.seconds[content])
    return found


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
    ``updates`` of parameters were replayed, as ``steps`` steps, whose mean the step is.
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
    updates: int
    steps: int

    @property
    def fits(self) -> bool:
        return all(rank.memory.headroom_bytes >= 0 for rank in self.ranks)


def answer(
    replay: Replay,
    groups_of: Callable[[int], Sequence[Communicator]],
    allocator: AllocatorSettings,
    model_flops: float | None,
    assumptions: tuple[str, ...],
    counted: Window,
) -> TracedStep:
    """Read the times of a replay. ``groups_of``: the communicators a played rank uses.

    ``counted``: a rank's window, of whose steps the mean is stated.
    """
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
                breakdown_s=_named(parts[-1] / counted.steps, step_s),
                memory=memory,
                flops=float(replay.priced.flops[contents_of(replay, issued)].sum())
                / counted.steps,
            )
        )
    critical = min(range(len(ranks)), key=lambda place: parts[place][PART_INDEX[BUBBLE]])
    hardware = sum(rank.flops * rank.ranks for rank in ranks)
    precision = main_precision(replay)
    step_s /= counted.steps
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
        updates=counted.updates,
        steps=counted.steps,
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
