"""Measured times that were worked out, or that cannot be a layout's.

A step's time on a machine wanders by tenths of a percent from run to run. Times of runs that
differ in nothing but their layers, or their batch, and lie on one straight line to parts per
million were worked out, whatever their publisher calls them; they say nothing more than the two
of them that span the line.

And some state of the machine or its software is in some. Three signs, each between rows that
differ in one thing alone. Sharding the optimizer (ZeRO 1 for 0) moves a step by its reduction;
where it moves it half as much again as is predicted, one of both was disturbed. A step that takes
as long for every micro-batch however large that is, where more is predicted for a larger one,
waited for something that is no work. So did one that takes as long for a larger model: for its
data loader, say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from trainscout.simulators.predictor.answer.flops import step_flops

from .reading.groups import source_group
from .reading.rows import Row
from .replay import Result

# What repeated steps of one process never agree to; clocks' own jitter is ten times that.
_REGULAR = 50e-6
_VARIED = {"num_layers": 4, "global_batch": 3}
"""Columns whose effect on a step is nearly affine, and the runs that make a family tell."""
APART = 1.5
"""How far apart siblings may be, and how much more a larger micro-batch is predicted to take."""
_SAME = 1.15
_WORDS = ("id", "source", "model", "notes", "inferred_fields")
_NOT_THE_JOB = (*_WORDS, "params_b", "quality", "fault", "readings", "extrapolated")
_SIZES = ("num_layers", "hidden", "ffn_hidden", "num_heads", "num_query_groups")
_JOB = tuple(
    field.name
    for field in fields(Row)
    if field.name not in _NOT_THE_JOB and not field.name.startswith(("measured_", "derived_"))
)


def mark_extrapolated(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows, those of publications whose times are too regular named so."""
    sources = extrapolated_sources(rows)
    return tuple(
        replace(row, extrapolated=True) if source_group(row) in sources else row for row in rows
    )


def extrapolated_sources(rows: Sequence[Row]) -> frozenset[str]:
    """Publications most of whose families are regular: none of their times counts as measured."""
    regular: dict[str, list[bool]] = defaultdict(list)
    for source, residual in _affine_families(rows):
        regular[source].append(residual < _REGULAR)
    return frozenset(name for name, each in regular.items() if 2 * sum(each) > len(each))


def _job_without(row: Row, *varied: str) -> tuple[Hashable, ...]:
    """What a row did, but for these columns."""
    return tuple(getattr(row, name) for name in _JOB if name not in varied)


def _affine_families(rows: Sequence[Row]) -> Iterator[tuple[str, float]]:
    """Source and worst residual of every family whose digits could tell."""
    timed = [row for row in rows if not row.fault and row.measured_iter_s is not None]
    for varied, least in _VARIED.items():
        families: dict[tuple[Hashable, ...], dict[float, float]] = defaultdict(dict)
        for row in timed:
            size: Any = getattr(row, varied)
            if size is not None:
                key = (source_group(row), *_job_without(row, varied))
                families[key][float(size)] = float(row.measured_iter_s or 0)
        for key, times in families.items():
            if len(times) >= least and _digits_tell(times.values()):
                yield str(key[0]), _worst_residual(times)


def _digits_tell(seconds: Collection[float]) -> bool:
    """Whether times are printed finely enough for parts per million to show."""
    decimals = max(len(repr(value).partition(".")[2]) for value in seconds)
    return bool(10.0**-decimals < _REGULAR * min(seconds))


def _worst_residual(times: dict[float, float]) -> float:
    sizes, seconds = np.array(list(times)), np.array(list(times.values()))
    line = np.polynomial.Polynomial.fit(sizes, seconds, 1)
    return float(np.max(np.abs(line(sizes) / seconds - 1)))


def with_doubtful_states(results: Sequence[Result]) -> tuple[Result, ...]:
    """The results, with what speaks against a measured time among its assumptions."""
    doubts: dict[int, list[str]] = {}
    signs = ((("dist_optimizer",), _sharding), (("micro_batch",), _scaling), (_SIZES, _sizes))
    for varied, doubt in signs:
        for family in _families(results, varied):
            for one in family:
                for other in family:
                    if words := doubt(results[one], results[other]):
                        doubts.setdefault(one, []).append(words)
    return tuple(
        replace(result, assumptions=(*result.assumptions, *doubts.get(at, ())))
        for at, result in enumerate(results)
    )


def _families(results: Sequence[Result], varied: tuple[str, ...]) -> list[list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for at, result in enumerate(results):
        row = result.row
        if result.job is not None and result.prediction is not None and result.measured_s:
            model = "" if varied is _SIZES else row.model
            found[row.source, model, _job_without(row, *varied)].append(at)
    return [family for family in found.values() if len(family) > 1]


def _ratio(one: Result, other: Result) -> tuple[float, float]:
    """Measured and predicted time of one row over another's."""
    assert one.measured_s is not None
    assert other.measured_s is not None
    assert one.prediction is not None
    assert other.prediction is not None
    predicted = one.prediction.step_time_s / other.prediction.step_time_s
    return one.measured_s / other.measured_s, predicted


def _sharding(one: Result, other: Result) -> str:
    measured, predicted = _ratio(one, other)
    if measured <= APART * max(1.0, predicted):
        return ""
    return (
        f"doubtful state: {measured:.1f} times {other.row.id}, which differs in its optimizer's "
        f"sharding alone ({predicted:.1f} times predicted)"
    )


def _scaling(one: Result, other: Result) -> str:
    """Of the smaller micro-batch's row: its passes take as long as those of a larger one."""
    assert one.job is not None
    assert other.job is not None
    passes, others = (each.num_micro_batches for each in (one.job, other.job))
    if other.job.recipe.micro_batch < 2 * one.job.recipe.micro_batch or min(passes, others) < 2:
        return ""
    measured, predicted = (ratio * others / passes for ratio in _ratio(one, other))
    if measured < 1 / _SAME or predicted > 1 / APART:
        return ""
    return (
        f"doubtful state: a micro-batch takes {measured:.1f} times what a larger one does in "
        f"{other.row.id} ({predicted:.1f} times predicted)"
    )


def _sizes(one: Result, other: Result) -> str:
    """Of the smaller model's row: its step takes as long as a larger one's."""
    assert one.job is not None
    assert other.job is not None
    measured, predicted = _ratio(one, other)
    larger = step_flops(other.job).model > step_flops(one.job).model
    if not larger or measured < 1 / _SAME or predicted > 1 / APART:
        return ""
    return (
        f"doubtful state: takes {measured:.1f} times what the larger model does in {other.row.id} "
        f"({predicted:.1f} times predicted)"
    )
