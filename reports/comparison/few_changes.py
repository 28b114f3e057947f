"""The one or two changes of a recipe that bring most together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from trainscout.reports.comparison.attribution import Change
from trainscout.reports.comparison.one_knob import Neighbour
from trainscout.reports.comparison.predictions import Predictions
from trainscout.simulators.predictor.question.recipe import Recipe

# Of each kind, those that bring most: their pairs are simulated in some tenths of a second.
_LOOKED_AT = 7
# What a change must bring to be named, as a share of the step.
_WORTH_A_CHANGE = 0.005
Changed = tuple[tuple[str, ...], tuple[Any, ...], tuple[Any, ...]]


@dataclass(frozen=True)
class FewChanges:
    """``changes`` are fields with their values before and after; ``step_s`` is the step of the
    recipe that has them, which can be launched and fits."""

    changes: tuple[Changed, ...]
    step_s: float


def few_changes(
    before: Recipe,
    neighbours: Iterable[Neighbour],
    changes: Iterable[Change],
    predictions: Predictions,
) -> FewChanges | None:
    """The best of changes by one knob, of those that lead to another recipe, and of pairs of
    them; None where none is faster. A second change is named for what it adds alone.

    Args:
        neighbours: the shortest step first.
        changes: the largest effect first.
    """
    near = list(neighbours)
    # What does not fit alone may beside a change that saves memory.
    leading: list[Neighbour | Change] = [
        *[each for each in near if each.prediction.fits][:_LOOKED_AT],
        *[each for each in near if not each.prediction.fits][:_LOOKED_AT],
        *itertools.islice(changes, _LOOKED_AT),
    ]
    some = list(dict.fromkeys((each.fields, each.before, each.after) for each in leading))
    best, step_s = None, predictions.of(before).step_time_s
    for count in (1, 2):
        step_s *= 1 - _WORTH_A_CHANGE
        for chosen in itertools.combinations(some, count):
            names = [name for fields, _, _ in chosen for name in fields]
            if len(set(names)) < len(names):
                continue
            values = itertools.chain.from_iterable(after for _, _, after in chosen)
            recipe = replace(before, **dict(zip(names, values, strict=True)))
            if predictions.launchable(recipe):
                found = predictions.of(recipe)
                if found.fits and found.step_time_s < step_s:
                    best, step_s = FewChanges(chosen, found.step_time_s), found.step_time_s
    return best
