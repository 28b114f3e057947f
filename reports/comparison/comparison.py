"""Everything there is to say of a recipe, and of another beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainscout.optimizer.space import Space
from trainscout.reports.comparison.attribution import Attribution, attribute, changed_fields
from trainscout.reports.comparison.few_changes import FewChanges, few_changes
from trainscout.reports.comparison.one_knob import Neighbour, one_knob, tie_limit
from trainscout.reports.comparison.predictions import Predictions
from trainscout.reports.comparison.reasons import Reason, reasons
from trainscout.reports.error_bars import lead_share
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import KNOBS, Recipe


@dataclass(frozen=True)
class Side:
    """One recipe; ``name`` is what sentences call it, ``origin`` says where it comes from."""

    name: str
    origin: str
    job: Job
    prediction: Prediction

    @property
    def recipe(self) -> Recipe:
        return self.job.recipe


@dataclass(frozen=True)
class Difference:
    """From the first recipe to the second.

    ``tie_share`` is the lead, as a share of a step, below which the two cannot be distinguished
    (None: the simulator does not know). ``reasons`` are why parts of the step differ,
    ``attribution`` what each change brings (None: the recipes are the same).
    """

    other: Side
    tie_share: float | None
    reasons: tuple[Reason, ...]
    attribution: Attribution | None

    def lead(self, first: Side) -> float:
        """By how much of the shorter step they differ."""
        return lead_share(first.prediction, self.other.prediction)

    def distinguishable(self, first: Side) -> bool | None:
        return None if self.tie_share is None else self.lead(first) > self.tie_share


@dataclass(frozen=True)
class Comparison:
    """A recipe, its neighbours in a space, what it differs in from another (None: none), and the
    changes to begin with (None: none makes it faster)."""

    first: Side
    neighbours: tuple[Neighbour, ...]
    difference: Difference | None
    few: FewChanges | None


def compare(
    first: tuple[str, str, Recipe],
    other: tuple[str, str, Recipe] | None,
    space: Space,
    predictions: Predictions,
) -> Comparison:
    """Compare launchable recipes, each given as name, origin and recipe."""
    side = _side(first, predictions)
    neighbours = tuple(one_knob(side.recipe, space.of_recipe(side.recipe), predictions))
    if other is None:
        few = few_changes(side.recipe, neighbours, (), predictions)
        return Comparison(side, neighbours, None, few)
    second = _side(other, predictions)
    changed = changed_fields(side.recipe, second.recipe)
    attribution = attribute(side.recipe, second.recipe, predictions) if changed else None
    changes = () if attribution is None else attribution.changes
    return Comparison(
        side,
        neighbours,
        Difference(
            other=second,
            tie_share=tie_limit(side.recipe, second.recipe, predictions),
            reasons=tuple(
                reasons(
                    (side.job, second.job),
                    (side.prediction, second.prediction),
                    (side.name, second.name),
                )
            ),
            attribution=attribution,
        ),
        few_changes(side.recipe, neighbours, changes, predictions),
    )


def _side(described: tuple[str, str, Recipe], predictions: Predictions) -> Side:
    name, origin, recipe = described
    # A search names the framework, its users mostly do not.
    named = KNOBS["framework"].canonical_value(predictions.job(recipe))
    recipe = replace(recipe, framework=named)
    return Side(name, origin, predictions.job(recipe), predictions.of(recipe))
