"""Recipes to try first: a user's current one, or the best of an earlier search."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from trainscout.optimizer.options import SearchOptions
from trainscout.optimizer.registry import SAMPLERS
from trainscout.optimizer.survey import Survey
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.errors import InputError, require_choice
from trainscout.simulators.predictor.question.recipe import KNOBS, RECIPE_DEFAULTS, Recipe

_FIELD = "search.warm_start"
_TOP_RECIPES = "top_recipes.json"
_MOST_BYTES = 64 * 2**20
# What a file may say of a recipe beside its fields: it follows from the cluster.
_DERIVED = ("dp",)


def known_recipes(options: SearchOptions) -> tuple[Recipe, ...]:
    """What ``search.warm_start`` holds: recipes as a search writes them, or as mappings.

    Raises:
        InputError: for samplers that list every recipe anyway, or a file that cannot be read.
    """
    if options.warm_start is None:
        return ()
    if SAMPLERS[options.sampler].complete:
        problem = f"means nothing to search={options.sampler}, which leaves no recipe out"
        raise InputError(_FIELD, options.warm_start, problem, "null, or another search")
    return read_recipes(_FIELD, Path(options.warm_start))


def read_recipes(field: str, path: Path) -> tuple[Recipe, ...]:
    """The recipes of a file, or of a search's directory (its best), in order, once each.

    Raises:
        InputError: naming ``field``, for what cannot be read or is no recipe.
    """
    path = recipes_file(path) if path.is_dir() else path
    content = read_yaml(path, field, largest_bytes=_MOST_BYTES)
    entries = content if isinstance(content, list) else [content]
    return tuple(dict.fromkeys(_recipe(field, path, entry) for entry in entries))


def recipes_file(directory: Path) -> Path:
    """Where a search's directory has its recipes; where searches are below it, as those of one
    model on one cluster are, the file of the one that was written last."""
    file = directory / _TOP_RECIPES
    if file.exists():
        return file
    below = directory.glob(f"*/{_TOP_RECIPES}")
    return max(below, key=lambda each: each.stat().st_mtime, default=file)


def nearest_rows(survey: Survey, recipes: tuple[Recipe, ...]) -> list[int]:
    """For each recipe the most similar launchable one of the survey, in order, once each.

    Distance is the sum over fields: the difference of logarithms (base 2) for whole numbers, one
    for other values that differ. Ties go to the lowest row.
    """
    rows = [int(np.argmin(distances(survey.recipes, recipe))) for recipe in recipes]
    return list(dict.fromkeys(rows))


def _recipe(field: str, path: Path, entry: Any) -> Recipe:
    fields = entry.get("recipe", entry) if isinstance(entry, dict) else entry
    if not isinstance(fields, dict) or not fields:
        problem = f"holds {str(entry)[:60]!r}, which is no recipe"
        raise InputError(field, str(path), problem, "mappings such as {tp: 8, pp: 12}")
    kept = {name: value for name, value in fields.items() if name not in _DERIVED}
    for name, value in kept.items():
        require_choice(field, name, RECIPE_DEFAULTS)
        if value is not None and type(value) is not KNOBS[name].kind:
            allowed = {bool: "true or false", int: "a whole number", str: "a word"}
            problem = "is no value of a recipe"
            raise InputError(f"{field}: {name}", value, problem, allowed[KNOBS[name].kind])
    return Recipe(**kept)


def distances(table: RecipeTable, recipe: Recipe, but: Collection[str] = ()) -> np.ndarray:
    """How unlike a recipe every row is, in all fields ``but`` some (see ``nearest_rows``)."""
    total = np.zeros(len(table))
    for name, column in table.columns.items():
        if name in but:
            continue
        wanted = getattr(recipe, name)
        total += np.array([_distance(wanted, value) for value in column.values])[column.codes]
    return total


def _distance(wanted: Any, value: Any) -> float:
    numbers = all(type(each) is int and each > 0 for each in (wanted, value))
    return abs(math.log2(wanted / value)) if numbers else float(wanted != value)
