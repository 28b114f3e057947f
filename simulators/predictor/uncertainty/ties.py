"""Recipes that cannot be distinguished: how far predicted *differences* are off.

Recipes of one job share most of their error (the machine, the kernels, the model), so the error
bar says little about which is faster. Runs of one sweep do too: the difference of two residuals
is the error of the predicted difference.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.recipe import Recipe

from .features import Features
from .interval import LEVEL
from .table import (
    SWITCHES,
    ResidualTable,
    doublings_of,
    published_residuals,
    quantiles,
    source_balanced,
)


@dataclass(frozen=True)
class LayoutPairs:
    """Pairs of runs of one sweep in different layouts, ascending by ``per_step``.

    ``per_step`` (p,): the difference of their residuals over the square root of how many steps
    their layouts are apart. ``first`` and ``second`` (p,) are rows of the table.
    """

    per_step: NDArray[np.float64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]


def layout_steps(one: Recipe, other: Recipe) -> float:
    """How far two layouts are apart: doublings of every degree, and one for every switch."""
    degrees = zip(doublings_of(one), doublings_of(other), strict=True)
    switches = sum(bool(getattr(one, name) != getattr(other, name)) for name in SWITCHES)
    return switches + sum(abs(mine - theirs) for mine, theirs in degrees)


def tie_share(features: Features, one: Recipe, other: Recipe) -> float:
    """The lead, as a share of a step, below which two recipes of one job cannot be distinguished.

    ``LEVEL`` of the measured pairs like them miss the predicted difference by less. Errors of a
    difference grow as the square root of the number of layout steps, as independent errors of
    every step do.

    Args:
        features: of either recipe's prediction.
    """
    steps = layout_steps(one, other)
    return math.expm1(_per_step(published_residuals(), features) * math.sqrt(steps))


def _per_step(table: ResidualTable, features: Features) -> float:
    pairs = layout_pairs(table)
    near = table.near(features)
    both = np.sqrt(near[pairs.first] * near[pairs.second])
    weights, _ = source_balanced(np.maximum(both, 1e-300), table.sources[pairs.first])
    return quantiles(pairs.per_step, weights, [LEVEL])[0]


@functools.lru_cache(maxsize=4)
def layout_pairs(table: ResidualTable) -> LayoutPairs:
    """Every pair of runs of one sweep whose layouts differ."""
    rows = np.arange(len(table.residuals))
    pairs = [_pairs_of(rows[table.sweeps == sweep]) for sweep in np.unique(table.sweeps)]
    first, second = np.concatenate(pairs, axis=1)
    steps = np.abs(table.doublings[:, first] - table.doublings[:, second]).sum(axis=0)
    steps += (table.switches[:, first] != table.switches[:, second]).sum(axis=0)
    differs = steps > 0
    first, second, steps = first[differs], second[differs], steps[differs]
    gaps = np.abs(table.residuals[first] - table.residuals[second]) / np.sqrt(steps)
    order = np.argsort(gaps, kind="stable")
    return LayoutPairs(gaps[order], first[order], second[order])


def _pairs_of(members: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of every pair, shape (2, pairs)."""
    upper = np.triu_indices(len(members), 1)
    return np.stack((members[upper[0]], members[upper[1]]))
