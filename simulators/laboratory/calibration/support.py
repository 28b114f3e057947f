"""How far runs that were left out are predicted better by the others: no further are they used."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.uncertainty.applied import applied
from trainscout.simulators.predictor.uncertainty.posterior import Columns, Posterior, Vector

MOST_FOLDS = 20
"""Of many runs several are left out at once."""
_LARGE = 0.06
"""From here on errors weigh by their size, below by its square (Huber 1964): a run that went wrong
does not decide. Chosen with the published runs of docs/calibration.md in view."""
_SHARES = np.linspace(0.0, 1.0, 11)


def left_out(runs: Columns, errors: Vector, jobs: NDArray[np.int64]) -> tuple[Vector, Vector]:
    """The expected errors (n,) of runs by what those of other jobs say, 0 where there are none;
    and what of that would be applied."""
    expected, certain = np.zeros_like(errors), np.zeros_like(errors)
    folds = np.unique(jobs, return_inverse=True)[1] % MOST_FOLDS
    for fold in range(int(folds.max()) + 1):
        out = np.flatnonzero(folds == fold)
        others = np.flatnonzero(folds != fold)
        if len(others):
            posterior = Posterior(runs.take(others), errors[others])
            expected[out] = posterior.errors(runs.take(out))
            certain[out] = applied(*posterior.known, runs.take(out))
    return expected, certain


def relative(errors: Vector, expected: Vector | float = 0.0) -> Vector:
    """Errors of predictions (predicted over measured, less one) that expect so much of them."""
    return np.expm1(expected - errors)


def supported(errors: Vector, expected: Vector) -> Vector:
    """How much of what the others say predicts runs left out best.

    Args:
        errors: (..., n) logarithms of measured over predicted times; ``expected`` (..., n) what
            the others say of them.

    Returns:
        (...,): 0 where they are predicted best as they come, 1 with all that is said.
    """
    losses = []
    for share in _SHARES:
        left = np.abs(relative(errors, share * expected))
        large = _LARGE * (left - _LARGE / 2)
        losses.append(np.where(left < _LARGE, left**2 / 2, large).mean(axis=-1))
    best: Vector = _SHARES[np.argmin(losses, axis=0)]
    return best
