"""The error bar: where a measured step would lie, from the residuals of runs like it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.job import Job

from .features import Features, features_of
from .table import ERRORS, ResidualTable, published_residuals, quantiles, source_balanced

LEVEL = 0.8
"""Share of measured steps that an error bar is meant to hold."""

# A step that waits for its host takes longer where that is slower than declared, by more than it
# waits: all launches take longer, also those that the device hid. It is not as much shorter where
# the host is faster, since what the device takes is left. One to two and a half times were
# compared as ``features.KINDS`` were.
_SLOWER_HOST = 1.5

# How much farther than runs told of at all ends lie where nothing is near. Of 0 to 1 in quarters
# the one whose shares, with each of ``coverage.LEFT_OUT`` left out, lie nearest to the level.
_FARTHER = 0.5

_NORMAL = NormalDist()


def error_bar(
    job: Job, step_time_s: float, breakdown_s: Mapping[str, float], slow_s: float = 0.0
) -> tuple[float, float]:
    """The interval in seconds that holds a measured step with probability ``LEVEL``; ``slow_s`` as
    in ``fabric_error``.

    It need not lie evenly around the prediction, nor hold it: where predictions of such runs
    were all too low, it says so. That of a calibrated prediction: ``Calibration.interval``.
    """
    features = features_of(job, step_time_s, breakdown_s, slow_s)
    low, high = log_interval(published_residuals(), features)
    return step_time_s * math.exp(low), step_time_s * math.exp(high)


def log_interval(
    table: ResidualTable, features: Features, level: float = LEVEL
) -> tuple[float, float]:
    """Logarithms of the interval's ends over the prediction."""
    # No run is infinitely far: with all of them at zero there would be nothing to go by.
    near = np.maximum(table.near(features), 1e-300)
    own = np.array([getattr(features, name) for name in ERRORS])
    return interval(table, *source_balanced(near, table.sources, table.even), own, level)


def interval(
    table: ResidualTable,
    weights: NDArray[np.float64],
    novelty: float,
    own: NDArray[np.float64],
    level: float,
) -> tuple[float, float]:
    """Ends of one prediction's interval: quantiles of the residuals, up to half as far again from
    their median where nothing is near, joined by its own errors as independent ones, but for what
    of them those runs had too; the host's to the slower side alone.

    Args:
        weights: (n,) of the table's rows, and with them ``novelty``: see ``source_balanced``.
        own: the prediction's ``ERRORS``, (4,).
    """
    tail = (1 - level) / 2
    low, middle, high = quantiles(table.residuals, weights, [tail, 0.5, 1 - tail])
    # Those of kernels and hosts are alike in runs that are; what one network is tells of no other.
    own = own**2
    kernels, host = np.maximum(0.0, own[:2] - table.errors[:2] ** 2 @ weights)
    # Typical errors are medians of absolute ones.
    reach = _NORMAL.inv_cdf(1 - tail) / _NORMAL.inv_cdf(0.75)
    faster = reach * math.sqrt(kernels + own[2])
    slower = reach * math.sqrt(kernels + _SLOWER_HOST**2 * host + own[3])
    more = 1 + _FARTHER * novelty
    return (
        middle - math.hypot(more * (middle - low), faster),
        middle + math.hypot(more * (high - middle), slower),
    )
