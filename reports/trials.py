"""What reports ask of the trials of a search."""

from __future__ import annotations

from trainscout.optimizer.choices import Layout, count_switches, layout_of
from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.answer.prediction import Prediction


def predicted(trial: Trial) -> Prediction:
    """The prediction of a trial that has one.

    Raises:
        ValueError: when it has none.
    """
    if trial.prediction is None:
        raise ValueError(f"trial {trial.number} has no prediction")
    return trial.prediction


def layout(trial: Trial) -> Layout:
    """How its GPUs share the work; recipes of one layout differ in switches only."""
    return layout_of(trial.recipe)


def choices_of(result: SearchResult) -> list[tuple[Trial, str]]:
    """What there is to choose from in a search of one objective: the best recipe of all, then, by
    step time, the best of other layouts, one with memory to spare and one that is simple; each
    with what speaks for it, empty where that is the time alone."""
    if not result.best:
        return []
    best, found = result.best[0], result.choices
    why: dict[int, list[str]] = {each.number: [] for each in found.layouts}
    if found.roomy is not None:
        why.setdefault(found.roomy.number, []).append("if you fear out-of-memory")
    if found.simple is not None:
        table = RecipeTable.of([best.recipe, found.simple.recipe])
        ours, its = count_switches(table).tolist()
        words = f"simplest: {ours - its} switch{'es' if ours - its > 1 else ''} fewer"
        why.setdefault(found.simple.number, []).append(words)
    named = {each.number: each for each in (*found.layouts, found.roomy, found.simple) if each}
    others = [each for number, each in named.items() if number != best.number]
    others.sort(key=lambda each: predicted(each).step_time_s)
    return [(best, ""), *((each, ", ".join(why[each.number])) for each in others)]


def decided_between(result: SearchResult) -> tuple[Trial, ...]:
    """The recipes to decide between: ``choices_of``, or the front of several objectives."""
    if len(result.objectives) > 1:
        return result.pareto
    return tuple(trial for trial, _ in choices_of(result))


def top_trials(result: SearchResult, top_k: int) -> tuple[Trial, ...]:
    """What programs are given: the best K, many of which differ in switches only, or the front."""
    return result.pareto if len(result.objectives) > 1 else result.best[:top_k]


LEAST_OFFERED = 0.1
"""A recipe that fits less often than one time in ten is no alternative: more launches of such end
out of memory than anybody tries. ``report.txt`` and ``tight`` of the JSON go on having it."""


def offered_tight(result: SearchResult) -> tuple[Trial, ...]:
    """The recipes that may fit, and often enough to be offered."""
    likely = (predicted(each).memory.fit_probability for each in result.tight)
    return tuple(
        each for each, share in zip(result.tight, likely, strict=True) if share >= LEAST_OFFERED
    )


def latest_trials(result: SearchResult) -> list[Trial]:
    """All trials; the promotion simulator's word on the best replaces the search's own."""
    latest = {t.number: t for t in (*result.trials, *result.best, *result.pareto)}
    return list(latest.values())
