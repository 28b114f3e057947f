"""What many answers come to, against what is aimed at."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from trainscout.reports.wording import format_seconds
from trainscout.simulators.laboratory.published.headline import Target
from trainscout.simulators.laboratory.published.markdown import MET, signed
from trainscout.simulators.predictor.io.terminal import plain_table

from .answer import FAR_SLOWER, SLOWER, Answer

INSIDE, LOST = 0.95, 0.05
"""Shares of questions that are aimed at: measured recipe in the space at least, lost at most."""


def targets(answers: Sequence[Answer]) -> tuple[Target, ...]:
    """The aims that decide whether the best of what people ran is in the room, and wins."""
    n = len(answers)
    inside = sum(one.inside for one in answers)
    cut = sum(one.cut for one in answers)
    lost = sum(_lost(one, SLOWER) for one in answers)
    far = sum(_lost(one, FAR_SLOWER) for one in answers)
    return (
        Target(
            "measured recipe in the space",
            f">= {INSIDE:.0%}",
            _of(inside, n),
            inside >= INSIDE * n,
        ),
        Target("measured recipe cut by memory", "none", _of(cut, n), cut == 0),
        Target(
            f"answer more than {SLOWER:.0%} slower than the best measured",
            f"<= {LOST:.0%}",
            _of(lost, n),
            lost <= LOST * n,
        ),
        Target(f"more than {FAR_SLOWER:.0%} slower", "none", _of(far, n), far == 0),
    )


def _lost(one: Answer, by: float) -> bool:
    return one.slower is None or one.slower > by


def _of(count: int, n: int) -> str:
    return f"{count} of {n} ({count / n:.0%})" if n else "-"


def report(answers: Sequence[Answer]) -> dict[str, Any]:
    """All of it as JSON has it; times in seconds, fractions signed."""
    return {
        "questions": len(answers),
        "targets": [dataclasses.asdict(target) for target in targets(answers)],
        "verdicts": dict(Counter(one.verdict for one in answers)),
        "answers": [as_dict(one) for one in answers],
    }


def as_dict(one: Answer) -> dict[str, Any]:
    """One answer, with what follows from its figures."""
    derived = {"slower": one.slower, "error": one.error, "verdict": one.verdict}
    return {**dataclasses.asdict(one), **derived}


def answer_tables(answers: Sequence[Answer]) -> RenderableType:
    """Every question, most lost first, then the targets."""
    figures = ("#measured", "#replayed", "#rank", "#our best", "#slower")
    table = plain_table("question", *figures, "verdict, and why")
    for one in most_lost_first(answers):
        table.add_row(
            one.name,
            format_seconds(one.measured_s),
            signed(one.error),
            rank(one),
            "-" if one.best_s is None else format_seconds(one.best_s),
            signed(one.slower),
            ": ".join(filter(None, (one.verdict, why(one)))),
        )
    aims = plain_table("target", "aim", "reached", "met")
    for target in targets(answers):
        aims.add_row(target.name, target.aim, target.reached, MET[target.met].strip("*"))
    return Group(table, Text(""), aims)


def most_lost_first(answers: Sequence[Answer]) -> list[Answer]:
    """Those without an answer, then by how much slower ours is."""
    return sorted(answers, key=lambda one: -(float("inf") if one.slower is None else one.slower))


def rank(one: Answer) -> str:
    """Where the measured recipe stands among ours."""
    if not one.inside:
        return "absent"
    if one.fits is False:
        return "cut"
    return "behind" if one.rank is None else str(one.rank)


def why(one: Answer) -> str:
    """What stands in the way of a measured recipe, in words."""
    if one.why:
        return one.why
    if one.cut:
        return f"{one.used_gib:.1f} GiB do not fit"
    return ""
