"""Which of many recipes can be launched: the rules of ``question.validity``, once each per
combination of the fields they read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import numpy as np

from trainscout.pruning.recipe_table import Mask, RecipeTable, Rows
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.rules import Broken
from trainscout.simulators.predictor.question.validity import RULES, Rule, Violation

JobOf = Callable[[Recipe], Job]


@dataclass(frozen=True)
class Rejected:
    """Recipes broken by one validity rule: how many, and the first as an example."""

    count: int
    example: Violation


def find_launchable(
    table: RecipeTable, job_of: JobOf, without: Collection[str] = ()
) -> tuple[Mask, dict[str, tuple[Mask, Violation]]]:
    """Which rows break no rule; and by rule those that break it first, and why the first of them
    does.

    Args:
        table: recipes of one declared question.
        job_of: completes a recipe to the job it stands for.
        without: fields that are not known yet: rules that read one are left out.
    """
    left, rows = np.arange(len(table)), table
    found_broken: dict[str, tuple[Mask, Violation]] = {}
    # In order, and on what is left: a rule relies on those before it.
    for name, rule in RULES.items():
        if not set(without).isdisjoint(rule.reads):
            continue
        found, reasons = rows.each(rule.reads, partial(_reason, rule, job_of))
        if any(reasons):
            broken = found.spread([reason is not None for reason in reasons]).astype(np.bool_)
            example = next(reason for reason in reasons if reason is not None)
            found_broken[name] = _mask(left[broken], len(table)), Violation(name, *example)
            left, rows = left[~broken], rows.take(~broken)
    return _mask(left, len(table)), found_broken


def _mask(rows: Rows, size: int) -> Mask:
    mask = np.zeros(size, dtype=np.bool_)
    mask[rows] = True
    return mask


def _reason(rule: Rule, job_of: JobOf, recipe: Recipe) -> Broken:
    return rule.broken(job_of(recipe))
