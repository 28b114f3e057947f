"""A launch of a user's own script as a simulator of recipes sees it."""

from __future__ import annotations

import atexit
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainscout.simulators.predictor.answer.prediction import Memory, Prediction, StageMemory
from trainscout.simulators.predictor.memory.bands import FITS, NO
from trainscout.simulators.predictor.question.launch import (
    Launch,
    Linear,
    MicroBatches,
    ScriptJob,
    ScriptQuestion,
    Start,
)
from trainscout.simulators.virtual_cluster.allocator.allocator_settings import AllocatorSettings
from trainscout.simulators.virtual_cluster.execution.answer import RankStep, TracedStep
from trainscout.simulators.virtual_cluster.execution.step import replay_ranks
from trainscout.simulators.virtual_cluster.traces.events import BACKWARD, Phase, Trace
from trainscout.simulators.virtual_cluster.traces.invariants import check_trace

from .ranks import InvalidLaunchError, OutOfMemoryLaunchError, PreparedRanks

NEVER_S = 1e9
"""The step of a launch that runs out of memory before it has one; samplers rank it last."""
# Twice as long as a launch of many ranks takes on a busy machine.
LAUNCH_S = 1800.0
REPEATED = "further micro-batches"
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class ScriptSimulator:
    """Runs the ranks that stand for a launch on virtual GPUs, collates and replays them.

    Keeps one prepared process, from which ranks are forked.
    """

    name = "script"

    def __init__(self) -> None:
        self._ranks: tuple[tuple[ScriptQuestion, Path], PreparedRanks] | None = None

    def simulate(self, job: ScriptJob) -> Prediction:
        """Predict one step of a launch.

        Raises:
            InvalidLaunchError: for a launch that its script refuses, or that breaks an invariant.
        """
        question, launch = job.question, job.recipe
        ends_s = time.monotonic() + LAUNCH_S
        found = []
        for start in launch.traced:
            try:
                found.append(self._traced(question, launch, start, ends_s))
            except OutOfMemoryLaunchError as error:
                return _out_of_memory(question, error)
        if launch.linear is None:
            return found[0]
        return _followed(launch.linear, found[0], found[1], launch.work or 0, question)

    def _traced(
        self, question: ScriptQuestion, launch: Launch, start: Start, ends_s: float
    ) -> Prediction:
        traces = self._prepared(question).trace(start, ends_s)
        for trace in traces:
            certain = [each for each in check_trace(trace) if each.certain]
            if certain:
                raise InvalidLaunchError(str(certain[0]))
        step = replay_ranks(
            traces,
            question.gpu,
            question.cluster,
            question.framework,
            host=question.host,
            allocator=_allocator(start),
        )
        return _prediction(question, launch, step, traces)

    def _prepared(self, question: ScriptQuestion) -> PreparedRanks:
        # Ranks are forked where their server was started.
        asked = question, Path.cwd()
        if self._ranks is None or self._ranks[0] != asked:
            if self._ranks is not None:
                self._ranks[1].close()
            self._ranks = asked, PreparedRanks(question)
            atexit.register(self._ranks[1].close)
        return self._ranks[1]


def _allocator(start: Start) -> AllocatorSettings | None:
    chosen = dict(start.environment)
    text = next((chosen[name] for name in _ALLOCATOR if chosen.get(name)), None)
    return None if text is None else AllocatorSettings.parse(text)


def _prediction(
    question: ScriptQuestion, launch: Launch, step: TracedStep, traces: Sequence[Trace]
) -> Prediction:
    step_s, breakdown_s, repeats = step.step_time_s, dict(step.breakdown_s), 1.0
    assumptions = step.assumptions
    counts = launch.micro_batches
    if counts is not None and counts.step > counts.traced:
        period_s = micro_batch_period_s(step, traces, counts)
        more = counts.step - counts.traced
        more_s = more * period_s * step.updates / step.steps
        breakdown_s[REPEATED] = more_s
        step_s += more_s
        repeats = counts.step / counts.traced
        assumptions += (
            f"{counts.traced} of {counts.step} micro-batches were traced; the others take "
            f"{period_s * 1e3:.4g} ms each, as the last of these",
        )
    flops_s = step.hfu * step.step_time_s * repeats
    return _answer(
        question, launch.work or 0, step_s, flops_s, _memory(step), breakdown_s, step, assumptions
    )


def _answer(
    question: ScriptQuestion,
    work: int,
    step_s: float,
    flops_s: float,
    memory: Memory,
    breakdown_s: dict[str, float],
    about: TracedStep | Prediction | None,
    assumptions: tuple[str, ...],
) -> Prediction:
    """``flops_s``: seconds that the FLOPs of a step take at the peak. ``about``: what tells how
    much of it was measured; None where there is no step."""
    hours = step_s / 3600 if about else 0.0
    cost_usd = hours * question.world_size * question.gpu.price_usd_per_hour
    return Prediction(
        step_time_s=step_s,
        # Nobody said what the model's own FLOPs are.
        mfu=0.0,
        mfu_causal=0.0,
        hfu=flops_s / step_s,
        tokens_per_s=work / step_s,
        tokens_per_s_per_gpu=work / step_s / question.world_size,
        cost_per_step_usd=cost_usd,
        cost_per_billion_tokens_usd=cost_usd / work * 1e9 if work else 0.0,
        cost_of_run_usd=0.0,
        fits=memory.band == FITS,
        memory=memory,
        breakdown_s=breakdown_s,
        critical_stage=0,
        evidence_share=about.evidence_share if about else {},
        estimated_operations=about.estimated_operations if about else (),
        assumptions=assumptions,
    )


