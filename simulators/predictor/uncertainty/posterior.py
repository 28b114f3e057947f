"""What a few measured runs say of the times of others like them: a Gaussian process.

The logarithm of measured over predicted step time of a run is taken for the sum of what all runs
of one table share; of what those on one GPU, of one software, model, precision, ... share; of
something that changes smoothly with sizes and degrees; of each part of the step times how much
longer that part takes; and of an error of its own. How large each is was learned from published
runs (``calibration_prior.yaml``, by ``trainscout calibrate evidence``). The errors of single runs
have heavy tails (Student's t, so that one wrong run does not decide), as have what all runs on one
GPU, of one software, share and what changes smoothly (half-Cauchy, so that runs which agree are
believed however far off, all of them or those of one kind); how large they are is learned from the
runs themselves: every size of ``NOISES``, ``OVERALLS`` and ``SMOOTHS`` is weighed by how well it
explains them.

Rasmussen and Williams 2006, equations 2.25, 2.26 and 2.30; weights of runs as in the EM algorithm
for errors of Student's t (Lange, Little and Taylor 1989).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.io.yaml_files import parse_yaml
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import KNOBS

from .factors import SHARES

Vector = NDArray[np.float64]

PRIOR = Path(__file__).with_name("calibration_prior.yaml")
NOISES = np.array([0.003, 0.006, 0.012, 0.025, 0.05, 0.1, 0.2, 0.4])
"""Typical errors of single runs that are weighed, as logarithms."""
OVERALLS = np.array([1.0, 4.0, 16.0, 64.0])
"""How many times as large as those of publications an error that all runs on one GPU, of one
software, share may be."""
SMOOTHS = np.array([1.0, 4.0, 16.0])
"""How many times as large as in publications what changes smoothly may be."""
# The rarer, the narrower are bars by two or three runs. Of 0.03 to 1 chosen with the published
# runs of docs/calibration.md in view, whose smooth errors are rarely wider than the prior's.
_SMOOTHS_WIDTH = 0.03


def _log_chances(scales: Vector, width: float = 1.0) -> Vector:
    """Of a half-Cauchy distribution of that width (Gelman 2006), each what is nearest to it."""
    borders = np.sqrt(scales[:-1] * scales[1:]) / width
    below = np.arctan([0, *borders, np.inf]) * 2 / np.pi
    logs: Vector = np.log(np.diff(below))
    return logs


def _each(*of: Vector) -> tuple[Vector, ...]:
    """Each with each, as columns."""
    return tuple(grid.ravel() for grid in np.meshgrid(*of, indexing="ij"))


_WIDER, _SMOOTHER, _NOISES = _each(OVERALLS**2 - 1, SMOOTHS**2 - 1, NOISES)
_LOG_CHANCES = sum(
    _each(_log_chances(OVERALLS), _log_chances(SMOOTHS, _SMOOTHS_WIDTH), np.zeros(len(NOISES)))
)
FREEDOM = 4.0
"""Degrees of freedom of Student's t, of errors and of what is predicted."""
_ROUNDS = 3
_HALVINGS = 40
_LEAST_VARIANCE = 1e-8


@dataclass(frozen=True)
class Traits:
    """What of a job makes its error like that of another: known before it is predicted.

    ``shape`` names the model's layers and width; sizes in tokens, elements and GPUs.
    """

    gpu: str
    software: str
    precision: str
    experts: bool
    shape: str
    recompute: str
    zero_stage: int
    num_gpus: int
    sequence_length: int
    hidden_size: int
    micro_batch: int
    tp: int
    pp: int
    ep: int


# Of ``KINDS`` the first two: one machine with one software.
_MACHINE = 2
KINDS = ("gpu", "software", "precision", "experts", "shape", "recompute", "zero_stage")
SIZES = ("num_gpus", "sequence_length", "hidden_size", "micro_batch", "tp", "pp", "ep")
_SHARDS = KNOBS["zero_stage"].canonical
assert _SHARDS is not None
RECIPE_TRAITS = ("recompute", "zero_stage", "micro_batch", *_SHARDS.reads)
"""The knobs that decide in which traits recipes of one question differ."""
assert {*KINDS, *SIZES} == {field.name for field in fields(Traits)}


