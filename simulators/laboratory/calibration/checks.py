"""Measurements that cannot be meant: other units, and rows that contradict each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.uncertainty.calibration import CalibrationRun

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
