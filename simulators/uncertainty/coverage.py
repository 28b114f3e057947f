"""Do error bars hold what they say? Checked, and tuned, on runs that were left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.uncertainty.features import similarity
from simulators.uncertainty.interval import LEVEL, kernel_excess, spread, widened
from simulators.uncertainty.neighbours import source_balanced
from simulators.uncertainty.table import ResidualTable, Tuning

FOLDS = 5
_HALVINGS = 12
_TAIL_FACTORS = (0.1, 3.0)


@dataclass(frozen=True)
class Coverage:
    """Shares of runs inside the interval of ``level`` made without them.

    ``five_fold``: without a random fifth of the runs. ``leave_one_source_out``: without any run
    of their publication, over all runs; ``per_source`` is the mean over publications of that.
    ``median_width`` is the median of the interval's high end over its low end, less one.
    """

    level: float
    n: int
    five_fold: float
    leave_one_source_out: float
    per_source: float
    median_width: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class _LeftOut:
    """For each run, the weights (n, n), the novelty and the excess (n,) of its kernels' error when
    its group is left out."""

    weights: NDArray[np.float64]
    novelty: NDArray[np.float64]
    excess: NDArray[np.float64]


def calibrate(table: ResidualTable, level: float = LEVEL) -> tuple[Tuning, Coverage]:
    """The tuning with which runs left out are inside as often as ``level`` says.

    The next run is sometimes one of a publication that is in the table, sometimes one of a
    stranger: the mean of ``five_fold`` and ``per_source`` is brought to the level.
    """
    folds = np.random.default_rng(0).permutation(len(table.residuals)) % FOLDS
    by_fold, by_source = _leave_out(table, folds), _leave_out(table, table.sources)

    def short(factor: float) -> bool:
        found = _coverage(table, by_fold, by_source, Tuning(factor), level)
        return found.five_fold + found.per_source < 2 * level

    tuning = Tuning(round(_bisect(short, *_TAIL_FACTORS), 3))
    return tuning, _coverage(table, by_fold, by_source, tuning, level)


def _coverage(
    table: ResidualTable, by_fold: _LeftOut, by_source: _LeftOut, tuning: Tuning, level: float
) -> Coverage:
    inside, alone = (_inside(table, each, tuning, level) for each in (by_fold, by_source))
    low, high = _ends(table, by_fold, tuning, level)
    return Coverage(
        level=level,
        n=len(table.residuals),
        five_fold=float(inside.mean()),
        leave_one_source_out=float(alone.mean()),
        per_source=_mean_by(table.sources, alone),
        median_width=float(np.median(np.expm1(high - low))),
    )


def _leave_out(table: ResidualTable, groups: NDArray[np.int64]) -> _LeftOut:
    n = len(table.residuals)
    weights, novelty, excess = np.zeros((n, n)), np.zeros(n), np.zeros(n)
    for row in range(n):
        one = slice(row, row + 1)
        near = similarity(table.kinds, table.sizes, table.kinds[:, one], table.sizes[:, one])
        near = np.where(groups == groups[row], 0.0, np.maximum(near, 1e-300))
        weights[row], novelty[row] = source_balanced(near, table.sources)
        excess[row] = kernel_excess(table.kernel_errors[row], table.kernel_errors, weights[row])
    return _LeftOut(weights, novelty, excess)


def _ends(
    table: ResidualTable, left_out: _LeftOut, tuning: Tuning, level: float
) -> NDArray[np.float64]:
    """Ends of every run's interval, shape (2, n)."""
    runs = zip(left_out.weights, left_out.novelty, left_out.excess, strict=True)
    return np.array(
        [
            widened(*spread(table.residuals, weights, new, tuning, level), excess, level)
            for weights, new, excess in runs
        ]
    ).T


def _inside(
    table: ResidualTable, left_out: _LeftOut, tuning: Tuning, level: float
) -> NDArray[np.bool_]:
    low, high = _ends(table, left_out, tuning, level)
    inside: NDArray[np.bool_] = (low <= table.residuals) & (table.residuals <= high)
    return inside


def _mean_by(groups: NDArray[np.int64], values: NDArray[np.bool_]) -> float:
    return float(np.mean(np.bincount(groups, values) / np.bincount(groups)))


def _bisect(reached: Callable[[float], bool], low: float, high: float) -> float:
    """The smallest value, within the halvings, at which a monotone condition holds."""
    if reached(low):
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
