"""Every row predicted: its error in time and in memory, or why it has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trainscout.simulators.predictor.answer.prediction import Memory, Prediction
from trainscout.simulators.predictor.io.terminal import progress_bar
from trainscout.simulators.predictor.memory.bands import FITS, NO
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.registry import Simulator

from .jobs.jobs import Declarations, job_of
from .jobs.outcome import NotReplayable, Replayable
from .measured import (
    GIB,
    about_measured,
    measured_memory,
    measured_step,
    memory_kind,
    memory_kind_statement,
    predicted_memory_bytes,
    printed_stage,
)
from .reading.rows import Row

_EXTRAPOLATED = (
    "extrapolated, not measured: the publication's times are affine to parts per million"
)


_ENDS = {0: "first", -1: "last"}


@dataclass(frozen=True)
class MemoryResult:
    """Peak memory in bytes; ``kind`` says what is counted, ``error`` is relative and signed."""

    kind: str
    measured_bytes: float
    predicted_bytes: int

    @property
    def error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1


@dataclass(frozen=True)
class Result:
    """One row beside its prediction.

    ``reason`` says why there is no prediction, or (with a prediction) why no measured step time;
    ``measured_s`` is the measured step in seconds. ``needs`` is the memory that says whether it
    fits, where that is not the prediction's (``Replayable.picking``).
    """

    row: Row
    job: Job | None
    prediction: Prediction | None
    measured_s: float | None
    memory: MemoryResult | None
    assumptions: tuple[str, ...]
    reason: str
    needs: Memory | None = None

    @property
    def band(self) -> str | None:
        """The band of its memory; None without a prediction."""
        memory = self.needs or (self.prediction and self.prediction.memory)
        return memory.band if memory else None

    @property
    def error(self) -> float | None:
        """Relative error of the step time, signed; None when there is nothing to compare."""
        if self.prediction is None or self.measured_s is None:
            return None
        return self.prediction.step_time_s / self.measured_s - 1

    @property
    def memory_error(self) -> float | None:
        return None if self.memory is None else self.memory.error


def replay_row(row: Row, declarations: Declarations, simulator: Simulator) -> Result:
    """Predict one row. What a simulator refuses or fails at is that row's reason."""
    outcome = job_of(row, declarations)
    if isinstance(outcome, NotReplayable):
        return Result(row, None, None, None, None, (), outcome.reason)
    job, assumptions = outcome.job, outcome.assumptions
    measured = measured_step(row, job)
    memory = measured_memory(row)
    if measured is None and memory is None:
        reason = "neither a step time nor a memory figure can be derived"
        return Result(row, job, None, None, None, assumptions, reason)
    try:
        prediction = simulator.simulate(job)
        if prediction.memory.headroom_bytes < 0:
            job, prediction, assumed = _until_it_fits(outcome, prediction, simulator)
            assumptions += assumed
    except Exception as error:
        reason = f"the simulator failed: {type(error).__name__}: {error}"
        return Result(row, job, None, None, None, assumptions, reason)
    if measured is not None:
        assumptions += about_measured(row, job, measured, prediction)
    needs = prediction.memory
    if needs.band == NO:
        recomputing = (*outcome.heavier, *outcome.picking)
        needs, assumed = _with_more_recomputed(job, recomputing, needs, simulator)
        assumptions += assumed
    if needs.band != FITS:
        assumptions = (*assumptions, _format_misfit(needs))
    compared = None
    if memory is not None:
        kind, measured_bytes = memory
        stage = printed_stage(row)
        predicted = predicted_memory_bytes(kind, prediction.memory, stage)
        compared = MemoryResult(kind, measured_bytes, predicted)
        if memory_kind_statement(row) is None:
            where = "" if stage is None else f", of the {_ENDS[stage]} pipeline stage"
            assumptions = (*assumptions, f"memory figure read as {memory_kind(row)}{where}")
    if row.extrapolated:
        assumptions = (*assumptions, _EXTRAPOLATED)
    return Result(
        row=row,
        job=job,
        prediction=prediction,
        measured_s=None if measured is None else measured.step_time_s,
        memory=compared,
        assumptions=assumptions + prediction.assumptions,
        reason="" if measured is not None else "no step time is published",
        needs=None if needs is prediction.memory else needs,
    )


