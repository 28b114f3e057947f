"""In this process, one recipe after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainscout.optimizer.executors.base import Executor, Outcome
from trainscout.optimizer.executors.worker import simulate_one
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.registry import SimulatorSpec, prepare_simulator


class SerialExecutor(Executor):
    """Needs no other process, and so cannot survive a recipe that hangs or kills its process."""

    def __init__(self, question: Question, simulator: SimulatorSpec | str) -> None:
        super().__init__()
        self._question = question
        self._simulator = simulator

    def run(self, recipes: Sequence[Recipe]) -> Iterator[tuple[int, Outcome]]:
        prepare_simulator(self._simulator, map(self._question.job, recipes))
        for position, recipe in enumerate(recipes):
            yield position, simulate_one(self._question, self._simulator, recipe)
