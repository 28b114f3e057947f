"""Whether runs that were left out are predicted better by the others: what is not is not used."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.uncertainty.posterior import Columns, Posterior, Prior, Vector

MOST_FOLDS = 20
"""Of many runs several are left out at once."""


def left_out(
    runs: Columns, errors: Vector, jobs: NDArray[np.int64], prior: Prior | None = None
) -> Vector:
    """The expected errors (n,) of runs by what those of other jobs say; 0 where there are none."""
    expected = np.zeros_like(errors)
    folds = np.unique(jobs, return_inverse=True)[1] % MOST_FOLDS
    for fold in range(int(folds.max()) + 1):
        out = np.flatnonzero(folds == fold)
        others = np.flatnonzero(folds != fold)
        if len(others):
            expected[out] = Posterior(runs.take(others), errors[others], prior).errors(
                runs.take(out)
            )
    return expected


def relative(errors: Vector, expected: Vector | float = 0.0) -> Vector:
    """Errors of predictions (predicted over measured, less one) that expect so much of them."""
    found: Vector = np.expm1(expected - errors)
    return found


def supported(errors: Vector, expected: Vector) -> bool:
    """Whether runs left out are, on average, predicted better with what the others say."""
    after, before = np.abs(relative(errors, expected)), np.abs(relative(errors))
    return bool(after.mean() < before.mean())
