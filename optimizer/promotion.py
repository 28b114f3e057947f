"""The highest fidelity last: the best of a search are simulated again by another simulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from trainscout.optimizer.executors.base import Executor, Outcome
from trainscout.optimizer.objective import Objective, non_dominated
from trainscout.optimizer.trial import Trial


@dataclasses.dataclass(frozen=True)
class Promotion:
    """What the promotion simulator made of the best recipes.

    ``trials`` fit there too, in the order of its own values, each with the ``searched_values`` it
    came with. ``note`` says in words what changed.
    """

    trials: tuple[Trial, ...]
    note: str


def promote(
    trials: Sequence[Trial], simulator: str, executor: Executor, objective: Objective
) -> Promotion:
    """Simulate ``trials`` again and rank them anew; the rest of a search is not looked at."""
    with executor:
        outcomes = executor.map([trial.recipe for trial in trials])
    kept = []
    for trial, outcome in zip(trials, outcomes, strict=True):
        prediction = outcome.prediction
        if prediction is not None and prediction.fits:
            values = objective.values(prediction)
            kept.append(
                dataclasses.replace(
                    trial,
                    prediction=prediction,
                    values=values,
                    searched_values=trial.values,
                    duration_s=outcome.duration_s,
                )
            )
    # Equal values keep the search's order.
    kept.sort(key=lambda trial: objective.losses(trial.values or ()))
    return Promotion(tuple(kept), _format_promotion(simulator, trials, kept, outcomes))


def front_of(trials: Sequence[Trial], objective: Objective) -> tuple[Trial, ...]:
    """The non-dominated ones of promoted trials."""
    losses = [objective.losses(trial.values or ()) for trial in trials]
    return tuple(trials[index] for index in non_dominated(losses))


def _format_promotion(
    simulator: str, trials: Sequence[Trial], kept: Sequence[Trial], outcomes: Sequence[Outcome]
) -> str:
    note = f"the best {len(trials)} were simulated again by {simulator} and ranked by it"
    shifts = [
        after[0] / before[0] - 1
        for trial in kept
        if (after := trial.values) and (before := trial.searched_values) and before[0]
    ]
    if shifts:
        note += f", which moved their first objective by {min(shifts):+.1%} to {max(shifts):+.1%}"
    missed = sum(o.prediction is not None and not o.prediction.fits for o in outcomes)
    failed = [outcome.error for outcome in outcomes if outcome.prediction is None]
    if missed:
        note += f"; {missed} of them do not fit there"
    if failed:
        note += f"; {len(failed)} failed there (the first: {failed[0]})"
    return note
