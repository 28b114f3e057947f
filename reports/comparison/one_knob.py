"""If you only change one knob: every neighbour of a recipe in a space, best first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from trainscout.optimizer.expressions import NotWholeError
from trainscout.optimizer.space import Dimension, Space
from trainscout.pruning.equivalence import canonical
from trainscout.reports.comparison.attribution import Fields, changed_fields
from trainscout.reports.comparison.predictions import Predictions
from trainscout.reports.error_bars import lead_share
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.recipe import RECIPE_DEFAULTS, Recipe, details_of
from trainscout.simulators.predictor.uncertainty.features import features_of
from trainscout.simulators.predictor.uncertainty.ties import tie_share

# Partners are alternatives to each other: so many, the nearest values of as many knobs, are tried.
_PARTNERS = 3
# What a knob must add to its partner's change, as a share of the step, to be a change of its own.
_WORTH_A_PARTNER = 0.001


@dataclass(frozen=True)
class Neighbour:
    """A recipe one knob away.

    ``fields``: the knob first, then what had to change with it for the recipe to be launchable,
    with their values ``before`` and ``after``. ``distinguishable`` says whether the difference is
    larger than predicted differences are typically off by (None: the simulator does not know).
    """

    fields: Fields
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    recipe: Recipe
    prediction: Prediction
    distinguishable: bool | None


def one_knob(recipe: Recipe, space: Space, predictions: Predictions) -> list[Neighbour]:
    """Launchable recipes that differ from ``recipe`` in one knob of ``space``.

    Nor do they break a constraint of the space that ``recipe`` meets. Where a value alone cannot
    be launched, or means nothing, switches that need the old value are turned off with it, or what
    the space derives from it is changed, else one more knob, whichever is best; not where that
    other knob alone would do as well. Recipes that only spell the same one differently are left
    out. Those that fit come first, the shortest step first.
    """
    job = predictions.job(recipe)
    plain, broken = canonical(job), frozenset(space.broken(_values(recipe, space)))
    around = _Around(recipe, space, predictions, broken)
    neighbours: dict[Recipe, Neighbour] = {}
    for knob in _knobs(space):
        for choice in knob.choices:
            if choice == getattr(recipe, knob.name):
                continue
            changed = replace(recipe, **{knob.name: choice})
            candidates = _with_partners(changed, knob, around)
            found = [
                candidate
                for candidate in candidates
                if canonical(predictions.job(candidate)) != plain
            ]
            if not found:
                continue
            best = min(found, key=lambda each: _order(predictions.of(each)))
            if best not in neighbours:
                neighbours[best] = _neighbour(knob.name, recipe, best, predictions)
    return sorted(neighbours.values(), key=lambda each: _order(each.prediction))


def _adds(knob: str, candidate: Recipe, recipe: Recipe, predictions: Predictions) -> bool:
    """Whether the knob adds to what its partners do without it."""
    without = replace(candidate, **{knob: getattr(recipe, knob)})
    if without == recipe or not predictions.launchable(without):
        return True
    alone, both = predictions.of(without), predictions.of(candidate)
    return _order(both) < (not alone.fits, (1 - _WORTH_A_PARTNER) * alone.step_time_s)


def _order(prediction: Prediction) -> tuple[bool, float]:
    return not prediction.fits, prediction.step_time_s


def _knobs(space: Space) -> list[Dimension]:
    return [knob for knob in space.knobs if knob.name in RECIPE_DEFAULTS]


def _values(recipe: Recipe, space: Space) -> dict[str, Any]:
    """What the space's expressions may read, as this recipe has it."""
    values: dict[str, Any] = dict(space.question.quantities)
    values["dp"] = space.question.job(recipe).dp
    for knob in space.knobs:
        helper = knob.otherwise if knob.when is not None else knob.choices[0]
        values[knob.name] = getattr(recipe, knob.name, helper)
    return values


@dataclass(frozen=True)
class _Around:
    """What is looked around: a recipe, and the constraints of the space that it does not meet."""

    recipe: Recipe
    space: Space
    predictions: Predictions
    broken: frozenset[str]

    def meant(self, candidate: Recipe, names: Fields) -> bool:
        """Whether a recipe can be launched, breaks no other constraint, and the knobs in
        ``names`` matter to it."""
        if not self.predictions.launchable(candidate):
            return False
        values = _values(candidate, self.space)
        knobs = (knob for knob in _knobs(self.space) if knob.name in names)
        return self.broken.issuperset(self.space.broken(values)) and all(
            knob.when is None or knob.when.holds(values) for knob in knobs
        )


def _with_partners(changed: Recipe, knob: Dimension, around: _Around) -> list[Recipe]:
    """The changed recipe if it is one, else what it becomes with a partner."""
    if around.meant(changed, (knob.name,)):
        return [changed]
    details = {name: RECIPE_DEFAULTS[name] for name in details_of(knob.name)}
    for fallen_back in (replace(changed, **details), _derived(changed, around.space)):
        if fallen_back is not None and around.meant(fallen_back, (knob.name,)):
            return [fallen_back]
    partners = list(_partners(changed, knob, around))
    partners.sort(key=lambda pair: pair[0])
    nearest = [candidate for _, candidate in partners[:_PARTNERS]]
    return [each for each in nearest if _adds(knob.name, each, around.recipe, around.predictions)]


def _derived(changed: Recipe, space: Space) -> Recipe | None:
    values = _values(changed, space)
    fields: dict[str, Any] = {}
    for name, expression in space.derived:
        try:
            fields[name] = values[name] = expression(values)
        except NotWholeError:
            return None
    return replace(changed, **fields)


def _partners(changed: Recipe, knob: Dimension, around: _Around) -> Iterator[tuple[int, Recipe]]:
    """For each other knob the nearest of its values that makes the change possible, with how
    many choices away it is."""
    for partner in _knobs(around.space):
        if partner.name == knob.name:
            continue
        now = getattr(around.recipe, partner.name)
        here = partner.choices.index(now) if now in partner.choices else 0
        nearest = sorted(enumerate(partner.choices), key=lambda entry: abs(entry[0] - here))
        for index, value in nearest:
            candidate = replace(changed, **{partner.name: value})
            if value != now and around.meant(candidate, (knob.name, partner.name)):
                yield abs(index - here), candidate
                break


def _neighbour(knob: str, recipe: Recipe, found: Recipe, predictions: Predictions) -> Neighbour:
    others = tuple(name for name in changed_fields(recipe, found) if name != knob)
    fields = (knob, *others)
    return Neighbour(
        fields=fields,
        before=tuple(getattr(recipe, name) for name in fields),
        after=tuple(getattr(found, name) for name in fields),
        recipe=found,
        prediction=predictions.of(found),
        distinguishable=distinguishable(recipe, found, predictions),
    )


def distinguishable(one: Recipe, other: Recipe, predictions: Predictions) -> bool | None:
    """Whether two recipes differ by more than predicted differences like it are off by."""
    share = tie_limit(one, other, predictions)
    lead = lead_share(predictions.of(one), predictions.of(other))
    return None if share is None else lead > share


def tie_limit(one: Recipe, other: Recipe, predictions: Predictions) -> float | None:
    """The lead, as a share of a step, below which they cannot be distinguished."""
    first = predictions.of(one)
    if first.interval_s is None:
        return None
    features = features_of(predictions.job(one), first.step_time_s, first.breakdown_s)
    return tie_share(features, first.breakdown_s, predictions.of(other).breakdown_s)
