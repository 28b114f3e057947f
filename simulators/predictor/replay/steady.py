"""Replaying a step without replaying every micro-batch.

A pipeline schedule is a deterministic recursion: when each pass starts depends on passes at
most a warm-up's length behind it. Once every stage repeats the same period over a window as
long as that memory, it repeats it until the cool-down, so micro-batches in between add
whole periods and nothing else. This is checked on the simulated times, never assumed: when
no steady period is found, more micro-batches are simulated, in the end all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.schedules import Schedule, schedule_kind
from trainscout.simulators.predictor.workload.schedules.schedule import warmup_passes

from .assemble import Program
from .engine import NO_TASK, Floats, Ints, Times, run
from .priced import BUBBLE, OVERLAP_SLOWDOWN, PART_INDEX, PARTS

# Two periods count as equal when they differ by less than this fraction: rounding only.
PERIOD_TOLERANCE = 1e-9
# Longer periods are not looked for.
MOST_UNITS = 4
PP = "pp_communication"


@dataclass(frozen=True, eq=False, repr=False)
class Step:
    """One replayed step.

    ``idle_part_s``, shape (stages, parts): how long each stage's compute stream waited or ran
    slowed, by part; with the passes' and the step end's own time it sums to ``step_time_s``.
    ``simulated_micro_batches`` of ``micro_batches`` were replayed, the rest is whole periods.
    """

    step_time_s: float
    idle_part_s: Floats
    program: Program
    times: Times
    micro_batches: int
    simulated_micro_batches: int


def replay_step(job: Job, assemble: Callable[[int], Program], *, full: bool = False) -> Step:
    """Replay one step of a valid job.

    Args:
        job: gives the schedule and the number of micro-batches.
        assemble: builds the program for a number of micro-batches.
        full: replay every micro-batch.
    """
    recipe, total = job.recipe, job.num_micro_batches
    stages, chunks = recipe.pp, recipe.vpp
    # Micro-batches after which the order of passes repeats.
    unit = stages if chunks > 1 else 1
    # At least the first and the last pass, which meet data-parallel communication.
    warmup = max(1, warmup_passes(job.schedule, 0, stages, chunks, total))
    if full or job.schedule != "1f1b":
        return _simulate(assemble, total, schedule_kind(job.schedule))
    period = 2 * chunks * unit
    # Warm-up, cool-down and as much again for the start to settle; then the window to check
    # and the one before it to compare with.
    count = unit * -(-(3 * warmup + _memory(warmup, period) + 2 * period) // period)
    while count < total:
        program = assemble(count)
        times = run(program.tasks)
        steady = _find_steady(program, times, period, warmup)
        if steady is None:
            count *= 2
            continue
        repeats = steady.passes // period * unit
        left_over = (total - count) % repeats
        if left_over == 0:
            return _read(program, times, total, count, steady)
        count += left_over
    return _simulate(assemble, total, schedule_kind(job.schedule))


@dataclass(frozen=True)
class Steady:
    """The period that every stage repeats: ``seconds`` for ``passes`` of its order, which end
    at pass ``stop`` of those replayed."""

    seconds: float
    passes: int
    stop: int


def _memory(warmup: int, period: int) -> int:
    """Passes over which the period must hold: none depends on one further behind.

    That is a warm-up in both directions, and at least the period itself.
    """
    return max(2 * warmup, period)


def _simulate(assemble: Callable[[int], Program], total: int, schedule: Schedule) -> Step:
    program = assemble(total)
    times = run(program.tasks)
    step = _read(program, times, total, total, None)
    if not schedule.unsynchronised:
        return step
    # Every stage begins the next step when it has ended this one, all equally much later.
    apart_s = max(
        _span_s(program, times, stage) for stage in range(len(program.structure.compute_tasks))
    )
    for tasks, idle in zip(program.structure.compute_tasks, step.idle_part_s, strict=True):
        # What comes before a stage's first pass is the step before it.
        sent_s = min(float(times.start[tasks[0]]), float(program.lag[tasks[0]]))
        idle[PART_INDEX[PP]] -= sent_s
        idle[PART_INDEX[BUBBLE]] += sent_s + apart_s - step.step_time_s
    return replace(step, step_time_s=apart_s)


def _span_s(program: Program, times: Times, stage: int) -> float:
    """From when a stage begins to when it ends."""
    tasks = program.tasks
    own = tasks.stream_rank[tasks.task_streams] == stage
    return float(times.end[own].max() - times.start[own].min())


def _find_steady(program: Program, times: Times, unit: int, warmup: int) -> Steady | None:
    """The shortest period, in multiples of ``unit`` passes, that every stage repeats.

    Transfers that outlast passes make a pipeline repeat only every few units.
    """
    ends = times.end[np.stack(program.structure.pass_end)]
    stop = ends.shape[1] - warmup
    for multiple in range(1, MOST_UNITS + 1):
        period = multiple * unit
        low = stop - _memory(warmup, period)
        if low - period < warmup:
            return None
        seconds = float(ends[0, stop - 1] - ends[0, stop - 1 - period])
        off_s = ends[:, low:stop] - ends[:, low - period : stop - period] - seconds
        if np.abs(off_s).max() <= PERIOD_TOLERANCE * seconds:
            return Steady(seconds, period, stop)
    return None


def _read(program: Program, times: Times, total: int, count: int, steady: Steady | None) -> Step:
    step_time_s = float(times.end.max())
    # Every micro-batch runs as many passes as the replayed ones did.
    passes = len(program.structure.pass_start[0]) // count
    periods = (total - count) * passes // steady.passes if steady is not None else 0
    streams = program.structure.compute_tasks
    waits = _waits(program, times)
    idle = _idle_parts(waits, [(0, len(tasks)) for tasks in streams])
    idle[:, PART_INDEX[BUBBLE]] += step_time_s - times.end[[tasks[-1] for tasks in streams]]
    if steady is not None:
        # The last period seen stands for those left out.
        window = [steady.stop - steady.passes, steady.stop]
        windows = [tuple(starts[window].tolist()) for starts in program.structure.pass_start]
        idle += periods * _idle_parts(waits, windows)
        step_time_s += periods * steady.seconds
    return Step(step_time_s, idle, program, times, total, count)


@dataclass(frozen=True, eq=False, repr=False)
class _Waits:
    """How long the tasks of compute streams waited, of ``stages`` with equally many.

    ``seconds``, shape (4, stages, tasks): the wait; what of it the lag of a transfer was, and what
    not; by how much the task was slowed. A wait belongs to data-parallel communication when that
    released the task (``overlapped``, shape (stages, tasks)); of a wait for another stage the
    transfer's lag is pipeline communication and the rest is bubble.
    """

    stages: Ints
    seconds: Floats
    overlapped: np.ndarray


def _waits(program: Program, times: Times) -> list[_Waits]:
    found = []
    for stages, tasks in program.structure.like_streams:
        start, end = times.start[tasks], times.end[tasks]
        seconds = np.empty((4, *tasks.shape))
        gap_s, lag_s, rest_s, slowed_s = seconds
        gap_s[:] = start
        gap_s[:, 1:] -= end[:, :-1]
        np.minimum(gap_s, program.lag[tasks], out=lag_s)
        np.subtract(gap_s, lag_s, out=rest_s)
        np.subtract(end - start, program.tasks.work[tasks], out=slowed_s)
        released_by = times.released_by[tasks]
        overlapped = (released_by != NO_TASK) & program.structure.communication[released_by]
        found.append(_Waits(stages, seconds, overlapped))
    return found


# The parts that the last three of ``_Waits.seconds`` are where nothing overlaps.
_PARTS_WAITED = np.array([PART_INDEX[PP], PART_INDEX[BUBBLE], PART_INDEX[OVERLAP_SLOWDOWN]])


def _idle_parts(waits: Sequence[_Waits], windows: Sequence[tuple[int, ...]]) -> Floats:
    """Waiting and slowdown of each stage's compute stream by part, for a window of its tasks."""
    parts = np.zeros((len(windows), len(PARTS)))
    for each in waits:
        alike: dict[tuple[int, ...], list[int]] = {}
        for row, stage in enumerate(each.stages.tolist()):
            alike.setdefault(windows[stage], []).append(row)
        for (low, high), rows in alike.items():
            stages, overlapped = each.stages[rows], each.overlapped[rows, low:high]
            seconds = each.seconds[:, :, low:high].take(rows, axis=1)
            parts[stages[:, None], _PARTS_WAITED] = seconds[1:].sum(axis=2).T
            if not overlapped.any():
                continue
            gap_s, lag_s, rest_s, _ = seconds
            columns = zip(stages.tolist(), gap_s, lag_s, rest_s, overlapped, strict=True)
            for stage, gaps, lags, rests, released in columns:
                parts[stage, PART_INDEX["dp_communication"]] = gaps[released].sum()
                parts[stage, PART_INDEX[PP]] = lags[~released].sum()
                parts[stage, PART_INDEX[BUBBLE]] = rests[~released].sum()
    return parts
