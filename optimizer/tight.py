"""Recipes that may fit: which of them are worth showing next to those that do.

Such a recipe is worth its gain over what fits times its probability to fit; where nothing fits,
its probability alone. Its gain over a recipe is the share by which it is better in the objective
where it is most, and over a front the least of those over its recipes (the additive epsilon
indicator: Zitzler et al. 2003): more than nothing where none of them dominates it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SHOWN = 3
"""So many are proved to be worth most, and shown."""

Floats = NDArray[np.float64]


def worth(losses: Floats, chances: Floats, front: Sequence[Sequence[float]]) -> Floats:
    """What recipes are worth, shape (rows,).

    Args:
        losses: shape (rows, objectives).
        chances: how likely each fits.
        front: losses of the best that fits, or of the front; empty: nothing does.
    """
    gain = np.full(len(losses), np.inf) if front else np.ones(len(losses))
    for known in np.array(front):
        gain = np.minimum(gain, ((known - losses) / np.abs(known)).max(axis=1))
    return gain * chances
