"""The prior of calibrations, learned from published runs: how they err together, and alone.

Sizes are chosen so that, of random runs of one group (a publication, or its runs of one setup), a
few tell most of the others: the mean over groups of the logarithm of how probable those were is
made largest. All groups count the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.uncertainty import posterior
from trainscout.simulators.predictor.uncertainty.posterior import Columns, Prior, Vector

KNOWN = (1, 2, 3, 5, 8)
_DRAWS = 5
_OTHERS = 12
_ROUNDS = 40
# Where nothing is said: some per cent, and distances of some doublings.
_START = Prior(
    overall=0.03,
    kind=0.02,
    part=0.1,
    smooth=0.05,
    length=3.0,
    distance=0.7,
    noise=0.03,
    noise_spread=0.8,
)
_PULL = 5e-4


@dataclass(frozen=True)
class Drawn:
    """Rows ``known`` (draws, k) and ``others`` (draws, m) of runs."""

    known: NDArray[np.int64]
    others: NDArray[np.int64]


def drawn(groups: Sequence[NDArray[np.int64]], seed: int = 0) -> tuple[Drawn, ...]:
    """Random runs of each group that are known and others that are not, by how many are known."""
    rng = np.random.default_rng(seed)
    found = []
    for k in KNOWN:
        orders = [
            rng.permutation(group)
            for group in groups
            if len(group) >= k + 3
            for _ in range(_DRAWS)
        ]
        if orders:
            known = np.array([order[:k] for order in orders])
            found.append(Drawn(known, np.array([np.resize(o[k:], _OTHERS) for o in orders])))
    return tuple(found)


def fit_prior(runs: Columns, errors: Vector, groups: Sequence[NDArray[np.int64]]) -> Prior:
    """The prior under which the runs of each group tell most of one another."""
    from scipy.optimize import minimize

    draws, start = drawn(groups), np.log(dataclasses.astuple(_START))

    def loss(logs: Vector) -> float:
        prior, total, count = Prior(*np.exp(logs).tolist()), 0.0, 0
        for each in draws:
            total -= float(_density(prior, runs, errors, each).sum())
            count += len(each.known)
        return total / count + _PULL * float(((logs - start) ** 2).sum())

    ends = [(value - 4, value + 2) for value in start]
    options = {"maxiter": _ROUNDS, "maxfun": _ROUNDS * (len(start) + 2)}
    found = minimize(loss, start, method="L-BFGS-B", bounds=ends, options=options)
    return Prior(*np.exp(found.x).tolist())


def conditioned(
    prior: Prior,
    runs: Columns,
    errors: Vector,
    known: NDArray[np.int64],
    others: NDArray[np.int64],
) -> tuple[posterior.Conditioned, Vector, Vector]:
    """What rows ``known`` (draws, k) say, and means and variances of ``others`` (draws, m) by it
    (``posterior.predicted``)."""
    mine, theirs = runs.take(known), runs.take(others)
    found = posterior.condition(prior, posterior.covariance(prior, mine, mine), errors[known])
    across = posterior.covariance(prior, theirs, mine)
    return found, *posterior.predicted(found, across, posterior.variance(prior, theirs))


def _density(prior: Prior, runs: Columns, errors: Vector, draw: Drawn) -> Vector:
    """Mean logarithm of how probable the others of every draw were, (draws,)."""
    found, means, variances = conditioned(prior, runs, errors, draw.known, draw.others)
    own = posterior.log_density(errors[draw.others][:, None] - means, variances)
    whole = np.logaddexp.reduce(own + found.log_weights[..., None], axis=1)
    mean: Vector = whole.mean(axis=1)
    return mean
