"""Sentences: why the best recipe wins, and why the others are behind."""

from __future__ import annotations

from collections.abc import Callable

from trainscout.optimizer.trial import SearchResult
from trainscout.reports.trials import predicted
from trainscout.reports.wording import format_listing, format_part, format_recipe, format_seconds
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe

JobOf = Callable[[Recipe], Job]

# Differences below this share of the step are not worth a word.
_NOTABLE_SHARE = 0.001


def why_best(result: SearchResult, job_of: JobOf) -> str:
    """Why the best recipe wins: what it spends less time on than the best of another layout.

    Recipes of its own layout differ in switches (overlap, recomputation, sharding) and say how
    much a switch matters, not why the layout wins. Parts are those of the two predictions'
    ``breakdown_s``, largest difference first.
    """
    best = result.best[0]
    others = result.choices.layouts[1:]
    if not others:
        fitting = result.counts()["ok"]
        if fitting > 1:
            return f"It is the best of {fitting:,} that fit, all of one layout."
        return "Of the recipes that were simulated, no other fits."
    ours, theirs = predicted(best), predicted(others[0])
    gain_s = theirs.step_time_s - ours.step_time_s
    share = abs(gain_s) / theirs.step_time_s
    name = format_recipe(others[0].recipe, job_of(others[0].recipe).dp)
    if share < _NOTABLE_SHARE:
        sentence = f"as fast within {_NOTABLE_SHARE:.1%} as the best of another layout, {name}"
    else:
        sentence = (
            f"{format_seconds(abs(gain_s))} a step ({share:.1%}) "
            f"{'faster' if gain_s > 0 else 'slower'} than the best of another layout, {name}"
        )
    gaps = sorted(theirs.gaps_s(ours).items(), key=lambda part: -abs(part[1]))
    least_s = _NOTABLE_SHARE * ours.step_time_s
    less = [(name, gap) for name, gap in gaps if gap > least_s]
    more = [(name, -gap) for name, gap in gaps if gap < -least_s]
    spent = [_listing(less, "less")] * bool(less) + [_listing(more, "more")] * bool(more)
    if spent:
        sentence += f": it spends {', and '.join(spent)}"
    return f"{sentence}."


def format_behind(best: Prediction, other: Prediction) -> str:
    """The part of the step that explains most of what ``other`` takes longer (or shorter) than
    ``best``, and by how much they differ in it."""
    gap_s = other.step_time_s - best.step_time_s
    gaps = other.gaps_s(best)
    # Only parts that moved the way the whole did.
    name = max(gaps, key=lambda part: gaps[part] if gap_s >= 0 else -gaps[part], default=None)
    if name is None or gaps[name] * gap_s <= 0:
        return "the same"
    sign = "+" if gaps[name] > 0 else "-"
    size_s = abs(gaps[name])
    scaled, unit = (size_s, "s") if size_s >= 1 else (size_s * 1e3, "ms")
    gap = f"{scaled:.{0 if scaled >= 10 else 1}f} {unit}"
    return f"{sign}{gap} {format_part(name).replace('communication', 'comm')}"


def _listing(parts: list[tuple[str, float]], word: str) -> str:
    shown = [f"{format_seconds(gap)} {word} on {format_part(name)}" for name, gap in parts[:3]]
    return format_listing(shown)
