"""What calibrating on a few runs is worth, on published runs: some known, the rest predicted."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.io.second_core import both
from trainscout.simulators.predictor.uncertainty import posterior
from trainscout.simulators.predictor.uncertainty.applied import applied
from trainscout.simulators.predictor.uncertainty.interval import LEVEL
from trainscout.simulators.predictor.uncertainty.posterior import (
    KINDS,
    Columns,
    Compared,
    Conditioned,
    Posterior,
    Prior,
    Vector,
    compare,
    covariance,
)

from .suggest_command import suggest
from .support import relative, supported

KNOWN = (1, 3, 5, 10)
DRAWS = 50
LEAST_RUNS = 8
"""Of a publication, to be looked at; and so many must be left to be predicted:"""
_LEAST_OTHERS = 3
_MOST_OTHERS = 80
_FOLDS = 3
_OWN = ("gpu", "software", "shape")
_RESAMPLED = 200
_LARGER = 1.001
# Runs whose measured times differ by less are not ranked.
_TIE = 0.01


@dataclass(frozen=True)
class Published:
    """Runs of publications: logarithms of measured over predicted times ``errors`` (n,), their
    ``sources`` and ``sweeps`` (n,) as text, logarithms ``measured`` (n,) of seconds, and the
    ``widths`` (n,) of uncalibrated bars: high over low end, less one."""

    runs: Columns
    errors: Vector
    sources: NDArray[np.str_]
    sweeps: NDArray[np.str_]
    measured: Vector
    widths: Vector

    def groups(self) -> Mapping[str, NDArray[np.int64]]:
        """Rows of every publication with enough runs."""
        return _rows_by_name(self.sources)

    def own(self, rows: NDArray[np.int64]) -> Mapping[str, NDArray[np.int64]]:
        """Of the rows of one publication those of one GPU, software and model, where they are
        enough: what a user's own runs are like."""
        kinds = self.runs.kinds[rows][:, [KINDS.index(kind) for kind in _OWN]]
        found = _rows_by_name(np.array([", ".join(each) for each in kinds]))
        return {name: rows[among] for name, among in found.items()}


def _rows_by_name(names: NDArray[np.str_]) -> Mapping[str, NDArray[np.int64]]:
    found, counts = np.unique(names, return_counts=True)
    often = found[counts >= LEAST_RUNS]
    return {str(name): np.flatnonzero(names == name) for name in often}


@dataclass(frozen=True)
class Errors:
    """Of runs as they are predicted: median and 90th percentile of absolute errors, and the share
    of pairs of a sweep in the right order (None: no sweeps)."""

    median: float
    p90: float
    ranked: float | None


@dataclass(frozen=True)
class Evidence:
    """``known`` of the ``n`` runs of one publication, or of its runs of one ``setup`` (GPU,
    software and model), over all draws: errors of the others uncalibrated and as calibrated, and
    the median width of their bars (high over low end, less one). ``worse``: how probable it is
    that the 90th percentile grows, by draws of the draws. ``applied``: the share of draws whose
    runs speak for some of it; of those are ``width`` and ``coverage``, the share of runs inside
    their bars (nan: there were none)."""

    source: str
    setup: str
    n: int
    known: int
    before: Errors
    after: Errors
    worse: float
    width_before: float
    width: float
    coverage: float
    applied: float


def evidence(published: Published, seed: int = 0) -> tuple[Prior, tuple[Evidence, ...]]:
    """The prior of all publications, and what it is worth where it was learned without the one
    it is tried on."""
    groups = published.groups()
    names = sorted(groups)

    def learned(among: Sequence[str]) -> Prior:
        """From publications and from the setups in them: known runs may be of either."""
        of = [groups[name] for name in among]
        setups = [setup for rows in of for setup in published.own(rows).values()]
        return fit_prior(published.runs, published.errors, [*of, *setups])

    folds = [names[fold::_FOLDS] for fold in range(_FOLDS)]
    among = [names, *([name for name in names if name not in out] for out in folds)]
    half = len(among) // 2
    first, second = both(
        lambda: [learned(each) for each in among[:half]],
        lambda: [learned(each) for each in among[half:]],
    )
    whole, *priors = first + second
    found = []
    for out, prior in zip(folds, priors, strict=True):
        for name in out:
            rows = groups[name]
            found += [
                each
                for setup, runs in {"": rows, **published.own(rows)}.items()
                for known in KNOWN
                if (each := tried(published, name, runs, known, prior, seed, setup)) is not None
            ]
    found.sort(key=lambda each: (each.known, each.source, each.setup))
    return whole, tuple(found)


