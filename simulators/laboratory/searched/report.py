"""What many answers come to, against what is aimed at: tables, JSON, and the page in Markdown."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from trainscout.reports.wording import format_seconds
from trainscout.simulators.laboratory.published.page.headline import Target
from trainscout.simulators.laboratory.published.page.markdown import MET, folded, signed
from trainscout.simulators.predictor.io.markdown import table
from trainscout.simulators.predictor.io.terminal import plain_table
from trainscout.simulators.predictor.io.yaml_files import read_yaml

from .answer import AS_FAST, DECLARED, FAR_SLOWER, SLOWER, Answer

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


def questions_page(answers: Sequence[Answer], total: int) -> str:
    """The whole page.

    Args:
        answers: what was found.
        total: how many questions there are; where that is more, the page says so.
    """
    some = ""
    if len(answers) < total:
        some = (
            f"**Only {len(answers)} of the {total} questions were searched for this page, chosen "
            "by name: they say nothing of the others, and no target counts as met.**"
        )
    parts = [
        Path(__file__).with_name("introduction.md").read_text("utf-8").rstrip(),
        some,
        _targets(answers, whole=not some),
        _lost_questions(answers),
        _all(answers),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _targets(answers: Sequence[Answer], *, whole: bool) -> str:
    rows = [
        (each.name, each.aim, each.reached, MET[each.met and whole]) for each in targets(answers)
    ]
    header = ("", "aim", "reached", "met")
    return "## Targets\n\n" + table(header, rows) + _searched_again(answers)


def _searched_again(answers: Sequence[Answer]) -> str:
    """What comes of questions that were asked again in as few bits as their fastest runs."""
    again = [one for one in answers if one.numerics != DECLARED]
    if not again:
        return ""
    won = sum(one.verdict.startswith(AS_FAST) for one in again)
    return (
        f"\n\n{len(again)} of them count with gradients in 16 bits, or attention or logits in 8, "
        f"as their fastest runs had them: without, all {len(again)} are slower than these by more "
        f"than {SLOWER:.0%}, with them {len(again) - won}."
    )


def _lost_questions(answers: Sequence[Answer]) -> str:
    lost = [one for one in most_lost_first(answers) if one.verdict != AS_FAST or not one.inside]
    if not lost:
        return ""
    rows = [
        (_question(one), one.verdict, signed(one.slower), signed(one.error), _because(one))
        for one in lost
    ]
    title = "## Lost questions, and measured recipes that are absent"
    return f"{title}\n\n" + table(("question", "verdict", "slower", "replayed", "because"), rows)


def _because(one: Answer) -> str:
    words = [why(one), _notes().get(one.row, "")]
    if one.numerics != DECLARED:
        declared = "none fits" if one.declared_s is None else _slower(one.declared_s, one)
        words.append(f"asked with {one.numerics} (without: {declared})")
    if one.tight_s is not None and one.verdict.startswith("lost"):
        chance = f"fits with {one.tight_chance:.0%}"
        words.append(f"our fastest that {chance} is {_slower(one.tight_s, one)}")
    return "; ".join(filter(None, words))


def _slower(best_s: float, one: Answer) -> str:
    return signed(best_s / one.measured_s - 1)


@functools.cache
def _notes() -> Mapping[str, str]:
    """What is known of rows that stay lost, by the row. It is told, and changes no prediction."""
    notes: dict[str, str] = read_yaml(Path(__file__).parent / "lost.yaml")
    return notes


def _all(answers: Sequence[Answer]) -> str:
    rows = [
        (
            *(_question(one), f"{one.measured_s:.4g}", signed(one.error), rank(one)),
            signed(one.slower),
        )
        for one in answers
    ]
    header = ("question", "measured, s", "replayed", "rank", "slower")
    shown = table(header, rows)
    return f"## All questions\n\n{folded(f'{len(rows)} questions', shown)}"


def _question(one: Answer) -> str:
    work = f"{one.global_batch} x {one.sequence_length}"
    return f"{one.model} on {one.num_gpus} {one.gpu}, {work}, {one.precision}"
