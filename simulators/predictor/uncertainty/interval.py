"""The error bar: where a measured step would lie, from the residuals of runs like it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.job import Job

from .fabric import fabric_error
from .features import Features, features_of
from .table import ResidualTable, Tuning, published_residuals, quantiles, source_balanced

LEVEL = 0.8
"""Share of measured steps that an error bar is meant to hold."""

# The published runs were in view while the predictor was made, and a publication left out of the
# residuals was not left out of that. The figures were chosen to leave about a tenth beyond each
# end of runs of tests predicted before anybody had looked at them
# (``laboratory/data/later_runs*.csv``, as predicted now, every publication counting alike). They
# leave 7 % beyond the fast and 11 % beyond the slow end each of 41 runs alone (of the last six
# tests; 4 and 7 % of 79 of all ten), of 361 inside a node and of 383 over a network, what a slow
# network would not hide being counted apart. Of networks that were measured no run tells: between
# the first and the last.
UNSEEN: Mapping[str, tuple[float, float]] = {
    "alone": (1.8, 1.9),
    "node": (2.2, 4.4),
    "measured": (1.6, 3.0),
    "network": (1.6, 3.5),
}
"""How much farther than those of publications left out intervals reach to the faster and to the
slower side, by what joins the GPUs."""
OTHER_VENDOR = 2.0
"""And how much farther yet to the slower side on GPUs of another vendor than those of nearly all
residuals: of 36 runs on AMD's, of 12 publications, 42 % are beyond the slow end without, 14 % so
(45 and 21 % with every publication counting alike)."""

_NORMAL = NormalDist()


def error_bar(
    job: Job, step_time_s: float, breakdown_s: Mapping[str, float], slow_s: float = 0.0
) -> tuple[float, float]:
    """The interval in seconds that holds a measured step with probability ``LEVEL``; ``slow_s`` as
    in ``fabric_error``.

    It need not lie evenly around the prediction, nor hold it: where predictions of such runs
    were all too low, it says so. That of a calibrated prediction: ``Calibration.interval``.
    """
    features = features_of(job, step_time_s, breakdown_s)
    low, high = log_interval(published_residuals(), features)
    middle = (low + high) / 2
    error, slower = (fabric_error(job, step_time_s, breakdown_s, each) for each in (0.0, slow_s))
    low, high = (
        widened(low, middle, high, error, LEVEL)[0],
        widened(low, middle, high, slower, LEVEL)[1],
    )
    return step_time_s * math.exp(low), step_time_s * math.exp(high)


def log_interval(
    table: ResidualTable, features: Features, level: float = LEVEL
) -> tuple[float, float]:
    """Logarithms of the interval's ends over the prediction.

    A GPU without runs is no surer than the most published one of its architecture.
    """
    low, high = _log_interval(table, features, level)
    kin = table.kin(features.gpu, features.architecture)
    if kin is None:
        return low, high
    kin_low, kin_high = _log_interval(table, replace(features, gpu=kin), level)
    return min(low, kin_low), max(high, kin_high)


def _log_interval(table: ResidualTable, features: Features, level: float) -> tuple[float, float]:
    # No run is infinitely far: with all of them at zero there would be nothing to go by.
    near = np.maximum(table.near(features), 1e-300)
    weights, novelty = source_balanced(near, table.sources, table.even)
    own = Own(
        features.kernel_error,
        features.host_share,
        table.publications(features.gpu),
        table.knows("framework", features.framework),
    )
    return interval(table, weights, novelty, own, table.tuning, level, stretch=_unseen(features))


def _unseen(features: Features) -> tuple[float, float]:
    fabric = features.fabric.partition(" ")[0]
    joined = fabric if fabric in UNSEEN else "network"
    faster, slower = UNSEEN["alone" if features.num_gpus == 1 else joined]
    return faster, slower if features.vendor == "nvidia" else slower * OTHER_VENDOR


@dataclass(frozen=True)
class Own:
    """What widens an interval beyond its neighbours' residuals.

    ``kernel_error`` and ``host_share`` as in ``Features``; ``publications`` with runs on this GPU
    among the residuals, and whether the framework has any.
    """

    kernel_error: float
    host_share: float
    publications: int
    known_framework: bool


def interval(
    table: ResidualTable,
    weights: NDArray[np.float64],
    novelty: float,
    own: Own,
    tuning: Tuning,
    level: float,
    *,
    stretch: tuple[float, float] = (1.0, 1.0),
) -> tuple[float, float]:
    """Ends of one prediction's interval.

    A GPU's runs share an error. What ``k`` publications, each as far off as GPUs are from one
    another, leave unknown of it is one in ``1 + k`` of its variance, and so much of
    ``tuning.new_gpu`` is the least the interval reaches to either side of its middle.

    Args:
        weights: (n,) of the table's rows, and with them ``novelty``: see ``source_balanced``.
        stretch: how much farther off a run is than the table's, each left out, when it is faster
            and when it is slower.
    """
    low, middle, high = spread(table.residuals, weights, novelty, tuning, level)
    more = 1.0 if own.known_framework else tuning.new_framework
    faster, slower = stretch[0] * more, stretch[1] * more
    centre, half = (low + high) / 2, (high - low) / 2
    low, high = centre - half * faster, centre + half * slower
    kernels = tuning.kernel_error * excess(own.kernel_error, table.kernel_errors, weights)
    host = tuning.host_error * excess(own.host_share, table.host_shares, weights)
    low, high = widened(low, middle, high, math.hypot(kernels, host), level)
    least = tuning.new_gpu / math.sqrt(1 + own.publications)
    return min(low, middle - faster * least), max(high, middle + slower * least)


def spread(
    ascending: NDArray[np.float64],
    weights: NDArray[np.float64],
    novelty: float,
    tuning: Tuning,
    level: float,
) -> tuple[float, float, float]:
    """Low end, middle and high end of the tuned interval of weighted residuals.

    It is up to twice as wide where nothing is near. ``novelty`` as ``source_balanced`` gives it.
    """
    tail = min(0.5, (1 - level) / 2 * tuning.tail_factor)
    low, middle, high = quantiles(ascending, weights, [tail, 0.5, 1 - tail])
    stretch = 1 + novelty
    return middle + (low - middle) * stretch, middle, middle + (high - middle) * stretch


def excess(own: float, others: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """What of an independent error is not in the neighbours' residuals already, as theirs is.

    All are relative errors of one kind (or in one proportion to them), and so is what is left.
    """
    return math.sqrt(max(0.0, own**2 - float(weights @ others**2)))


def widened(
    low: float, middle: float, high: float, error: float, level: float
) -> tuple[float, float]:
    """Ends of an interval whose errors are joined by independent ones of that typical size."""
    reach = _NORMAL.inv_cdf((1 + level) / 2) * error / _NORMAL.inv_cdf(0.75)
    return middle - math.hypot(middle - low, reach), middle + math.hypot(high - middle, reach)
