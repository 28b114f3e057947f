"""Logarithms of predicted step times as a function of the corrections' logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.calibration import Calibration

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class MeasuredRun:
    """A job with its measured step time in seconds; ``name`` is the row's id."""

    name: str
    job: Job
    measured_s: float


class StepTimes:
    """Predicts the different jobs among some runs under any corrections.

    A correction vector holds the natural logarithms of the factors, in the order of
    ``uncertainty.calibration.CORRECTIONS``. ``job_of_run`` (n,) numbers each run's job; runs that
    repeat a job share its number.
    """

    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        jobs = [_nameless(run.job) for run in runs]
        self.jobs = tuple(dict.fromkeys(jobs))
        numbers = {job: number for number, job in enumerate(self.jobs)}
        self.job_of_run = np.array([numbers[job] for job in jobs])
        self.log_measured = np.log([run.measured_s for run in runs])

    def predict(self, number: int, corrections: Vector) -> Prediction:
        """The prediction of one of ``jobs``."""
        job = self.jobs[number]
        compute, network, host = (math.exp(value) for value in corrections)
        calibration = Calibration(job.gpu.name, compute, network, host)
        return ReplaySimulator(calibration).without_error_bar(job)

    def log_seconds(self, corrections: Vector) -> Vector:
        """Logarithm of the predicted seconds of every run, (n,)."""
        of_jobs = [
            math.log(self.predict(number, corrections).step_time_s)
            for number in range(len(self.jobs))
        ]
        of_runs: Vector = np.array(of_jobs)[self.job_of_run]
        return of_runs

    def residuals(self, corrections: Vector) -> Vector:
        """Logarithm of measured over predicted seconds of every run, (n,)."""
        return self.log_measured - self.log_seconds(corrections)


def _nameless(job: Job) -> Job:
    """The job without what labels it: a run repeated under another label is the same job."""
    return replace(
        job,
        model=replace(job.model, name="", source=""),
        cluster=replace(job.cluster, name="", source=""),
    )
