"""Where a recipe stands in a searched space: there, refused by a rule, or what it differs in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainscout.optimizer.enumeration import blocks
from trainscout.optimizer.survey import Survey, check
from trainscout.optimizer.warm_start import distances
from trainscout.pruning.equivalence import canonical
from trainscout.pruning.recipe_table import RecipeTable, TableBuilder
from trainscout.simulators.predictor.question.recipe import KNOBS, Recipe
from trainscout.simulators.predictor.question.validity import why_invalid

SWITCHES = (
    *("framework", "cuda_graphs", "grad_dtype", "fp8_param_gather", "optimizer_states"),
    *("moe_dispatcher", "fp8_dot_product_attention", "fp8_output_proj"),
)
"""What software runs and how it is switched: a space leaves out settings that others are never
slower than, so a measured recipe is there where all but these are."""

_LAYOUT = ("tp", "pp", "cp", "ep", "micro_batch")
"""Knobs that no rule gives another spelling."""


@dataclass(frozen=True)
class Place:
    """``inside``: the space holds the recipe but for switches of software; ``recipe`` is then the
    one of the space that has most of them as it has. ``why``: what refuses it, or what the
    nearest recipe of the space has instead; "" inside."""

    recipe: Recipe
    inside: bool
    why: str = ""


def place_of(recipe: Recipe, survey: Survey) -> Place:
    """Look for a recipe among the launchable ones of a space."""
    job = survey.space.declared.job(recipe)
    if (violation := why_invalid(job)) is not None:
        return Place(recipe, False, f"refused by {violation.rule}: {violation.reason}")
    recipe = canonical(job)
    table = _near(recipe, survey)
    apart = distances(table, recipe, but=SWITCHES)
    nearest = np.flatnonzero(apart == apart.min())
    switched = distances(table.take(nearest), recipe)
    near = table[int(nearest[np.argmin(switched)])]
    if apart.min() == 0:
        return Place(near, True)
    differences = ", ".join(
        f"{name}={getattr(recipe, name)} (nearest: {getattr(near, name)})"
        for name in KNOBS
        if name not in SWITCHES and getattr(recipe, name) != getattr(near, name)
    )
    return Place(recipe, False, f"in no recipe of the space: {differences}")


def _near(recipe: Recipe, survey: Survey) -> RecipeTable:
    """The recipes of a space that may be nearest. Of a space too large to list, a survey has only
    what bounds leave open: then those laid out alike, if there are any."""
    if survey.left_out is None:
        return survey.recipes
    found = TableBuilder()
    for block in blocks(survey.space):
        alike = np.ones(len(block.indices), dtype=np.bool_)
        for name in _LAYOUT:
            alike &= block.recipes.numbers(name) == getattr(recipe, name)
        if alike.any():
            found.add(check(block.take(alike), survey.space.declared.job).recipes)
    return found.table() if found.size else survey.recipes