def _until_it_fits(
    outcome: Replayable, prediction: Prediction, simulator: Simulator
) -> tuple[Job, Prediction, tuple[str, ...]]:
    """The least recomputation, then the least sharding, that fits: a published run did fit.

    Only what is not published is varied. When nothing fits, the memory model is the likelier
    culprit and the job stays as it is.
    """
    recipe = outcome.job.recipe
    stages = range(recipe.zero_stage, (outcome.deepest_sharding or recipe.zero_stage) + 1)
    for recomputing in (recipe, *outcome.heavier):
        for stage in stages:
            changed = _sharded(recomputing, stage)
            tried = replace(outcome.job, recipe=changed)
            if changed == recipe or why_invalid(tried) is not None:
                continue
            found = simulator.simulate(tried)
            if found.memory.headroom_bytes >= 0:
                return tried, found, _least(recipe, changed)
    return outcome.job, prediction, ()


def _with_more_recomputed(
    job: Job, recomputing: Sequence[Recipe], needs: Memory, simulator: Simulator
) -> tuple[Memory, tuple[str, ...]]:
    """The memory with the least recomputed that may fit, where the run may have."""
    for recipe in recomputing:
        tried = replace(job, recipe=recipe)
        if why_invalid(tried) is None:
            found = simulator.simulate(tried).memory
            if found.band != NO:
                words = f"memory judged with {_recomputed(recipe)}, the least that may fit"
                return found, (words,)
    return needs, ()


def _sharded(recipe: Recipe, stage: int) -> Recipe:
    if stage == recipe.zero_stage:
        return recipe
    return replace(recipe, zero_stage=stage, overlap_param_gather=recipe.overlap_grad_reduce)


def _least(before: Recipe, after: Recipe) -> tuple[str, ...]:
    words = []
    if after.zero_stage != before.zero_stage:
        words.append(f"sharding: ZeRO stage {after.zero_stage}, the least that fits in memory")
    if _recomputed(after) != _recomputed(before):
        words.append(f"recomputation: {_recomputed(after)}, the least that fits in memory")
    return tuple(words)


def _recomputed(recipe: Recipe) -> str:
    detail = recipe.recompute_modules or recipe.recompute_layers
    return f"{recipe.recompute} ({detail})" if detail else recipe.recompute


def _format_misfit(memory: Memory) -> str:
    used = (memory.capacity_bytes - memory.headroom_bytes) / GIB
    words = "not to fit" if memory.band == NO else "to be tight in memory"
    return (
        f"predicted {words}: {used:.1f} GiB of {memory.capacity_bytes / GIB:.1f} GiB, which fit "
        f"with a probability of {memory.fit_probability:.0%}"
    )


def replay_rows(
    rows: Sequence[Row],
    declarations: Declarations,
    simulator: Simulator,
    advance: Callable[[], None],
) -> tuple[Result, ...]:
    """Predict every row in order, calling ``advance`` after each. Equal jobs are run once."""
    results, memo = [], _Memo(simulator)
    for row in rows:
        results.append(replay_row(row, declarations, memo))
        advance()
    return tuple(results)


def replay_with_progress(
    rows: Sequence[Row], declarations: Declarations, simulator: Simulator
) -> tuple[Result, ...]:
    """``replay_rows`` under a bar of its progress."""
    with progress_bar("predicting", len(rows)) as advance:
        return replay_rows(rows, declarations, simulator, advance)


class _Memo:
    """A simulator that answers an equal job from memory (editions repeat rows)."""

    def __init__(self, simulator: Simulator) -> None:
        self.name, self._simulator = simulator.name, simulator
        self._known: dict[tuple[object, ...], Prediction] = {}

    def simulate(self, job: Job) -> Prediction:
        key = (
            replace(job.model, name="", source=""),
            job.gpu.name,
            replace(job.cluster, name="", source=""),
            job.training,
            job.recipe,
            job.framework,
        )
        if key not in self._known:
            self._known[key] = self._simulator.simulate(job)
        return self._known[key]
