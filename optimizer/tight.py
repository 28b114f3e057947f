"""Recipes that may fit: which of them are worth showing next to those that do.

Such a recipe is worth its gain over the best that fits times its probability to fit; where nothing
fits, its probability alone.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

SHOWN = 3
"""So many are proved to be worth most, and shown."""

Value = TypeVar("Value", float, NDArray[np.float64])


def worth(loss: Value, probability: Value, best: float | None) -> Value:
    """What a recipe of this loss and probability is worth, ``best`` being the loss of the best one
    that fits (None: nothing does)."""
    if best is None:
        return probability
    return (best - loss) / abs(best) * probability
