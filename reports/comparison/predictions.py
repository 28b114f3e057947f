"""Predictions of many recipes of one job, each made once."""

from __future__ import annotations

from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.registry import Simulator


class Predictions:
    """What a simulator says of recipes of one declared job; each is simulated once."""

    def __init__(self, question: Question, simulator: Simulator) -> None:
        self.question = question
        self._simulator = simulator
        self._made: dict[Recipe, Prediction] = {}
        self._launchable: dict[Recipe, bool] = {}

    def job(self, recipe: Recipe) -> Job:
        return self.question.job(recipe)

    def launchable(self, recipe: Recipe) -> bool:
        if recipe not in self._launchable:
            self._launchable[recipe] = why_invalid(self.job(recipe)) is None
        return self._launchable[recipe]

    def of(self, recipe: Recipe) -> Prediction:
        """The prediction of a launchable recipe."""
        if recipe not in self._made:
            self._made[recipe] = self._simulator.simulate(self.job(recipe))
        return self._made[recipe]
