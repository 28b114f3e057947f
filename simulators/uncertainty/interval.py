"""The error bar: where a measured step would lie, from the residuals of runs like it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simulators.job import Job
from simulators.uncertainty.features import Features, features_of, similarity, sizes_of
from simulators.uncertainty.neighbours import quantiles, source_balanced
from simulators.uncertainty.table import ResidualTable, Tuning, published_residuals

LEVEL = 0.8
"""Share of measured steps that an error bar is meant to hold."""


def error_bar(
    job: Job, step_time_s: float, breakdown_s: Mapping[str, float]
) -> tuple[float, float]:
    """The interval in seconds that holds a measured step with probability ``LEVEL``.

    It need not lie evenly around the prediction, nor hold it: where predictions of such runs
    were all too low, it says so.
    """
    features = features_of(job, step_time_s, breakdown_s)
    low, high = log_interval(published_residuals(), features)
    return step_time_s * math.exp(low), step_time_s * math.exp(high)


def log_interval(
    table: ResidualTable, features: Features, level: float = LEVEL
) -> tuple[float, float]:
    """Logarithms of the interval's ends over the prediction."""
    near = similarity(
        table.kinds, table.sizes, table.codes(features), np.array([sizes_of(features)]).T
    )
    # No run is infinitely far: with all of them at zero there would be nothing to go by.
    weights, novelty = source_balanced(np.maximum(near, 1e-300), table.sources)
    return spread(table.residuals, weights, novelty, table.tuning, level)


def spread(
    ascending: NDArray[np.float64],
    weights: NDArray[np.float64],
    novelty: float,
    tuning: Tuning,
    level: float,
) -> tuple[float, float]:
    """The tuned interval of weighted residuals, up to twice as wide where nothing is near.

    ``novelty`` as ``source_balanced`` gives it.
    """
    tail = min(0.5, (1 - level) / 2 * tuning.tail_factor)
    low, middle, high = quantiles(ascending, weights, [tail, 0.5, 1 - tail])
    stretch = 1 + novelty
    return middle + (low - middle) * stretch, middle + (high - middle) * stretch
