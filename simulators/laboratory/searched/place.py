"""Where a recipe stands in a searched space: there, refused by a rule, or what it differs in."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.optimizer.survey import Survey
from trainscout.optimizer.warm_start import nearest_rows
from trainscout.pruning.equivalence import canonical
from trainscout.simulators.predictor.question.recipe import KNOBS, Recipe
from trainscout.simulators.predictor.question.validity import why_invalid


@dataclass(frozen=True)
class Place:
    """``inside``: the space holds the recipe, or one that means the same. ``recipe``: itself in
    canonical form where it can be launched. ``why``: what refuses it, or what the nearest
    recipe of the space has instead; "" inside."""

    recipe: Recipe
    inside: bool
    why: str = ""


def place_of(recipe: Recipe, survey: Survey) -> Place:
    """Look for a recipe among the launchable ones of a space."""
    job = survey.space.declared.job(recipe)
    if (violation := why_invalid(job)) is not None:
        return Place(recipe, False, f"refused by {violation.rule}: {violation.reason}")
    recipe = canonical(job)
    try:
        survey.point_of(recipe)
    except KeyError:
        near = survey.recipes[nearest_rows(survey, (recipe,))[0]]
        return Place(recipe, False, f"in no recipe of the space: {_differences(recipe, near)}")
    return Place(recipe, True)


def _differences(recipe: Recipe, near: Recipe) -> str:
    return ", ".join(
        f"{name}={getattr(recipe, name)} (nearest: {getattr(near, name)})"
        for name in KNOBS
        if getattr(recipe, name) != getattr(near, name)
    )
