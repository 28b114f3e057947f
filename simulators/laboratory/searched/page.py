"""The page of published questions, in Markdown."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainscout.simulators.laboratory.published.markdown import MET, folded, signed, table
from trainscout.simulators.predictor.io.yaml_files import read_yaml

from .answer import AS_FAST, DECLARED, SLOWER, Answer
from .summary import most_lost_first, rank, targets, why


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
        _lost(answers),
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


def _lost(answers: Sequence[Answer]) -> str:
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
