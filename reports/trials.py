"""What reports ask of the trials of a search."""

from __future__ import annotations

from trainscout.optimizer.layouts import Layout, layout_of
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


def layout(trial: Trial) -> Layout:
    """How its GPUs share the work; recipes of one layout differ in switches only."""
    return layout_of(trial.recipe)


def latest_trials(result: SearchResult) -> list[Trial]:
    """All trials; the promotion simulator's word on the best replaces what the search was told."""
    latest = {t.number: t for t in (*result.trials, *result.best, *result.pareto)}
    return list(latest.values())
