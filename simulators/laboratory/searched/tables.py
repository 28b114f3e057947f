"""Answers to published questions as a terminal shows them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainscout.reports.wording import format_seconds
from trainscout.simulators.laboratory.published.markdown import MET, signed
from trainscout.simulators.laboratory.searched.answer import Answer
from trainscout.simulators.laboratory.searched.summary import targets


def answer_tables(answers: Sequence[Answer]) -> RenderableType:
    """Every question, most lost first, then the targets."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("question", overflow="fold")
    for name in ("measured", "replayed", "rank", "our best", "slower"):
        table.add_column(name, justify="right")
    table.add_column("verdict, and why", overflow="fold")
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
    aims = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("target", "aim", "reached", "met"):
        aims.add_column(name)
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
