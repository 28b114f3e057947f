"""How much of what known runs say is applied to a job: what hardly makes its prediction worse.

The true error of a prediction is taken for normal around what is expected, ``e``, with the
standard deviation ``s`` of what is unknown. A correction by ``w e`` makes it worse where the true
error is nearer to nothing than to ``w e``, beyond ``w e / 2``: with the probability
``Phi((w / 2 - 1) |e| / s)``. As much is applied as keeps that at one in five or below, the level
of error bars: ``w = 2 - 2 z s / |e|``, between nothing and all, with ``z = 0.84``.

What is expected of a job has two parts, each weighed so: how much longer a step made up as those
of the known runs are takes, by the job's traits; and how that differs with the shares of the
step's parts, for all jobs alike, since prices of operations hang on it.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from .interval import LEVEL
from .posterior import (
    Columns,
    Conditioned,
    Prior,
    Vector,
    compare,
    covariances,
    mean,
    moments,
    variances,
)

_REACH = NormalDist().inv_cdf(LEVEL)
# No error is known better than to a ten thousandth.
_LEAST, _NONE = 1e-4, 1e-12


def weight(expected: Vector, variances: Vector) -> Vector:
    """How much of what is expected is applied, 0 to 1, by the variance of what is unknown."""
    apart = np.sqrt(variances + _LEAST**2) / np.maximum(np.abs(expected), _NONE)
    return np.clip(2 - 2 * _REACH * apart, 0.0, 1.0)


def part_logs(prior: Prior, runs: Columns, found: Conditioned) -> Vector:
    """Logarithms (..., 5) of how much longer each of ``SHARES`` takes."""
    apart = runs.shares - _usual(runs)
    across = prior.part**2 * apart @ np.swapaxes(runs.shares, -1, -2)
    own = prior.part**2 * (apart**2).sum(axis=-1)
    expected, unknown = moments(found, across[..., None, :, :], own[..., None, :])
    sure = weight(np.sqrt((expected**2).mean(axis=-1)), unknown.mean(axis=-1))
    return sure[..., None] * _parts(prior, runs, found)


def scale_logs(prior: Prior, runs: Columns, found: Conditioned, of: Columns) -> Vector:
    """Logarithms (..., m) of how much longer whole steps of such jobs take, besides
    ``part_logs``; their shares do not count."""
    usual = _usual(runs)
    alike = Columns(of.kinds, of.sizes, np.broadcast_to(usual, of.shares.shape))
    across, own = covariances(prior, compare(alike, runs)), variances(prior, alike)
    expected, unknown = moments(found, across, own)
    parts = (usual[..., 0, :] * part_logs(prior, runs, found)).sum(axis=-1)
    logs: Vector = weight(expected, unknown) * expected - parts[..., None]
    return logs


def applied(prior: Prior, runs: Columns, found: Conditioned, of: Columns) -> Vector:
    """Logarithms (..., m) of how much longer steps of such jobs take, of both."""
    parts = part_logs(prior, runs, found)
    logs: Vector = scale_logs(prior, runs, found, of) + (of.shares @ parts[..., None])[..., 0]
    return logs


def _usual(runs: Columns) -> Vector:
    """The shares (..., 1, 5) of the known runs' steps in the mean."""
    found: Vector = runs.shares.mean(axis=-2, keepdims=True)
    return found


def _parts(prior: Prior, runs: Columns, found: Conditioned) -> Vector:
    pull = mean(found, found.pull)
    logs: Vector = prior.part**2 * (np.swapaxes(runs.shares, -1, -2) @ pull[..., None])[..., 0]
    return logs
