"""Answers to published questions as a terminal shows them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from trainscout.reports.wording import format_seconds
from trainscout.simulators.laboratory.published.markdown import MET, signed
from trainscout.simulators.laboratory.searched.answer import Answer
from trainscout.simulators.laboratory.searched.summary import targets
from trainscout.simulators.predictor.io.terminal import plain_table


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
