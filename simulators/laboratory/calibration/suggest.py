"""Which runs to measure next: those that say most about which recipe is best.

What the times of the candidates may truly be is drawn from what is known of their errors. A set of
runs is worth what the recipe that one would choose after measuring it gains over the one chosen
now, on average; runs are added to the set one by one, each time the most worth (the knowledge
gradient of Frazier, Powell and Dayanik 2009, for several measurements, by drawing). What a
layout's time has of its own is there whenever it runs, so that measuring it tells it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.uncertainty.posterior import Vector

_DRAWS = 512
# Typical standard deviation, as a logarithm, of published runs of one job: the median of 117 jobs.
_REPEATED = 0.01


@dataclass(frozen=True)
class Suggested:
    """A run to measure: the ``row`` of its candidate, and by what share of a step the recipe
    chosen is expected to be slower than the best (``regret``) with it and those before it."""

    row: int
    regret: float


def suggest(
    expected: Vector, covariance: Vector, count: int, seed: int = 0
) -> tuple[float, tuple[Suggested, ...]]:
    """The expected regret of choosing now, and ``count`` runs to measure.

    Args:
        expected: (n,) logarithms of candidates' step times.
        covariance: (n, n) of their errors, with what is each candidate's own.
    """
    rng = np.random.default_rng(seed)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    truth = expected + rng.standard_normal((_DRAWS, len(expected))) @ root.T
    seen = truth + _REPEATED * rng.standard_normal(truth.shape)
    best = truth.min(axis=1)
    chosen: list[int] = []
    found: list[Suggested] = []
    now = float(np.mean(truth[:, expected.argmin()] - best))
    while len(chosen) < min(count, len(expected)):
        regrets = [
            _regret(expected, covariance, [*chosen, row], truth, seen)
            if row not in chosen
            else np.inf
            for row in range(len(expected))
        ]
        chosen.append(int(np.argmin(regrets)))
        found.append(Suggested(chosen[-1], float(np.expm1(min(regrets) - best.mean()))))
    return float(np.expm1(now)), tuple(found)


def _regret(
    expected: Vector,
    covariance: Vector,
    rows: list[int],
    truth: Vector,
    seen: Vector,
) -> float:
    """Mean logarithm of the step that is chosen with these candidates measured."""
    own = covariance[np.ix_(rows, rows)] + _REPEATED**2 * np.eye(len(rows))
    gain = np.linalg.solve(own, covariance[rows])
    learned = expected + (seen[:, rows] - expected[rows]) @ gain
    return float(truth[np.arange(len(truth)), learned.argmin(axis=1)].mean())
