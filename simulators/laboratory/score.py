"""Summaries of relative errors. Errors are fractions of the measured value, signed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True)
class Summary:
    """How far off a set of predictions is; None where there is no row.

    ``n`` rows were compared and ``skipped`` could not be; ``bias`` is the mean signed error,
    ``p90_abs_error`` the 90th percentile with linear interpolation.
    """

    n: int
    skipped: int
    median_abs_error: float | None
    mean_abs_error: float | None
    p90_abs_error: float | None
    bias: float | None

    def to_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


def summarise(errors: Sequence[float] | NDArray[np.float64], skipped: int = 0) -> Summary:
    """The summary of signed relative errors."""
    if not len(errors):
        return Summary(0, skipped, None, None, None, None)
    signed = np.asarray(errors, dtype=float)
    size = np.abs(signed)
    return Summary(
        n=len(errors),
        skipped=skipped,
        median_abs_error=float(np.median(size)),
        mean_abs_error=float(size.mean()),
        p90_abs_error=float(np.percentile(size, 90)),
        bias=float(signed.mean()),
    )


def medians(errors: Iterable[tuple[K, float]]) -> dict[K, float]:
    """The median absolute error of every key."""
    groups: dict[K, list[float]] = defaultdict(list)
    for key, error in errors:
        groups[key].append(abs(error))
    return {key: float(np.median(each)) for key, each in groups.items()}


def summarise_by(
    items: Iterable[T], key: Callable[[T], str], error: Callable[[T], float | None]
) -> dict[str, Summary]:
    """One summary per key, keys sorted; an item whose error is None counts as skipped."""
    groups: dict[str, list[float | None]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(error(item))
    return {name: summarise_known(groups[name]) for name in sorted(groups)}


def summarise_known(errors: Sequence[float | None]) -> Summary:
    """The summary of errors of which those that are None count as skipped."""
    known = [error for error in errors if error is not None]
    return summarise(known, len(errors) - len(known))


def as_dicts(summaries: Mapping[str, Summary]) -> dict[str, dict[str, float | int | None]]:
    return {name: summary.to_dict() for name, summary in summaries.items()}
