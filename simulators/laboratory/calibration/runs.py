"""Measured runs beside their predictions, as calibrations learn from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

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


def beside_predictions(
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
