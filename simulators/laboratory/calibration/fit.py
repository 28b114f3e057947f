"""Least squares on log time with shrinkage to one, and its error on runs left out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.laboratory.calibration.identify import Identified
from trainscout.simulators.laboratory.calibration.linear import RUN_SPREAD, information, solve
from trainscout.simulators.laboratory.calibration.model import StepTimes, Vector
from trainscout.simulators.predictor.uncertainty.calibration import CORRECTIONS, LARGEST_FACTOR

_STEP = 0.02
_ROUNDS = 6
_CLOSE = 1e-3
# A run farther off than this many spreads pulls no harder than one that is this far off (Huber).
_FAR = 2.0


@dataclass(frozen=True)
class Fit:
    """Corrections in the order of ``CORRECTIONS``, as natural logarithms, and the relative
    standard errors ``spreads`` of the fitted ones (0 for those that were fixed).

    ``before`` and ``after`` (n,): logarithm of measured over predicted seconds, uncorrected and
    corrected by what the runs of *other* jobs say.
    """

    corrections: Vector
    spreads: Vector
    before: Vector
    after: Vector

    @property
    def factors(self) -> Vector:
        factors: Vector = np.exp(self.corrections)
        return factors


def fit_corrections(times: StepTimes, found: Identified) -> Fit:
    """The most probable corrections given the runs (see ``linear.solve``), by Gauss-Newton."""
    columns = [CORRECTIONS.index(name) for name in found.fitted]
    corrections = np.zeros(len(CORRECTIONS))
    before = residuals = times.residuals(corrections)
    effects = found.effects
    limit = 0.95 * math.log(LARGEST_FACTOR)
    for _ in range(_ROUNDS):
        values = solve(found.fitted, effects, residuals, corrections[columns], _weights(residuals))
        step = np.clip(values, -limit, limit) - corrections[columns]
        corrections[columns] += step
        residuals = times.residuals(corrections)
        if np.abs(step).max() < _CLOSE:
            break
        effects = _effects(times, corrections, columns, residuals)
    weights = _weights(residuals)
    after = np.zeros_like(residuals)
    for number in range(len(times.jobs)):
        out = times.job_of_run == number
        # Without one job the fit changes little: it is refitted linearly, and predicted in full.
        values = solve(
            found.fitted, effects[~out], residuals[~out], corrections[columns], weights[~out]
        )
        without = corrections.copy()
        without[columns] = np.clip(values, -limit, limit)
        predicted_s = times.predict(number, without).step_time_s
        after[out] = times.log_measured[out] - math.log(predicted_s)
    spread = max(RUN_SPREAD, float(np.sqrt(np.mean(after**2))))
    spreads = np.zeros(len(CORRECTIONS))
    precision = information(found.fitted, effects, weights, spread)
    spreads[columns] = np.sqrt(np.diag(np.linalg.inv(precision)))
    return Fit(corrections, spreads, before, after)


def _effects(
    times: StepTimes, corrections: Vector, columns: list[int], residuals: Vector
) -> Vector:
    """By how much every run's log time grows with every fitted correction, (n, fitted)."""
    found = []
    for column in columns:
        moved = corrections.copy()
        moved[column] += _STEP
        found.append((residuals - times.residuals(moved)) / _STEP)
    return np.stack(found, axis=1)


def _weights(residuals: Vector) -> Vector:
    weights: Vector = np.minimum(1.0, _FAR * RUN_SPREAD / np.maximum(np.abs(residuals), 1e-12))
    return weights
