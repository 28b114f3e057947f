"""When two recipes of one job cannot be distinguished: how far predicted *differences* are off.

Recipes of one job share most of their error (the machine, the kernels, the model), so the error
bar says little about which is faster. Runs of one sweep do too: the difference of two residuals
is the error of the predicted difference.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .features import Features
from .interval import LEVEL
from .table import ResidualTable, published_residuals, quantiles, source_balanced

# What both spend alike errs alike; what one spends otherwise errs as it is, independently of other
# such time, so the variance of a difference grows with the share of the step that is spent
# otherwise. Kernels of other shapes in parts as large are worth as much as so much of it. Floors
# of 2 to 10 %, steps between layouts instead and beside it, and sums of squares were compared by
# the quantile score of pairs whose publication was left out.
_ALIKE = 0.05


@dataclass(frozen=True)
class LayoutPairs:
    """Pairs of runs of one sweep in different layouts, ascending by ``errors``.

    ``errors`` (p,): the difference of their residuals over ``spread``, (p,) as ``spread_of`` has
    it. ``first`` and ``second`` (p,) are rows of the table.
    """

    errors: NDArray[np.float64]
    spread: NDArray[np.float64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]


def spent_otherwise(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Sum over parts of how far their shares of two steps are apart, 0 to 2, from seconds."""
    step_s, other_s = sum(one.values()), sum(other.values())
    return sum(
        abs(one.get(part, 0.0) / step_s - other.get(part, 0.0) / other_s)
        for part in {**one, **other}
    )


def tie_share(features: Features, one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """The lead, as a share of a step, below which two recipes of one job cannot be distinguished.

    ``LEVEL`` of the measured pairs like them miss the predicted difference by less.

    Args:
        features: of either recipe's prediction.
        one: seconds by part of the step, and ``other`` those of the other recipe's.
    """
    table = published_residuals()
    pairs, near = layout_pairs(table), np.maximum(table.near(features), 1e-150)
    limit = quantiles(pairs.errors, pair_weights(table, near), [LEVEL])[0]
    return math.expm1(limit * math.sqrt(spent_otherwise(one, other) + _ALIKE))


def pair_weights(table: ResidualTable, near: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of ``layout_pairs`` that sum to one, from each run's similarity to a prediction;
    pairs with a run that has none (left out) weigh nothing."""
    pairs = layout_pairs(table)
    both = np.sqrt(near[pairs.first] * near[pairs.second])
    return source_balanced(both, table.sources[pairs.first])[0]


@functools.lru_cache(maxsize=4)
def layout_pairs(table: ResidualTable) -> LayoutPairs:
    """Every pair of runs of one sweep whose layouts differ."""
    rows = np.arange(len(table.residuals))
    pairs = [_pairs_of(rows[table.sweeps == sweep]) for sweep in np.unique(table.sweeps)]
    first, second = np.concatenate(pairs, axis=1)
    differs = table.layouts[first] != table.layouts[second]
    first, second = first[differs], second[differs]
    otherwise = np.abs(table.shares[:, first] - table.shares[:, second]).sum(axis=0)
    spread = np.sqrt(otherwise + _ALIKE)
    errors = np.abs(table.residuals[first] - table.residuals[second]) / spread
    order = np.argsort(errors, kind="stable")
    return LayoutPairs(errors[order], spread[order], first[order], second[order])


def _pairs_of(members: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of every pair, shape (2, pairs)."""
    upper = np.triu_indices(len(members), 1)
    return np.stack((members[upper[0]], members[upper[1]]))
