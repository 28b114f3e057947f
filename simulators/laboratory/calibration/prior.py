"""The prior of calibrations, learned from published runs: how they err together, and alone.

Sizes are chosen so that, of random runs of one publication, a few tell most of the others: the
mean over publications of the logarithm of how probable those were is made largest. All
publications count the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.uncertainty import posterior
from trainscout.simulators.predictor.uncertainty.posterior import (
    KINDS,
    SHARES,
    SIZES,
    Columns,
    Prior,
    Vector,
)

KNOWN = (1, 2, 3, 5, 8)
_DRAWS = 5
_OTHERS = 12
_ROUNDS = 40
# Where nothing is said: some per cent, and distances of some doublings. It keeps what no
# publication tells where it is.
_SPREAD, _LENGTH, _DISTANCE = 0.03, 3.0, 0.7
_NOISE, _NOISE_SPREAD = 0.03, 0.8
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

    draws, start = drawn(groups), _start()

    def loss(logs: Vector) -> float:
        prior, total, count = _prior(np.exp(logs)), 0.0, 0
        for each in draws:
            total -= float(_density(prior, runs, errors, each).sum())
            count += len(each.known)
        return total / count + _PULL * float(((logs - start) ** 2).sum())

    ends = [(value - 4, value + 2) for value in start]
    options = {"maxiter": _ROUNDS, "maxfun": _ROUNDS * (len(start) + 2)}
    found = minimize(loss, start, method="L-BFGS-B", bounds=ends, options=options)
    return _prior(np.exp(found.x))


def _density(prior: Prior, runs: Columns, errors: Vector, draw: Drawn) -> Vector:
    """Mean logarithm of how probable the others of every draw were, (draws,)."""
    known, others = runs.take(draw.known), runs.take(draw.others)
    found = posterior.condition(
        prior, posterior.covariance(prior, known, known), errors[draw.known]
    )
    across = posterior.covariance(prior, others, known)
    means, variances = posterior.predicted(found, across, posterior.variance(prior, others))
    own = posterior.log_density(errors[draw.others][:, None] - means, variances)
    whole = np.logaddexp.reduce(own + found.log_weights[..., None], axis=1)
    mean: Vector = whole.mean(axis=1)
    return mean


def _start() -> Vector:
    spreads = [_SPREAD] * (2 + len(KINDS) + len(SHARES))
    rest = [_LENGTH] * len(SIZES) + [_DISTANCE] * len(KINDS) + [_NOISE, _NOISE_SPREAD]
    found: Vector = np.log([*spreads, *rest])
    return found


def _prior(values: Vector) -> Prior:
    numbers = iter(values.tolist())

    def take(count: int) -> tuple[float, ...]:
        return tuple(next(numbers) for _ in range(count))

    return Prior(
        overall=next(numbers),
        smooth=next(numbers),
        kinds=take(len(KINDS)),
        parts=take(len(SHARES)),
        lengths=take(len(SIZES)),
        distances=take(len(KINDS)),
        noise=next(numbers),
        noise_spread=next(numbers),
    )
