"""What reports ask of the trials of a search."""

from __future__ import annotations

from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.simulators.predictor.answer.prediction import Prediction


def predicted(trial: Trial) -> Prediction:
    """The prediction of a trial that has one.

    Raises:
        ValueError: when it has none.
    """
    if trial.prediction is None:
        raise ValueError(f"trial {trial.number} has no prediction")
    return trial.prediction


def layout(trial: Trial) -> tuple[object, ...]:
    """What shapes the work of a rank; recipes of one layout differ in switches only."""
    recipe = trial.recipe
    return recipe.tp, recipe.pp, recipe.cp, recipe.ep, recipe.etp, recipe.vpp, recipe.micro_batch


def latest_trials(result: SearchResult) -> list[Trial]:
    """All trials; the promotion simulator's word on the best replaces what the search was told."""
    latest = {t.number: t for t in (*result.trials, *result.best, *result.pareto)}
    return list(latest.values())
