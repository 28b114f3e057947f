"""Measured times that cannot be a layout's: some state of the machine or its software is in them.

Two signs, each between rows that differ in one thing alone. Sharding the optimizer (ZeRO 1 for 0)
moves a step by its reduction; where it moves it half as much again as is predicted, one of both
was disturbed. And a step that takes as long for every micro-batch however large that is, where
more is predicted for a larger one, waited for something that is no work.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import fields, replace

from trainscout.simulators.laboratory.published.replay import Result
from trainscout.simulators.laboratory.published.rows import Row

APART = 1.5
"""How far apart siblings may be, and how much more a larger micro-batch is predicted to take."""
_SAME = 1.15
_NOT_THE_JOB = ("id", "notes", "quality", "inferred_fields", "params_b", "fault", "readings")
_JOB = tuple(
    field.name
    for field in fields(Row)
    if field.name not in _NOT_THE_JOB and not field.name.startswith(("measured_", "derived_"))
)


def with_doubtful_states(results: Sequence[Result]) -> tuple[Result, ...]:
    """The results, with what speaks against a measured time among its assumptions."""
    doubts: dict[int, list[str]] = {}
    for varied, doubt in (("dist_optimizer", _sharding), ("micro_batch", _scaling)):
        for family in _families(results, varied):
            for one in family:
                for other in family:
                    if words := doubt(results[one], results[other]):
                        doubts.setdefault(one, []).append(words)
    return tuple(
        replace(result, assumptions=(*result.assumptions, *doubts.get(at, ())))
        for at, result in enumerate(results)
    )


def _families(results: Sequence[Result], varied: str) -> list[list[int]]:
    found: dict[Hashable, list[int]] = {}
    for at, result in enumerate(results):
        if result.job is not None and result.prediction is not None and result.measured_s:
            key = tuple(getattr(result.row, name) for name in _JOB if name != varied)
            found.setdefault(key, []).append(at)
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
