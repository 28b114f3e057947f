"""Times too regular to have been measured: affine to parts per million.

A step's time on a machine wanders by tenths of a percent from run to run. Times of runs that
differ in nothing but their layers, or their batch, and lie on one straight line to parts per
million were worked out, whatever their publisher calls them; they say nothing more than the two
of them that span the line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from trainscout.simulators.laboratory.published.groups import source_group
from trainscout.simulators.laboratory.published.rows import Row

# What repeated steps of one process never agree to; clocks' own jitter is ten times that.
_REGULAR = 50e-6
_VARIED = {"num_layers": 4, "global_batch": 3}
"""Columns whose effect on a step is nearly affine, and the runs that make a family tell."""
_WORDS = ("id", "source", "model", "notes", "inferred_fields")
_NOT_THE_JOB = (*_WORDS, "params_b", "quality", "fault", "readings", "extrapolated")
_JOB = tuple(
    field.name
    for field in fields(Row)
    if field.name not in _NOT_THE_JOB and not field.name.startswith(("measured_", "derived_"))
)


@dataclass(frozen=True)
class Regularity:
    """Families of one publication's runs that differ in ``varied`` alone: how many there are,
    how many are ``regular``, and the median over them of their worst residual, a fraction."""

    source: str
    varied: str
    families: int
    regular: int
    residual: float


def regularities(rows: Sequence[Row]) -> tuple[Regularity, ...]:
    """What every publication that has families at all shows, by name."""
    found: dict[tuple[str, str], list[float]] = {}
    for source, varied, residual in _families(rows):
        found.setdefault((source, varied), []).append(residual)
    return tuple(
        Regularity(
            source,
            varied,
            len(residuals),
            sum(residual < _REGULAR for residual in residuals),
            float(np.median(residuals)),
        )
        for (source, varied), residuals in sorted(found.items())
    )


def mark_extrapolated(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows, those of publications whose times are too regular named so."""
    sources = extrapolated_sources(rows)
    return tuple(
        replace(row, extrapolated=True) if source_group(row) in sources else row for row in rows
    )


def extrapolated_sources(rows: Sequence[Row]) -> frozenset[str]:
    """Publications most of whose families are regular: none of their times counts as measured."""
    told = regularities(rows)
    return frozenset(
        source
        for source in {one.source for one in told}
        if 2 * sum(one.regular for one in told if one.source == source)
        > sum(one.families for one in told if one.source == source)
    )


def _families(rows: Sequence[Row]) -> Iterator[tuple[str, str, float]]:
    """Source, varied column and worst residual of every family whose digits could tell."""
    timed = [row for row in rows if not row.fault and row.measured_iter_s is not None]
    for varied, least in _VARIED.items():
        families: dict[tuple[Any, ...], dict[float, float]] = {}
        names = tuple(name for name in _JOB if name != varied)
        for row in timed:
            size: Any = getattr(row, varied)
            if size is not None:
                key = (source_group(row), *(getattr(row, name) for name in names))
                families.setdefault(key, {})[float(size)] = float(row.measured_iter_s or 0)
        for key, times in families.items():
            if len(times) >= least and _digits_tell(times.values()):
                yield str(key[0]), varied, _worst_residual(times)


def _digits_tell(seconds: Collection[float]) -> bool:
    """Whether times are printed finely enough for parts per million to show."""
    decimals = max(len(repr(value).partition(".")[2]) for value in seconds)
    return bool(10.0**-decimals < _REGULAR * min(seconds))


def _worst_residual(times: dict[float, float]) -> float:
    sizes, seconds = np.array(list(times)), np.array(list(times.values()))
    line = np.polynomial.Polynomial.fit(sizes, seconds, 1)
    return float(np.max(np.abs(line(sizes) / seconds - 1)))
