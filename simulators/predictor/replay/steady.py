"""Replaying a step without replaying every micro-batch.

A pipeline schedule is a deterministic recursion: when each pass starts depends on passes at
most a warm-up's length behind it. Once every stage repeats the same period over a window as
long as that memory, it repeats it until the cool-down, so micro-batches in between add
whole periods and nothing else. This is checked on the simulated times, never assumed: when
no steady period is found, more micro-batches are simulated, in the end all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.schedules import SCHEDULES, Schedule
from trainscout.simulators.predictor.replay.assemble import Program
from trainscout.simulators.predictor.replay.engine import NO_TASK, Floats, Times, run
from trainscout.simulators.predictor.replay.priced import (
    BUBBLE,
    OVERLAP_SLOWDOWN,
    PART_INDEX,
    PARTS,
)
from trainscout.simulators.predictor.workload.schedule import warmup_passes

# Two periods count as equal when they differ by less than this fraction: rounding only.
PERIOD_TOLERANCE = 1e-9
# Longer periods are not looked for.
MOST_UNITS = 4


@dataclass(frozen=True)
class Step:
    """One replayed step.

    ``idle_part_s[s]``, shape (parts,): how long stage ``s``'s compute stream waited or ran
    slowed, by part; with the passes' and the step end's own time it sums to ``step_time_s``.
    ``simulated_micro_batches`` of ``micro_batches`` were replayed, the rest is whole periods.
    """

    step_time_s: float
    idle_part_s: tuple[Floats, ...]
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
        return _simulate(assemble, total, SCHEDULES[job.schedule])
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
    return _simulate(assemble, total, SCHEDULES[job.schedule])


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
        idle[PART_INDEX["pp_communication"]] -= sent_s
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
    ends = [
        _pass_ends(program, times, stage) for stage in range(len(program.structure.compute_tasks))
    ]
    stop = len(ends[0]) - warmup
    for multiple in range(1, MOST_UNITS + 1):
        period = multiple * unit
        low = stop - _memory(warmup, period)
        if low - period < warmup:
            return None
        seconds = float(ends[0][stop - 1] - ends[0][stop - 1 - period])
        if all(
            np.abs(each[low:stop] - each[low - period : stop - period] - seconds).max()
            <= PERIOD_TOLERANCE * seconds
            for each in ends
        ):
            return Steady(seconds, period, stop)
    return None


def _pass_ends(program: Program, times: Times, stage: int) -> Floats:
    """End of each pass of a stage, in its order."""
    tasks = program.structure.compute_tasks[stage][: program.structure.pass_tasks[stage]]
    last = np.append(program.structure.pass_start[stage][1:], len(tasks)) - 1
    ends: Floats = times.end[tasks[last]]
    return ends


def _read(program: Program, times: Times, total: int, count: int, steady: Steady | None) -> Step:
    step_time_s = float(times.end.max())
    # Every micro-batch runs as many passes as the replayed ones did.
    passes = len(program.structure.pass_start[0]) // count
    periods = (total - count) * passes // steady.passes if steady is not None else 0
    idle = []
    for stage, tasks in enumerate(program.structure.compute_tasks):
        parts = _idle_parts(program, times, stage, None)
        parts[PART_INDEX[BUBBLE]] += step_time_s - float(times.end[tasks[-1]])
        if steady is not None:
            # The last period seen stands for those left out.
            starts = program.structure.pass_start[stage]
            window = (int(starts[steady.stop - steady.passes]), int(starts[steady.stop]))
            parts += periods * _idle_parts(program, times, stage, window)
        idle.append(parts)
    if steady is not None:
        step_time_s += periods * steady.seconds
    return Step(step_time_s, tuple(idle), program, times, total, count)


def _idle_parts(
    program: Program, times: Times, stage: int, window: tuple[int, int] | None
) -> Floats:
    """Waiting and slowdown of a stage's compute stream, for all its tasks or a window of them.

    A wait belongs to data-parallel communication when that released the task; of a wait for
    another stage the transfer's lag is pipeline communication and the rest is bubble.
    """
    parts = np.zeros(len(PARTS))
    tasks = program.structure.compute_tasks[stage]
    start, end = times.start[tasks], times.end[tasks]
    gaps = start - np.concatenate(([0.0], end[:-1]))
    slowed = (end - start) - program.tasks.work[tasks]
    if window is not None:
        part = slice(*window)
        tasks, gaps, slowed = tasks[part], gaps[part], slowed[part]
    released_by = times.released_by[tasks]
    by_communication = (released_by != NO_TASK) & program.structure.communication[released_by]
    lag = np.minimum(gaps, program.lag[tasks])
    parts[PART_INDEX["dp_communication"]] = gaps[by_communication].sum()
    parts[PART_INDEX["pp_communication"]] = lag[~by_communication].sum()
    parts[PART_INDEX[BUBBLE]] = (gaps - lag)[~by_communication].sum()
    parts[PART_INDEX[OVERLAP_SLOWDOWN]] = slowed.sum()
    return parts
