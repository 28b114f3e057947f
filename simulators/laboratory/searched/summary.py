"""What many answers come to, against what is aimed at."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from trainscout.simulators.laboratory.published.headline import Target
from trainscout.simulators.laboratory.searched.answer import FAR_SLOWER, SLOWER, Answer

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
