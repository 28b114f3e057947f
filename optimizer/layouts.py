"""Layouts: how the GPUs of a job share its work. Recipes of one layout differ in switches only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.question.recipe import RECIPE_DEFAULTS, Recipe

Layout = tuple[int, int, int, int, int, bool]

_FIELDS = ("tp", "pp", "cp", "ep", "etp", "zero_stage")
_NO_SWITCHES = (*_FIELDS, "framework", "micro_batch")
_SHARDED = 3


def layout_of(recipe: Recipe) -> Layout:
    """The degrees, and whether parameters are sharded over data-parallel ranks."""
    etp = recipe.tp if recipe.etp is None else recipe.etp
    degrees = (recipe.tp, recipe.pp, recipe.cp, recipe.ep, etp)
    return (*degrees, recipe.zero_stage >= _SHARDED)


def layout_numbers(table: RecipeTable) -> NDArray[np.int64]:
    """For each recipe a number, from 0, that those of its layout share."""
    found, layouts = table.each(_FIELDS, layout_of)
    numbers: dict[Layout, int] = {}
    return found.spread([numbers.setdefault(each, len(numbers)) for each in layouts])


def count_switches(table: RecipeTable) -> NDArray[np.int64]:
    """For each recipe how many of its switches (fields beside the layout's, the micro-batch and
    the framework) are not what they are by default."""
    count = np.zeros(len(table), dtype=np.int64)
    for name, default in RECIPE_DEFAULTS.items():
        if name in table.columns and name not in _NO_SWITCHES:
            values, codes = table.columns[name]
            count += np.array([value != default for value in values], dtype=np.int64)[codes]
    return count
