"""Which of many recipes can be launched: the rules of ``question.validity``, once each per
combination of the fields they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from trainscout.pruning.recipe_table import Mask, RecipeTable
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import RULES, Broken, Rule, Violation

JobOf = Callable[[Recipe], Job]


@dataclass(frozen=True)
class Rejected:
    """Recipes broken by one validity rule: how many, and the first as an example."""

    count: int
    example: Violation


def find_launchable(table: RecipeTable, job_of: JobOf) -> tuple[Mask, dict[str, Rejected]]:
    """Which rows break no rule, and by the first rule they break how many do.

    Args:
        table: recipes of one declared question.
        job_of: completes a recipe to the job it stands for.
    """
    left, rows = np.arange(len(table)), table
    rejected: dict[str, Rejected] = {}
    # In order, and on what is left: a rule relies on those before it.
    for name, rule in RULES.items():
        found, reasons = rows.each(rule.reads, partial(_reason, rule, job_of))
        broken = found.spread([reason is not None for reason in reasons]).astype(np.bool_)
        if broken.any():
            example = next(reason for reason in reasons if reason is not None)
            rejected[name] = Rejected(int(broken.sum()), Violation(name, *example))
            left, rows = left[~broken], rows.take(~broken)
    valid = np.zeros(len(table), dtype=np.bool_)
    valid[left] = True
    return valid, rejected


def _reason(rule: Rule, job_of: JobOf, recipe: Recipe) -> Broken:
    return rule.broken(job_of(recipe))