def traits_of(job: Job) -> Traits:
    """The traits of a job."""
    recipe, model = job.recipe, job.model
    return Traits(
        gpu=job.gpu.name,
        software=job.framework.software,
        precision=job.precision,
        experts=model.moe is not None,
        shape=f"{model.num_layers} x {model.hidden_size}",
        recompute=recipe.recompute,
        # Recipes that mean the same are alike in everything.
        zero_stage=int(KNOBS["zero_stage"].canonical_value(job)),
        num_gpus=job.world_size,
        sequence_length=job.sequence_length,
        hidden_size=model.hidden_size,
        micro_batch=recipe.micro_batch,
        tp=recipe.tp,
        pp=recipe.pp,
        ep=recipe.ep,
    )


@dataclass(frozen=True)
class Prior:
    """Standard deviations, as logarithms of times, of what makes up a run's error.

    ``overall``: shared by all runs of one table. ``kind``: by those that agree in one of
    ``KINDS``. ``part``: of the time of one of ``SHARES``. ``smooth``: of what changes smoothly; by
    one unit of distance where a size differs by ``length`` doublings, and by ``distance`` where a
    kind does. The logarithm of a single run's typical error is normal around that of ``noise``
    with ``noise_spread``. (A figure for each kind, part and size of its own explains publications
    that it was fitted to better, and those left out worse.)
    """

    overall: float
    kind: float
    part: float
    smooth: float
    length: float
    distance: float
    noise: float
    noise_spread: float


@functools.cache
def published_prior() -> Prior:
    """The prior that ships, read once per process."""
    found = parse_yaml(PRIOR.read_text(encoding="utf-8"), "prior", PRIOR.name)
    return Prior(**{name: float(value) for name, value in found.items()})


@dataclass(frozen=True)
class Columns:
    """Runs as columns: ``kinds`` (n, 7) as text, ``sizes`` (n, 7) in doublings, ``shares``
    (n, 5) of the step."""

    kinds: NDArray[np.str_]
    sizes: Vector
    shares: Vector

    @staticmethod
    def of(traits: Sequence[Traits], shares: Sequence[Sequence[float]]) -> Columns:
        kinds = [[str(getattr(each, name)) for name in KINDS] for each in traits]
        sizes = [[getattr(each, name) for name in SIZES] for each in traits]
        return Columns(
            np.array(kinds, dtype=np.str_).reshape(-1, len(KINDS)),
            np.log2(np.array(sizes, dtype=float)).reshape(-1, len(SIZES)),
            np.array([tuple(each) for each in shares], dtype=float).reshape(-1, len(SHARES)),
        )

    def take(self, rows: NDArray[np.int64]) -> Columns:
        return Columns(self.kinds[rows], self.sizes[rows], self.shares[rows])


@dataclass(frozen=True)
class Compared:
    """Pairs (n, m) of runs, whatever the prior: how many of ``KINDS`` they share, whether the
    ``machine`` is among these, their squared distance ``apart`` in doublings of sizes, and the sum
    ``parts`` of the products of their shares."""

    kinds: NDArray[np.int64]
    machine: NDArray[np.bool_]
    apart: Vector
    parts: Vector


def compare(one: Columns, other: Columns) -> Compared:
    """All pairs of both."""
    same = one.kinds[..., :, None, :] == other.kinds[..., None, :, :]
    apart = one.sizes[..., :, None, :] - other.sizes[..., None, :, :]
    return Compared(
        kinds=same.sum(axis=-1),
        machine=same[..., :_MACHINE].all(axis=-1),
        apart=(apart**2).sum(axis=-1),
        parts=one.shares @ np.swapaxes(other.shares, -1, -2),
    )


def covariance(prior: Prior, pairs: Compared) -> Vector:
    """Covariance (n, m) of the errors of runs but for what is each one's own."""
    fixed: Vector = prior.overall**2 + prior.kind**2 * pairs.kinds + prior.part**2 * pairs.parts
    return fixed + _smooth(prior, pairs)


def _smooth(prior: Prior, pairs: Compared) -> Vector:
    squared = pairs.apart / prior.length**2 + prior.distance**2 * (len(KINDS) - pairs.kinds)
    found: Vector = prior.smooth**2 * np.exp(-0.5 * squared)
    return found