def _followed(
    linear: Linear, less: Prediction, more: Prediction, work: int, question: ScriptQuestion
) -> Prediction:
    """On the straight line through two predictions, at what the launch really has."""
    first, second = linear.traced
    share = (linear.step - first) / (second - first)

    def at(one: float, other: float) -> float:
        return one + share * (other - one)

    names = {**less.breakdown_s, **more.breakdown_s}
    parts = {
        name: at(less.breakdown_s.get(name, 0.0), more.breakdown_s.get(name, 0.0))
        for name in names
    }
    one, other = less.memory, more.memory
    # What tensors take grows by equal steps; what the allocator holds besides comes in segments,
    # and is that of the larger.
    allocated = int(at(one.peak_allocated_bytes, other.peak_allocated_bytes))
    grown = allocated - other.peak_allocated_bytes
    headroom = other.headroom_bytes - grown
    memory = dataclasses.replace(
        other,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=other.peak_reserved_bytes + grown,
        headroom_bytes=headroom,
        per_stage=(),
        fit_probability=float(headroom >= 0),
        band=FITS if headroom >= 0 else NO,
    )
    assumed = f"time and memory follow a line: {first} and {second} of {linear.step} were traced"
    return _answer(
        question,
        work,
        at(less.step_time_s, more.step_time_s),
        at(less.hfu * less.step_time_s, more.hfu * more.step_time_s),
        memory,
        parts,
        more,
        (*more.assumptions, assumed),
    )


def micro_batch_period_s(step: TracedStep, traces: Sequence[Trace], counts: MicroBatches) -> float:
    """Seconds that one more micro-batch adds to a step, read from the replayed ones.

    On the last rank that was played (a pipeline's last stage, where forward and backward passes
    alternate to the end) the last ``counts.period`` micro-batches begin their backward passes that
    much later than the ones before.

    Raises:
        InvalidLaunchError: when the passes are not those of ``counts.traced`` micro-batches.
    """
    rank = max(step.ranks, key=lambda each: each.rank)
    trace = next(each for each in traces if each.header.rank == rank.rank)
    begins = np.array(_backward_begins(rank, trace))
    passes, left = divmod(len(begins), counts.traced * step.updates)
    if left or not passes or counts.traced <= counts.period:
        raise InvalidLaunchError(
            f"rank {rank.rank} runs {len(begins)} backward passes, which are not those of "
            f"{counts.traced} micro-batches, more than {counts.period} of them"
        )
    return float(begins[-1] - begins[-1 - passes * counts.period]) / counts.period


def _backward_begins(rank: RankStep, trace: Trace) -> list[float]:
    """When the device began each backward pass of the step."""
    begins: list[float] = []
    waiting = False
    start, end = rank.times.start_s, rank.times.end_s
    for index, event in enumerate(trace.events):
        if isinstance(event, Phase):
            waiting = event.phase == BACKWARD
        elif waiting and np.isfinite(start[index]) and end[index] > start[index]:
            begins.append(float(start[index]))
            waiting = False
    return begins


def _memory(step: TracedStep) -> Memory:
    stages = tuple(
        StageMemory(
            place,
            dict(rank.memory.over_time.at_peak),
            rank.memory.peak_allocated_bytes,
            rank.memory.peak_reserved_bytes,
        )
        for place, rank in enumerate(step.ranks)
    )
    worst = min(range(len(stages)), key=lambda at: step.ranks[at].memory.headroom_bytes)
    memory = step.ranks[worst].memory
    return Memory(
        peak_allocated_bytes=memory.peak_allocated_bytes,
        peak_reserved_bytes=memory.peak_reserved_bytes,
        capacity_bytes=memory.capacity_bytes,
        headroom_bytes=memory.headroom_bytes,
        worst_stage=worst,
        per_stage=stages,
        # A trace holds every allocation: it fits or it does not.
        fit_probability=float(step.fits),
        band=FITS if step.fits else NO,
    )


def _out_of_memory(question: ScriptQuestion, error: OutOfMemoryLaunchError) -> Prediction:
    """Of a script that could not run to the end of a step."""
    capacity = int(question.gpu.memory_bytes * (1 - question.cluster.memory_reserve))
    needed = capacity + error.missing_bytes
    memory = Memory(needed, needed, capacity, -error.missing_bytes, 0, (), 0.0, NO)
    return _answer(question, 0, NEVER_S, 0.0, memory, {}, None, (str(error),))