def common(published: Published) -> tuple[Errors, ...]:
    """Errors of every setup's runs as they come, and with their own median error taken off all of
    them: what a factor that they share could do at most, were all of them known."""
    found = []
    for rows in published.groups().values():
        for among in published.own(rows).values():
            middle = float(np.median(published.errors[among]))
            for expected in (0.0, middle):
                whole = np.full((1, len(among)), expected)
                found.append(_summary(published, among[None, :], whole))
    return tuple(found)


def tried(
    published: Published,
    source: str,
    rows: NDArray[np.int64],
    known: int,
    prior: Prior,
    seed: int = 0,
    setup: str = "",
) -> Evidence | None:
    """``DRAWS`` times ``known`` random runs of ``rows`` are known; None where too few are left."""
    if len(rows) < known + _LEAST_OTHERS:
        return None
    rng = np.random.default_rng((seed, known))
    orders = np.array([rng.permutation(rows) for _ in range(DRAWS)])
    mine, others = orders[:, :known], orders[:, known : known + _MOST_OTHERS]
    errors = published.errors
    runs = published.runs
    found, means, variances = conditioned(prior, runs, errors, mine, others)
    stated = applied(prior, runs.take(mine), found, runs.take(others))
    ends = [
        posterior.quantile(found, means, variances, probability)
        for probability in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    ]
    share = _supported(prior, published, mine)
    expected, used = share[:, None] * stated, share > 0
    inside = (ends[0] <= errors[others]) & (errors[others] <= ends[1])
    return Evidence(
        source=source,
        setup=setup,
        n=len(rows),
        known=known,
        before=_summary(published, others, np.zeros_like(expected)),
        after=_summary(published, others, expected),
        worse=_worse(errors[others], expected),
        width_before=float(np.median(published.widths[rows])),
        width=float(np.median(np.expm1(ends[1] - ends[0])[used])) if used.any() else float("nan"),
        coverage=float(inside[used].mean()) if used.any() else float("nan"),
        applied=float(used.mean()),
    )


def _supported(prior: Prior, published: Published, known: NDArray[np.int64]) -> Vector:
    """``support.supported`` of every draw: nothing speaks for a single run."""
    draws, count = known.shape
    if count < 2:
        return np.zeros(draws)
    expected = np.zeros(known.shape)
    for out in range(count):
        left = known[:, [out]]
        others = np.delete(known, out, 1)
        found, means, _ = conditioned(prior, published.runs, published.errors, others, left)
        expected[:, [out]] = posterior.mean(found, means)
    return supported(published.errors[known], expected)


def _summary(published: Published, rows: NDArray[np.int64], expected: Vector) -> Errors:
    absolute = np.abs(relative(published.errors[rows], expected))
    right = [
        order
        for draw, more in zip(rows, expected, strict=True)
        for order in _in_order(published, draw, more)
    ]
    return Errors(
        median=float(np.median(absolute)),
        p90=float(np.quantile(absolute, 0.9)),
        ranked=float(np.mean(right)) if right else None,
    )


def _worse(errors: Vector, expected: Vector) -> float:
    """In which share of the draws of these draws (d, m) the 90th percentile of absolute errors is
    larger by a thousandth or more with what is expected than without."""
    rng = np.random.default_rng(0)
    before, after = np.abs(relative(errors)), np.abs(relative(errors, expected))
    rows = rng.integers(0, len(errors), (_RESAMPLED, len(errors)))
    was, now = (
        np.quantile(each[rows].reshape(_RESAMPLED, -1), 0.9, axis=-1) for each in (before, after)
    )
    return float(np.mean(now > _LARGER * was))


def _in_order(published: Published, rows: NDArray[np.int64], expected: Vector) -> Sequence[bool]:
    """Of every pair of one sweep whether the faster one was predicted to be so."""
    measured = published.measured[rows]
    predicted = measured - published.errors[rows] + expected
    first, second = np.triu_indices(len(rows), 1)
    apart = measured[first] - measured[second]
    ranked = (published.sweeps[rows][first] == published.sweeps[rows][second]) & (
        np.abs(apart) > _TIE
    )
    right: list[bool] = (
        (predicted[first] - predicted[second])[ranked] * apart[ranked] > 0
    ).tolist()
    return right


MEASURED = 3
LEAST_LAYOUTS = 5
_DRAWS, _SEED = 20, 0


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


