"""Measured runs like a prediction, weighed: near ones count, many of one source count little."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Every publication, weighing the same, adds this much weight however far it is, so that where
# nothing is near the interval is that of any publication.
_ANYTHING_WEIGHT = 2.0


def source_balanced(
    similarity: NDArray[np.float64],
    sources: NDArray[np.int64],
    even: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], float]:
    """Weights of runs from their similarities to a prediction, and how novel that is.

    Runs of one publication share a machine, a code base and its reader's assumptions, so they
    are together worth at most one independent run: with summed similarity ``W`` they weigh
    ``W / (1 + W)`` (the design effect of fully correlated clusters, Kish 1965, section 5.4). A
    run with no similarity at all (left out) weighs nothing.

    Args:
        similarity: (n,), 0 to 1.
        sources: (n,), each run's source as a number.
        even: ``evenly`` of those runs that have a similarity, for whoever has it.

    Returns:
        Weights (n,) that sum to one, and the novelty: 0 with many sources near, 1 with none.
    """
    per_source = np.bincount(sources, similarity)
    near = similarity / (1 + per_source)[sources]
    mass = float(near.sum())
    if even is None:
        even = evenly(sources, similarity > 0)
    weights = near + _ANYTHING_WEIGHT * even
    return weights / weights.sum(), _ANYTHING_WEIGHT / (_ANYTHING_WEIGHT + mass)


def evenly(sources: NDArray[np.int64], present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Weights (n,) of the runs that are ``present``, which sum to one: every source's the same."""
    runs = np.bincount(sources, present)[sources]
    weights = np.divide(present, runs, out=np.zeros(len(sources)), where=runs > 0)
    weights /= weights.sum()
    return weights


def quantiles(
    ascending: NDArray[np.float64], weights: NDArray[np.float64], probabilities: list[float]
) -> list[float]:
    """Weighted quantiles of ``ascending`` values, linear between the middles of their weights."""
    middles = np.cumsum(weights) - weights / 2
    return [float(value) for value in np.interp(probabilities, middles, ascending)]
