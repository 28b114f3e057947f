"""What became of every combination of tensor and pipeline parallelism: the best step, or why none.

After the memory scan of Moye (Fig. 13): one cell a (TP, PP), data parallelism as follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from trainscout.optimizer.certificate import Certificate, DegreesBound
from trainscout.optimizer.objective import MEASURES
from trainscout.optimizer.trial import Trial
from trainscout.reports.explain import JobOf
from trainscout.reports.trials import predicted
from trainscout.reports.wording import format_chance, format_gib, format_recipe

# What a cell may come to, best first.
FITS, TIGHT, NO_MEMORY, SLOWER, PRUNED, FAILED, INVALID, UNASKED = (
    "fits",
    "tight",
    "memory",
    "slower",
    "pruned",
    "failed",
    "invalid",
    "unasked",
)
_OUTCOMES = (FITS, TIGHT, NO_MEMORY, SLOWER, PRUNED, FAILED, INVALID)
_OF_RULE = {"memory_bound": NO_MEMORY, "time_bound": SLOWER}


def outcome(trial: Trial) -> str:
    """What a trial says about its combination."""
    if trial.status == "ok":
        return FITS
    if trial.status == "tight":
        return TIGHT
    if trial.status == "oom":
        return NO_MEMORY
    if trial.status == "pruned":
        return _OF_RULE.get(trial.rule or "", PRUNED)
    return FAILED if trial.status == "failed" else INVALID


def layout_map(
    trials: Sequence[Trial], job_of: JobOf, certificate: Certificate | None
) -> dict[str, Any]:
    """``tp`` and ``pp``: the degrees that were asked for or bounded, ascending; ``cells``: one a
    combination, row by row of ``pp``.

    A cell has its ``outcome``; the ``number``, ``step_time_s`` and ``words`` of its fastest recipe
    that fits; how many trials came to which end; and ``why`` none fits.
    """
    cells: dict[tuple[int, int], list[Trial]] = {}
    for trial in trials:
        cells.setdefault((trial.recipe.pp, trial.recipe.tp), []).append(trial)
    bounds = {(each.pp, each.tp): each for each in certificate.degrees} if certificate else {}
    tp = sorted({tp for _, tp in (*cells, *bounds)})
    pp = sorted({pp for pp, _ in (*cells, *bounds)})
    return {
        "tp": tp,
        "pp": pp,
        "cells": [
            _cell(cells[place], job_of)
            if place in cells
            else _unasked(bounds.get(place), certificate)
            for place in ((row, column) for row in pp for column in tp)
        ],
    }


def _unasked(bound: DegreesBound | None, certificate: Certificate | None) -> dict[str, Any]:
    """A combination of which nothing was simulated: what its bounds say."""
    if certificate is None or not certificate.degrees:
        return {"outcome": UNASKED, "counts": {}, "why": "no recipe of it was proposed"}
    if bound is None:
        why = "none of its recipes can be launched: a validity rule breaks each"
        return {"outcome": INVALID, "counts": {}, "why": why}
    if bound.bound is None:
        why = (
            f"cannot fit: of its {bound.recipes:,} recipes the smallest needs at least "
            f"{bound.least_memory_share:.0%} of the usable memory"
        )
        return {"outcome": NO_MEMORY, "counts": {}, "why": why}
    name = certificate.objectives[0]
    why = (
        f"by its bound none of its {bound.may_fit:,} recipes that may fit does better than "
        f"{bound.bound:,.4g} {MEASURES[name].unit} ({name.replace('_', ' ')})"
    )
    return {"outcome": SLOWER, "counts": {}, "why": why}


def _cell(trials: Sequence[Trial], job_of: JobOf) -> dict[str, Any]:
    ends: dict[str, list[Trial]] = {}
    for trial in trials:
        ends.setdefault(outcome(trial), []).append(trial)
    counts = dict(Counter({end: len(ends[end]) for end in _OUTCOMES if end in ends}))
    best_end = next(end for end in _OUTCOMES if end in ends)
    cell: dict[str, Any] = {"outcome": best_end, "counts": counts}
    if best_end == FITS:
        best = min(ends[FITS], key=lambda trial: predicted(trial).step_time_s)
        cell["number"] = best.number
        cell["step_time_s"] = predicted(best).step_time_s
        cell["words"] = format_recipe(best.recipe, job_of(best.recipe).dp)
    else:
        cell["why"] = _why(best_end, ends[best_end])
    return cell


def _why(end: str, trials: Sequence[Trial]) -> str:
    simulated = [trial for trial in trials if trial.prediction is not None]
    if end == TIGHT:
        likeliest = max(simulated, key=lambda trial: predicted(trial).memory.fit_probability)
        return f"may fit: the likeliest recipe {format_chance(predicted(likeliest).memory)}"
    if end == NO_MEMORY and simulated:
        closest = min(simulated, key=lambda trial: predicted(trial).memory.missing_bytes)
        missing = format_gib(predicted(closest).memory.missing_bytes)
        return f"does not fit: the closest recipe lacks {missing}"
    reasons = Counter(trial.reason for trial in trials if trial.reason)
    return reasons.most_common(1)[0][0] if reasons else f"{trials[0].status}"
