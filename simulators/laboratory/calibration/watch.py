"""Whether measured runs are still as they are expected, and what has moved where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.uncertainty.posterior import SHARES, Vector

# Whatever moves does so by some tens of per cent.
_MOVED = 0.3
WHOLE = "whole steps"
CAUSES = {
    WHOLE: "another version of the software, lower clocks or less power",
    "memory_time": "slower memory, or kernels that are no longer fused",
    "node_time": "a degraded link inside a node",
    "network_time": "a degraded link, another placement or a busy fabric",
    "host_time": "a slower or busier host",
    "straggler_time": "a slow GPU",
}


@dataclass(frozen=True)
class Moved:
    """A factor that may have moved: by which ``factor``, and how probable it is among all."""

    name: str
    factor: float
    probability: float


def moved(excess: Vector, spreads: Vector, shares: Sequence[Sequence[float]]) -> tuple[Moved, ...]:
    """What would explain runs that took longer, the most probable first.

    Args:
        excess: (n,) logarithms of measured over expected times, ``spreads`` (n,) their standard
            deviations.
        shares: (n, 5) of every step, in the order of ``posterior.SHARES``.
    """
    columns = np.column_stack((np.ones(len(excess)), np.array(shares)))
    found = []
    for name, column in zip((WHOLE, *SHARES), columns.T, strict=True):
        covariance = _MOVED**2 * np.outer(column, column) + np.diag(spreads**2)
        pull = np.linalg.solve(covariance, excess)
        density = -0.5 * float(excess @ pull) - 0.5 * float(np.linalg.slogdet(covariance)[1])
        found.append((density, name, _MOVED**2 * float(column @ pull)))
    best = max(found)[0]
    weights = [np.exp(density - best) for density, _, _ in found]
    ranked = sorted(zip(weights, found, strict=True), key=lambda pair: -pair[0])
    return tuple(
        Moved(name, float(np.exp(by)), float(weight / sum(weights)))
        for weight, (_, name, by) in ranked
    )