def variance(prior: Prior, of: Columns) -> Vector:
    """The diagonal of ``covariance``, (n,)."""
    fixed = prior.overall**2 + prior.kind**2 * len(KINDS) + prior.smooth**2
    found: Vector = fixed + prior.part**2 * (of.shares**2).sum(axis=-1)
    return found


def covariances(prior: Prior, pairs: Compared) -> Vector:
    """``covariance`` by noise, overall and smooth error, (..., s, n, m)."""
    wider = prior.overall**2 * _WIDER[:, None, None] * pairs.machine[..., None, :, :]
    wider += _SMOOTHER[:, None, None] * _smooth(prior, pairs)[..., None, :, :]
    found: Vector = covariance(prior, pairs)[..., None, :, :] + wider
    return found


def variances(prior: Prior, of: Columns) -> Vector:
    """The diagonals of ``covariances``, (..., s, n)."""
    wider = prior.overall**2 * _WIDER + prior.smooth**2 * _SMOOTHER
    found: Vector = variance(prior, of)[..., None, :] + wider[:, None]
    return found


@dataclass(frozen=True)
class Conditioned:
    """Runs with known errors, by noise, overall and smooth error (s): logarithms of ``weights``
    (s,), ``pull`` (s, n), the inverse covariance times the errors, and that ``inverse`` (s, n, n).
    """

    log_weights: Vector
    pull: Vector
    inverse: NDArray[Any]


def condition(prior: Prior, covariances: Vector, errors: Vector) -> Conditioned:
    """Learn from errors (..., n) with ``covariances`` (..., s, n, n); arrays may be stacked."""
    return weighed(prior, explained(covariances, errors))


def explained(covariances: Vector, errors: Vector) -> Conditioned:
    """``condition`` with every noise and size as probable as any other beforehand."""
    variances = _NOISES[:, None] ** 2
    weights = np.ones((*errors.shape[:-1], len(_NOISES), errors.shape[-1]))
    identity, own = np.eye(errors.shape[-1]), errors[..., None, :]
    for last in (*[False] * (_ROUNDS - 1), True):
        noise = variances / weights
        whole = covariances + identity * noise[..., None, :]
        inverse = np.linalg.inv(whole)
        pull = (inverse @ own[..., None])[..., 0]
        if not last:
            left = noise - noise**2 * np.diagonal(inverse, axis1=-2, axis2=-1)
            squares = (noise * pull) ** 2 + np.maximum(left, 0.0)
            weights = (FREEDOM + 1) / (FREEDOM + squares / variances)
    logs = -0.5 * ((own * pull).sum(axis=-1) + np.linalg.slogdet(whole)[1])
    return Conditioned(logs, pull, inverse)


def weighed(prior: Prior, found: Conditioned) -> Conditioned:
    """``explained`` with how probable each was beforehand: the only use of the prior's noise."""
    logs = found.log_weights - 0.5 * (np.log(_NOISES / prior.noise) / prior.noise_spread) ** 2
    logs += _LOG_CHANCES
    logs -= np.logaddexp.reduce(logs, axis=-1)[..., None]
    return replace(found, log_weights=logs)


def predicted(found: Conditioned, across: Vector, own: Vector) -> tuple[Vector, Vector]:
    """Means and variances (..., s, m) of errors of other runs.

    Args:
        across: covariances (..., s, m, n) with the known runs; ``own`` (..., s, m) their
            variances.
    """
    means = (across @ found.pull[..., None])[..., 0]
    known = ((across @ found.inverse) * across).sum(axis=-1)
    return means, np.maximum(own - known + _NOISES[:, None] ** 2, _LEAST_VARIANCE)


def mean(found: Conditioned, means: Vector) -> Vector:
    """Means (..., m) over what the noise may be."""
    weighed: Vector = (np.exp(found.log_weights)[..., None] * means).sum(axis=-2)
    return weighed


def moments(found: Conditioned, across: Vector, own: Vector) -> tuple[Vector, Vector]:
    """Expected errors (..., m) of other runs, and variances of what is still unknown of them,
    without their own errors; arguments as of ``predicted``."""
    means, variances = predicted(found, across, own)
    weights, middle = np.exp(found.log_weights)[..., None], mean(found, means)
    left = np.maximum(variances - _NOISES[:, None] ** 2, 0.0) + (means - middle[..., None, :]) ** 2
    return middle, (weights * left).sum(axis=-2)


