"""What suggested runs are worth on measured sweeps: how good the recipe chosen after them is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.laboratory.calibration.evidence import Published
from trainscout.simulators.laboratory.calibration.suggest import suggest
from trainscout.simulators.predictor.uncertainty.posterior import (
    Posterior,
    Prior,
    Vector,
    covariance,
)

MEASURED = 3
LEAST_LAYOUTS = 5
_DRAWS = 20


@dataclass(frozen=True)
class Regret:
    """Of one sweep with ``layouts`` of one job: how much slower than the best measured layout the
    chosen one was, unmeasured and after ``MEASURED`` runs chosen in each way."""

    sweep: str
    layouts: int
    predicted: float
    suggested: float
    random: float
    best_predicted: float


def regrets(published: Published, prior: Prior, seed: int = 0) -> tuple[Regret, ...]:
    """The regret in every sweep with enough layouts."""
    found = []
    for sweep in np.unique(published.sweeps):
        rows = np.flatnonzero(published.sweeps == sweep)
        # A layout that is there twice counts once, as it was first measured.
        _, first = np.unique(published.runs.sizes[rows], axis=0, return_index=True)
        if len(rows) >= LEAST_LAYOUTS and len(first) > 1:
            found.append(_of(published, prior, str(sweep), rows, seed))
    return tuple(found)


def _of(
    published: Published, prior: Prior, sweep: str, rows: NDArray[np.int64], seed: int
) -> Regret:
    runs, measured = published.runs.take(rows), published.measured[rows]
    errors = published.errors[rows]
    predicted = measured - errors

    def after(known: NDArray[np.int64]) -> float:
        posterior = Posterior(runs.take(known), errors[known], prior)
        expected = predicted + posterior.errors(runs)
        expected[known] = measured[known]
        return _slower(measured, expected)

    unknown = covariance(prior, runs, runs) + prior.noise**2 * np.eye(len(rows))
    _, chosen = suggest(predicted, unknown, MEASURED, seed)
    rng = np.random.default_rng(seed)
    draws = [rng.choice(len(rows), MEASURED, replace=False) for _ in range(_DRAWS)]
    return Regret(
        sweep=sweep,
        layouts=len(rows),
        predicted=_slower(measured, predicted),
        suggested=after(np.array([each.row for each in chosen])),
        random=float(np.mean([after(draw) for draw in draws])),
        best_predicted=after(np.argsort(predicted, kind="stable")[:MEASURED]),
    )


def _slower(measured: Vector, expected: Vector) -> float:
    return float(np.expm1(measured[expected.argmin()] - measured.min()))
