"""Measured runs beside their predictions, as calibrations learn from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.calibration import Calibration, CalibrationRun
from trainscout.simulators.predictor.uncertainty.posterior import traits_of


@dataclass(frozen=True)
class MeasuredRun:
    """A job with its measured step time in seconds; ``name`` is the row's id, or a log's file."""

    name: str
    job: Job
    measured_s: float


def with_predictions(
    runs: Sequence[MeasuredRun], stated: Calibration | None = None
) -> tuple[CalibrationRun, ...]:
    """Every run beside its prediction, with what is ``stated`` of the machines; equal jobs are
    predicted once.

    Raises:
        InputError: for a run on another GPU than that is stated of.
    """
    simulator, known = ReplaySimulator(stated), {}
    found = []
    for run in runs:
        job = nameless(run.job)
        if job not in known:
            prediction, shares = simulator.with_shares(job)
            known[job] = (prediction.step_time_s, shares)
        predicted_s, shares = known[job]
        found.append(
            CalibrationRun(run.name, traits_of(run.job), shares, predicted_s, run.measured_s)
        )
    return tuple(found)


def equal_jobs(runs: Sequence[MeasuredRun]) -> NDArray[np.int64]:
    """Each run's job as a number, (n,): a run repeated is left out together."""
    numbers: dict[Job, int] = {}
    return np.array([numbers.setdefault(nameless(run.job), len(numbers)) for run in runs])


def nameless(job: Job) -> Job:
    """The job without what labels it: a run repeated under another label is the same job."""
    return replace(
        job,
        model=replace(job.model, name="", source=""),
        cluster=replace(job.cluster, name="", source=""),
    )


# Measured machines are off by tens of per cent; farther off, as a whole, are milliseconds taken
# for seconds, or one GPU's share for the whole.
LARGEST_RATIO = 3.0
# A run that is farther off from the others is none of theirs; two of one job are not both of it.
_STRANGE = 20.0


_UNITS = {
    1e3: "milliseconds taken for seconds",
    1e6: "microseconds taken for seconds",
    1e-3: "seconds taken for milliseconds",
}


def check_runs(runs: Sequence[CalibrationRun], jobs: NDArray[np.int64]) -> tuple[int, ...]:
    """Which runs can be used: the rows of all but those far from the others.

    Raises:
        InputError: when all are in another unit, or runs of one job contradict each other.
    """
    errors = np.array([run.log_residual for run in runs])
    middle = float(np.median(errors))
    if abs(middle) > np.log(LARGEST_RATIO):
        ratio = float(np.exp(middle))
        near = min(_UNITS, key=lambda unit: abs(np.log(unit) - middle))
        stated = f": {_UNITS[near]}?" if abs(np.log(near) - middle) < np.log(10) else ""
        problem = f"took {ratio:.3g} times as long as predicted, in the middle{stated}"
        allowed = "1/3 to 3 times (step times in seconds; docs/validation.md has the columns)"
        raise InputError("runs", f"{len(runs)} runs", problem, allowed)
    for job in np.unique(jobs):
        same = np.flatnonzero(jobs == job)
        low, high = same[errors[same].argmin()], same[errors[same].argmax()]
        ratio = float(np.exp(errors[high] - errors[low]))
        if ratio > _STRANGE:
            names = f"{runs[low].name} and {runs[high].name}"
            problem = f"are of one job and differ {ratio:.3g} times"
            raise InputError("runs", names, problem, "runs of one job that agree")
    far = np.abs(errors - middle) > np.log(_STRANGE)
    return tuple(np.flatnonzero(~far).tolist())