def quantile(found: Conditioned, means: Vector, variances: Vector, probability: float) -> Vector:
    """A quantile (..., m) of the mixture of Student's t."""
    weights, spread = np.exp(found.log_weights)[..., None], np.sqrt(variances)
    low, high = (means - 20 * spread).min(axis=-2), (means + 20 * spread).max(axis=-2)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = (weights * _below((middle[..., None, :] - means) / spread)).sum(axis=-2)
        low = np.where(below < probability, middle, low)
        high = np.where(below < probability, high, middle)
    found_at: Vector = (low + high) / 2
    return found_at


def _below(at: Vector) -> Vector:
    """How probable less than ``at`` is under Student's t of ``FREEDOM`` degrees: of four in closed
    form (Shaw 2006, section 2.3), which takes a tenth of the time of ``scipy.special.stdtr``."""
    share = at / np.sqrt(at**2 + FREEDOM)
    below: Vector = 0.5 + share * (0.75 - 0.25 * share**2)
    return below


class Posterior:
    """What known runs say of others.

    Args:
        errors: (n,) logarithms of measured over predicted step times.
    """

    def __init__(self, runs: Columns, errors: Vector, prior: Prior | None = None) -> None:
        self._prior, self._runs = prior or published_prior(), runs
        self._found = condition(self._prior, covariances(self._prior, compare(runs, runs)), errors)

    @property
    def known(self) -> tuple[Prior, Columns, Conditioned]:
        """What it was learned from, and what was."""
        return self._prior, self._runs, self._found

    def errors(self, of: Columns) -> Vector:
        """The whole expected errors (m,)."""
        return mean(self._found, self._spread(of)[0])

    @property
    def part_spreads(self) -> Vector:
        """Standard deviations (5,) of what is unknown of the logarithm of each part's time."""
        prior = self._prior.part**2
        own, across = np.full((1, len(SHARES)), prior), prior * self._runs.shares.T[None]
        return np.sqrt(moments(self._found, across, own)[1])

    def ends(self, of: Columns, level: float) -> tuple[Vector, Vector]:
        """Ends (m,) of the interval that holds ``level`` of the errors around their mean."""
        means, variances = self._spread(of)
        tail = (1 - level) / 2
        low, high = (quantile(self._found, means, variances, p) for p in (tail, 1 - tail))
        return low, high

    @property
    def noise(self) -> float:
        """The typical error of single runs, as far as it is known."""
        return float(np.exp(np.exp(self._found.log_weights) @ np.log(_NOISES)))

    def covariance(self, of: Columns) -> Vector:
        """Covariance (m, m) of what is still unknown, without single runs' own errors."""
        across = covariances(self._prior, compare(of, self._runs))
        weights, means = np.exp(self._found.log_weights), self._spread(of)[0]
        known = across @ self._found.inverse @ np.swapaxes(across, -1, -2)
        left = np.tensordot(weights, covariances(self._prior, compare(of, of)) - known, 1)
        apart = means - mean(self._found, means)
        found: Vector = left + (weights * apart.T) @ apart
        return found

    def spreads(self, of: Columns) -> Vector:
        """Standard deviations (m,) of what is still unknown, without single runs' own errors."""
        across = covariances(self._prior, compare(of, self._runs))
        return np.sqrt(moments(self._found, across, variances(self._prior, of))[1])

    def _spread(self, of: Columns) -> tuple[Vector, Vector]:
        across = covariances(self._prior, compare(of, self._runs))
        return predicted(self._found, across, variances(self._prior, of))


def log_density(errors: Vector, variances: Vector) -> Vector:
    """Of Student's t with ``FREEDOM`` degrees and squared scales ``variances``."""
    constant = math.lgamma((FREEDOM + 1) / 2) - math.lgamma(FREEDOM / 2)
    squares = errors**2 / variances / FREEDOM
    return (
        constant
        - 0.5 * np.log(FREEDOM * math.pi * variances)
        - (FREEDOM + 1) / 2 * np.log1p(squares)
    )
