"""How deep a queue is after time was skipped, from how deep it was before.

A predictor maps histories, shape (ports, samples), oldest first, to depths in bytes, shape
(ports,). ``frozen`` leaves queues as they were, which is what a steady component's do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Predictor = Callable[[Floats], Floats]


def last(history: Floats) -> Floats:
    return history[:, -1]


def mean(history: Floats) -> Floats:
    depths: Floats = history.mean(axis=1)
    return depths


def zero(history: Floats) -> Floats:
    return np.zeros(len(history))


def autoregressive(history: Floats) -> Floats:
    """One step of an AR(1) process around the mean, its coefficient by least squares per port."""
    centre = history.mean(axis=1, keepdims=True)
    before, after = history[:, :-1] - centre, history[:, 1:] - centre
    power = (before**2).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = np.where(power > 0, (before * after).sum(axis=1) / power, 0.0)
    depths: Floats = centre[:, 0] + np.clip(slope, -1.0, 1.0) * (history[:, -1] - centre[:, 0])
    return np.maximum(depths, 0.0)


PREDICTORS: dict[str, Predictor | None] = {
    "frozen": None,
    "last": last,
    "mean": mean,
    "autoregressive": autoregressive,
    "zero": zero,
}
