"""Recipes of a small job whose steps a formula gives, so that effects are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.samples import CLUSTER, GPU, MODEL, TRAINING, prediction
from trainscout.optimizer.space import Space
from trainscout.optimizer.union import compile_space
from trainscout.reports.comparison.predictions import Predictions
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe

QUESTION = Question(MODEL, GPU, CLUSTER, TRAINING)

KNOBS = {
    "tp": {"powers_of_two_up_to": "nvlink_domain"},
    "pp": {"choices": [1, 2, 4]},
    "vpp": {"choices": [1, 2], "when": "pp > 1"},
    "micro_batch": {"choices": [1, 2]},
    "recompute": {"choices": ["none", "selective", "full"]},
    "sp": {"choices": [False, True], "when": "tp > 1"},
    "tp_comm_overlap": {"choices": [False, True], "when": "sp"},
}


def space(**knobs: object) -> Space:
    return compile_space({"name": "small", "knobs": {**KNOBS, **knobs}}, QUESTION)


class Formula:
    """A simulator whose step is ``step_s`` of the recipe, all of it compute and bubble."""

    name = "formula"

    def __init__(
        self, step_s: Callable[[Recipe], float], headroom_gib: Callable[[Recipe], float]
    ) -> None:
        self.step_s, self.headroom_gib = step_s, headroom_gib
        self.simulated: list[Recipe] = []

    def simulate(self, job: Job) -> Prediction:
        recipe = job.recipe
        self.simulated.append(recipe)
        step_s = self.step_s(recipe)
        made = prediction(step_s, self.headroom_gib(recipe), bubble=0.1 * recipe.pp)
        # The sample has two stages, whatever the recipe's are.
        memory = replace(made.memory, worst_stage=0)
        interval_s = (0.9 * step_s, 1.2 * step_s)
        return replace(made, interval_s=interval_s, memory=memory, critical_stage=0)


def predictions(
    step_s: Callable[[Recipe], float],
    headroom_gib: Callable[[Recipe], float] = lambda recipe: 10.0,
) -> Predictions:
    return Predictions(QUESTION, Formula(step_s, headroom_gib))
