"""Bounded robust regression on log times, shared by every kernel class.

The loss is soft-L1 on log(predicted / measured), so a factor too fast weighs as much as a
factor too slow and stray rows do not steer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Parameter:
    """One scalar to fit: start value and bounds; ``log`` fits its logarithm."""

    name: str
    start: float
    low: float
    high: float
    log: bool = True

    def encode(self, value: float) -> float:
        return float(np.log(value)) if self.log else value

    def decode(self, value: float) -> float:
        return float(np.exp(value)) if self.log else float(value)


def solve(
    parameters: Sequence[Parameter],
    log_error: Callable[[Floats], Floats],
    starts: Sequence[Mapping[str, float]] = ({},),
) -> Floats:
    """Encoded parameters that minimise the soft-L1 loss of ``log_error``, shape (parameters,).

    Each of ``starts`` changes some of the parameters' start values by name; the best end wins.
    """
    from scipy.optimize import least_squares

    low = np.array([p.encode(p.low) if p.low > 0 or not p.log else -np.inf for p in parameters])
    high = np.array([p.encode(p.high) for p in parameters])
    ends = []
    for changed in starts:
        start = [p.encode(changed.get(p.name, p.start)) for p in parameters]
        ends.append(
            least_squares(
                log_error,
                np.array(start),
                bounds=(low, high),
                loss="soft_l1",
                f_scale=0.05,
                x_scale=np.where([p.log for p in parameters], 1.0, 0.3),
                max_nfev=200,
            )
        )
    best: Floats = min(ends, key=lambda end: end.cost).x
    return best


def decode(parameters: Sequence[Parameter], encoded: Floats) -> dict[str, float]:
    """Parameter values by name."""
    return {p.name: p.decode(value) for p, value in zip(parameters, encoded, strict=True)}


def rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Values to five digits, which is more than the data can carry; nested maps alike."""
    return {
        name: rounded(value) if isinstance(value, dict) else float(f"{value:.5g}")
        for name, value in values.items()
    }


def cross_validated(
    rows: pd.DataFrame,
    shape: list[str],
    by: str,
    log_error: Callable[[pd.DataFrame, pd.DataFrame], Floats],
) -> dict[str, Any]:
    """Residuals by the values of a column, from five folds over groups of one ``shape``;
    ``log_error`` of the rows that it is given first, by a fit to the second."""
    fold = rows.groupby(shape, sort=False).ngroup().to_numpy() % 5
    errors = np.zeros(len(rows))
    for out in range(5):
        if (fold == out).any():
            errors[fold == out] = log_error(rows[fold == out], rows[fold != out])
    found = {
        str(name): residuals(errors[(rows[by] == name).to_numpy()])
        for name in sorted(rows[by].unique())
    }
    return {"rows": len(rows), "cross_validated": found}


def residuals(log_error: Floats) -> dict[str, float | int]:
    """Median and 90th percentile of |predicted / measured - 1|, and the signed median."""
    relative = np.abs(np.expm1(log_error))
    return {
        "rows": len(log_error),
        "median": round(float(np.median(relative)), 4),
        "p90": round(float(np.quantile(relative, 0.9)), 4),
        "bias": round(float(np.expm1(np.median(log_error))), 4),
    }
