"""Corrections to log times that are linear in them: what runs and prior belief say together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trainscout.simulators.laboratory.calibration.model import Vector

# What is believed before any run is seen. A log residual of an exactly corrected prediction has
# this spread (layouts of one measured sweep differ by about as much), and the corrections lie
# within these factors of one: kernels are known better than networks and hosts.
RUN_SPREAD = 0.05
PRIOR_SPREAD = {
    "compute_time": math.log(1.25),
    "network_time": math.log(2.0),
    "host_time": math.log(2.0),
}


def information(
    fitted: Sequence[str], effects: Vector, weights: Vector, run_spread: float = RUN_SPREAD
) -> Vector:
    """Inverse covariance of the fitted corrections, (fitted, fitted).

    Args:
        effects: (n, fitted), growth of each run's log time per log factor.
        weights: (n,), 1 for a run that counts in full.
    """
    prior = np.array([PRIOR_SPREAD[name] for name in fitted])
    precision: Vector = (effects.T * weights) @ effects / run_spread**2 + np.diag(prior**-2)
    return precision


def solve(
    fitted: Sequence[str], effects: Vector, residuals: Vector, values: Vector, weights: Vector
) -> Vector:
    """The corrections that minimise
    ``sum(weight (residual / RUN_SPREAD)^2) + sum((log factor / PRIOR_SPREAD)^2)``.

    ``residuals`` (n,) are those at ``values``; shrinkage to one is the second sum.
    """
    prior = np.array([PRIOR_SPREAD[name] for name in fitted])
    pull = (effects.T * weights) @ residuals / RUN_SPREAD**2 - values / prior**2
    solution: Vector = values + np.linalg.solve(information(fitted, effects, weights), pull)
    return solution
