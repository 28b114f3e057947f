"""The recipes that are simulated while a space is walked, and what their results leave open."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trainscout.optimizer.bounding import Bounded, Bounding
from trainscout.optimizer.choices import LAYOUT_FIELDS, Layout, count_switches, layout_numbers
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import SearchOptions
from trainscout.optimizer.reach import Reach
from trainscout.optimizer.samplers.base import Evaluation
from trainscout.optimizer.trial import Trial
from trainscout.pruning.recipe_table import Mask, RecipeTable, Rows, recipe_keys
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.registry import SimulatorSpec, get_simulator

Indices = npt.NDArray[np.int16]
# So many are simulated of each thing that is to be proved before it is asked again what is open.
_AT_ONCE = 3


class KnownBest:
    """Simulates what looks best, and says what of other recipes is still open."""

    def __init__(
        self,
        question: Question,
        objective: Objective,
        spec: SimulatorSpec,
        bounding: Bounding,
        options: SearchOptions,
    ) -> None:
        self._job_of, self._objective, self._bounding = question.job, objective, bounding
        self._simulator = get_simulator(spec)
        self.top_k = options.top_k
        self._epsilon = float(options.options.get("epsilon", 0.0))
        self.best: Trial | None = None
        """Of those that fit, the best by the first objective."""
        self._least_loss = math.inf
        self._numbers: dict[Layout, int] = {}
        self._evaluations: dict[Recipe, Evaluation] = {}
        self._points: list[Indices] = []
        self._layouts: list[int] = []
        self._switches: list[int] = []

    def simulated(self, table: RecipeTable) -> Mask:
        """Which recipes were simulated (and, hardly ever, another one)."""
        known = RecipeTable.of(list(self._evaluations))
        return np.isin(recipe_keys(table, table), recipe_keys(known, table))

    def found(self) -> tuple[Indices, RecipeTable]:
        """The points and recipes that were simulated: first those that fit, best first."""
        known = sorted(
            zip(self._evaluations.items(), self._points, strict=True),
            key=lambda each: (each[0][1].memory_violation > 0, each[0][1].losses),
        )
        points = np.array([point for _, point in known], dtype=np.int16)
        return points, RecipeTable.of([recipe for (recipe, _), _ in known])

    def open_recipes(self, table: RecipeTable, bounded: Bounded) -> Mask:
        """Which recipes may be among what is proved."""
        return self._open(table, bounded, layout_numbers(table, self._numbers))

    def open_passes(self, table: RecipeTable, bounded: Bounded, unknown: set[str]) -> Mask:
        """Which rows have passes with which some recipe may be.

        Args:
            unknown: fields that the rows leave open, and the table has at their defaults.
        """
        layouts = layout_numbers(table, self._numbers)
        if unknown & set(LAYOUT_FIELDS):
            # Perhaps of a layout of which nothing is known.
            layouts = np.full(len(table), len(self._numbers), dtype=np.int64)
        return self._open(table, bounded, layouts)

    def improve(self, points: Indices, table: RecipeTable, bounded: Bounded, rounds: int) -> Rows:
        """Simulate some of the open recipes, which lie at ``points``, the most promising first;
        which."""
        near = self._near(bounded)
        some = table.take(near)
        reach = self._reach(some, bounded, near, layout_numbers(some, self._numbers))
        begin, done = len(self._evaluations), np.zeros(len(near), dtype=np.bool_)
        for _ in range(rounds):
            left = begin + np.flatnonzero(~done)
            chosen = reach.first_of_each(left, _AT_ONCE)
            if not len(chosen):
                break
            for row in chosen.tolist():
                done[row - begin] = True
                evaluation = self._simulate(some[row - begin])
                if evaluation is not None:
                    self._points.append(points[near[row - begin]])
                    reach.add(row, evaluation)
        return near[done]

    def _simulate(self, recipe: Recipe) -> Evaluation | None:
        if recipe in self._evaluations:
            return None
        try:
            prediction = self._simulator.simulate(self._job_of(recipe))
            values = self._objective.values(prediction)
        except Exception:  # the search itself will say so, if it gets there
            return None
        losses = self._objective.losses(values)
        evaluation = Evaluation.of(prediction, losses)
        self._evaluations[recipe] = evaluation
        fits = not evaluation.tight and evaluation.memory_violation <= 0
        if fits and losses[0] < self._least_loss:
            self._least_loss = losses[0]
            self.best = Trial(0, {}, recipe, "ok", values=values, prediction=prediction)
        table = RecipeTable.of([recipe])
        self._layouts += layout_numbers(table, self._numbers).tolist()
        self._switches += count_switches(table).tolist()
        return evaluation

    def _open(self, table: RecipeTable, bounded: Bounded, layouts: Rows) -> Mask:
        near = self._near(bounded)
        reach = self._reach(table.take(near), bounded, near, layouts[near])
        mask = np.zeros(len(table), dtype=np.bool_)
        mask[near] = reach.is_open(len(self._evaluations) + np.arange(len(near)))
        return mask

    def _near(self, bounded: Bounded) -> Rows:
        """Rows that may fit and whose bounds nothing rules out at first sight."""
        nothing = Bounded(bounded.losses[:0], bounded.used_bytes[:0])
        none = np.zeros(0, dtype=np.int64)
        most = self._reach(RecipeTable.of([]), nothing, none, none).most_loss()
        losses = bounded.losses[:, 0]
        return np.flatnonzero(np.isfinite(losses) & (losses <= most))

    def _reach(self, table: RecipeTable, bounded: Bounded, rows: Rows, layouts: Rows) -> Reach:
        """What is simulated, in order, and then the ``rows`` of ``bounded``, whose recipes and
        layouts are ``table`` and ``layouts``."""
        known, capacity = len(self._evaluations), self._bounding.capacity_bytes
        used = bounded.used_bytes[rows]
        unknown = np.full((known, len(self._objective.names)), np.inf)
        reach = Reach(
            np.concatenate([unknown, bounded.losses[rows]]),
            np.concatenate([np.zeros(known), used / capacity]),
            np.concatenate([np.zeros(known), self._bounding.chances(table, used)]),
            np.concatenate([np.array(self._layouts, dtype=np.int64), layouts]),
            np.concatenate([np.array(self._switches, dtype=np.int64), count_switches(table)]),
            self.top_k,
            self._epsilon,
        )
        for row, evaluation in enumerate(self._evaluations.values()):
            reach.add(row, evaluation)
        return reach