def regrets(published: Published, prior: Prior) -> tuple[Regret, ...]:
    """The regret in every sweep with enough layouts."""
    found = []
    for sweep in np.unique(published.sweeps):
        rows = np.flatnonzero(published.sweeps == sweep)
        # A layout that is there twice counts once, as it was first measured.
        _, first = np.unique(published.runs.sizes[rows], axis=0, return_index=True)
        if len(rows) >= LEAST_LAYOUTS and len(first) > 1:
            found.append(_of(published, prior, str(sweep), rows))
    return tuple(found)


def _of(published: Published, prior: Prior, sweep: str, rows: NDArray[np.int64]) -> Regret:
    runs, measured = published.runs.take(rows), published.measured[rows]
    errors = published.errors[rows]
    predicted = measured - errors

    def after(known: NDArray[np.int64]) -> float:
        posterior = Posterior(runs.take(known), errors[known], prior)
        expected = predicted + posterior.errors(runs)
        expected[known] = measured[known]
        return _slower(measured, expected)

    unknown = covariance(prior, compare(runs, runs)) + prior.noise**2 * np.eye(len(rows))
    _, chosen = suggest(predicted, unknown, MEASURED, _SEED)
    rng = np.random.default_rng(_SEED)
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


_COUNTS = (1, 2, 3, 5, 8)
_ORDERS = 5
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
    for k in _COUNTS:
        orders = [
            rng.permutation(group)
            for group in groups
            if len(group) >= k + 3
            for _ in range(_ORDERS)
        ]
        if orders:
            known = np.array([order[:k] for order in orders])
            found.append(Drawn(known, np.array([np.resize(o[k:], _OTHERS) for o in orders])))
    return tuple(found)


def fit_prior(runs: Columns, errors: Vector, groups: Sequence[NDArray[np.int64]]) -> Prior:
    """The prior under which the runs of each group tell most of one another."""
    from scipy.optimize import minimize

    draws, start = drawn(groups), np.log(dataclasses.astuple(_START))
    pairs = [_Pairs.of(runs.take(each.known), runs.take(each.others)) for each in draws]

    # Two of the steps of a gradient change what the noise is likely to be, which is weighed last.
    @functools.lru_cache(maxsize=len(start) + 1)
    def densities(prior: Prior) -> Sequence[tuple[Conditioned, Vector]]:
        """By draw what is known, and how probable each other is by each noise."""
        found = []
        for draw, pair in zip(draws, pairs, strict=True):
            within = posterior.covariances(prior, pair.within)
            known = posterior.explained(within, errors[draw.known])
            means, variances = pair.predicted(prior, known)
            own = posterior.log_density(errors[draw.others][:, None] - means, variances)
            found.append((known, own))
        return found

    def loss(logs: Vector) -> float:
        prior, total, count = Prior(*np.exp(logs).tolist()), 0.0, 0
        usual = dataclasses.replace(prior, noise=_START.noise, noise_spread=_START.noise_spread)
        for known, own in densities(usual):
            weights = posterior.weighed(prior, known).log_weights[..., None]
            total -= float(np.logaddexp.reduce(own + weights, axis=1).mean(axis=1).sum())
            count += len(own)
        return total / count + _PULL * float(((logs - start) ** 2).sum())

    ends = [(value - 4, value + 2) for value in start]
    options = {"maxiter": _ROUNDS, "maxfun": _ROUNDS * (len(start) + 2)}
    found = minimize(loss, start, method="L-BFGS-B", bounds=ends, options=options)
    return Prior(*np.exp(found.x).tolist())


@dataclass(frozen=True)
class _Pairs:
    """Known runs with each other, others with them, and the others."""

    within: Compared
    across: Compared
    others: Columns

    @staticmethod
    def of(known: Columns, others: Columns) -> _Pairs:
        return _Pairs(compare(known, known), compare(others, known), others)

    def predicted(self, prior: Prior, found: Conditioned) -> tuple[Vector, Vector]:
        """Means and variances of the others (``posterior.predicted``)."""
        across = posterior.covariances(prior, self.across)
        return posterior.predicted(found, across, posterior.variances(prior, self.others))


def conditioned(
    prior: Prior,
    runs: Columns,
    errors: Vector,
    known: NDArray[np.int64],
    others: NDArray[np.int64],
) -> tuple[Conditioned, Vector, Vector]:
    """What rows ``known`` (draws, k) say, and means and variances of ``others`` (draws, m)."""
    pairs = _Pairs.of(runs.take(known), runs.take(others))
    within = posterior.covariances(prior, pairs.within)
    found = posterior.condition(prior, within, errors[known])
    return found, *pairs.predicted(prior, found)
