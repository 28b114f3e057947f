"""Bounds of recipes in terms of the objective: what no simulation can beat."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainscout.optimizer.objective import MEASURES, Objective
from trainscout.optimizer.survey import Survey
from trainscout.optimizer.trial import OnProgress, Progress
from trainscout.pruning.bounds.recipe_bounds import Bounds
from trainscout.pruning.recipe_table import Distinct, Mask, RecipeTable
from trainscout.simulators.predictor.io.second_core import both, is_second_core
from trainscout.simulators.predictor.memory.bands import Spread, spread_of
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.replay.sweep import sweep
from trainscout.simulators.registry import SimulatorSpec, measured_table

Rows = NDArray[np.int64]
Losses = NDArray[np.float64]
# The one simulator whose predictions ``pruning.bounds`` bounds.
BOUNDED_SIMULATOR = "replay"
# Recipes bounded at once: the columns of so many fit in the memory.
BLOCK_ROWS = 1 << 16
# From so many on, half of them are bounded in a process of their own; and roughly where as many
# of these may fit: few can be among the best by the rough bound, which takes a fifth of the time.
MANY_ROWS = 10_000


class Bounded(NamedTuple):
    """``losses``, shape (rows, objectives), of which no recipe's are smaller; and the bytes each
    row uses of a GPU, to be compared with the capacity."""

    losses: Losses
    used_bytes: Rows

    @classmethod
    def of(cls, parts: Iterable[Bounded]) -> Bounded:
        """Those of several tables."""
        return cls(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    def take(self, rows: Rows | Mask) -> Bounded:
        """Some of the rows."""
        return Bounded(self.losses[rows], self.used_bytes[rows])


class Bounding:
    """Bounds recipes of one question under one objective and simulator."""

    def __init__(self, question: Question, objective: Objective, spec: SimulatorSpec) -> None:
        self._objective, self._job_of = objective, question.job
        # What a network adds is left out of bounds: congestion factors are 1 or more, on prices
        # of a fabric that is not oversubscribed.
        bounded = question
        if spec.network is not None:
            bounded = replace(question, cluster=replace(question.cluster, oversubscription=1.0))
        self.of_recipes = Bounds(
            bounded.job,
            spec.calibration,
            measured_table(spec.measured_kernels),
            congested=spec.network is not None,
        )
        self.capacity_bytes = int(
            question.gpu.memory_bytes * (1 - question.cluster.memory_reserve)
        )

    def may_fit(self, table: RecipeTable, used_bytes: Rows) -> Mask:
        """Of which rows the need is not beyond doubt too large, under the framework of each."""
        found, spreads = self._spreads(table)
        most = [spread.may_fit_bytes(self.capacity_bytes) for spread in spreads]
        return used_bytes <= found.spread(np.array(most, dtype=np.int64))

    def chances(self, table: RecipeTable, used_bytes: Rows) -> NDArray[np.float64]:
        """Of each row the probability to fit."""
        found, spreads = self._spreads(table)
        each = zip(found.of.tolist(), used_bytes.tolist(), strict=True)
        return np.array([spreads[at].probability(used, self.capacity_bytes) for at, used in each])

    def _spreads(self, table: RecipeTable) -> tuple[Distinct, list[Spread]]:
        return table.each(("framework",), lambda each: spread_of(self._job_of(each).framework))

    def table(
        self, table: RecipeTable, on_progress: OnProgress | None = None, *, rough: bool = False
    ) -> Bounded:
        """The bounds of recipes, losses only of those that may fit and else infinite: most recipes
        need no price. ``rough``: of many of these losses of the passes without recomputation."""
        memory_bytes, used_bytes = np.zeros((2, len(table)), dtype=np.int64)
        for some in _blocks(np.arange(len(table)), "recipes sized", on_progress):
            memory_bytes[some], used_bytes[some] = self.of_recipes.sizes(table.take(some))
        losses = np.full((len(table), len(self._objective.names)), np.inf)
        able = np.flatnonzero(self.may_fit(table, used_bytes))
        rough = rough and len(able) >= MANY_ROWS
        step_time_of = self.of_recipes.least_step_s if rough else self.of_recipes.step_time_s
        for some in _blocks(able, "recipes bounded", on_progress):
            recipes = table.take(some)
            losses[some] = self._losses(recipes, step_time_of(recipes), memory_bytes[some])
        return Bounded(losses, used_bytes)

    def passes(self, table: RecipeTable) -> Bounded:
        """What passes alone say of recipes (``Bounds.passes``), losses as of ``table``."""
        held_bytes, step_time_s = self.of_recipes.passes(table)
        losses = self._losses(table, step_time_s, held_bytes)
        losses[~self.may_fit(table, held_bytes)] = np.inf
        return Bounded(losses, held_bytes)

    def least(self, table: RecipeTable) -> Bounded:
        """Below ``passes``, and cheaper; of memory nothing."""
        nothing = np.zeros(len(table), dtype=np.int64)
        return Bounded(self._losses(table, self.of_recipes.least_step_s(table), nothing), nothing)

    def _losses(self, table: RecipeTable, step_time_s: Losses, memory_bytes: Rows) -> Losses:
        losses = np.empty((len(table), len(self._objective.names)))
        # A measure of a job depends on its recipe by the precision alone.
        groups = table.distinct(("precision",))
        for group, first in enumerate(map(int, groups.first)):
            rows = groups.of == group
            job = self._job_of(table[first])
            for place, name in enumerate(self._objective.names):
                measure = MEASURES[name]
                values = memory_bytes[rows].astype(np.float64)
                if measure.at is not None:
                    values = measure.at(job, step_time_s[rows])
                losses[rows, place] = values if measure.minimise else -values
        return losses


class BoundingSurvey(Bounding):
    """Bounds the recipes of one survey under one objective and simulator."""

    def __init__(self, survey: Survey, objective: Objective, spec: SimulatorSpec) -> None:
        super().__init__(survey.space.question, objective, spec)
        self._recipes = survey.recipes

    def rows(self, rows: Sequence[int] | Rows) -> Bounded:
        """The bounds of some rows."""
        return self._bound(self._recipes.take(np.asarray(rows, dtype=np.int64)))

    def all_rows(self) -> Bounded:
        """The bounds of every row."""
        recipes = self._recipes
        return Bounded.of(
            self._bound(recipes.take(slice(start, start + BLOCK_ROWS)))
            for start in range(0, len(recipes), BLOCK_ROWS)
        )

    def fitting_rows(self, on_progress: OnProgress | None = None) -> tuple[Bounded, Mask]:
        """As ``table``, of every row, and which losses are rough; where none may fit, with the
        losses of the closest miss."""
        recipes, many = self._recipes, len(self._recipes) >= MANY_ROWS
        losses = np.full((len(recipes), len(self._objective.names)), np.inf)
        used_bytes = np.zeros(len(recipes), dtype=np.int64)
        halved = many and is_second_core()
        first, *others = self._halves() if halved else (np.arange(len(recipes)),)

        def own() -> Bounded:
            # Only this process says how far it is.
            fitting = self.table(recipes.take(first), on_progress, rough=many)
            if halved:
                # Simulating comes next, and the other process began later.
                sweep.load()
            return fitting

        def other() -> Bounded:
            return self.table(recipes.take(others[0]), rough=many)

        found = both(own, other) if halved else (own(),)
        is_rough = np.zeros(len(recipes), dtype=np.bool_)
        for rows, each in zip((first, *others), found, strict=True):
            losses[rows], used_bytes[rows] = each
            able = np.isfinite(each.losses[:, 0])
            is_rough[rows] = able & (np.count_nonzero(able) >= MANY_ROWS)
        if not self.may_fit(recipes, used_bytes).any():
            closest = [int(np.argmin(used_bytes))]
            losses[closest] = self.rows(closest).losses
        return Bounded(losses, used_bytes), is_rough

    def _halves(self) -> tuple[Rows, Rows]:
        """The rows in two parts that cost about the same and price different blocks."""
        groups = self._recipes.distinct(("tp",)).of
        counts = np.bincount(groups)
        second, sizes = np.zeros(len(counts), dtype=np.bool_), [0, 0]
        for group in np.argsort(-counts, kind="stable").tolist():
            second[group] = sizes[1] < sizes[0]
            sizes[int(second[group])] += int(counts[group])
        return np.flatnonzero(~second[groups]), np.flatnonzero(second[groups])

    def _bound(self, table: RecipeTable) -> Bounded:
        found = self.of_recipes(table)
        return Bounded(
            self._losses(table, found.step_time_s, found.memory_bytes), found.used_bytes
        )


def _blocks(rows: Rows, counted: str, on_progress: OnProgress | None) -> Iterator[Rows]:
    """Some rows at a time, and after the first how many of them are done."""
    started_s = time.monotonic()
    for at in range(0, len(rows), BLOCK_ROWS):
        if on_progress is not None and at:
            spent_s = time.monotonic() - started_s
            left_s = spent_s / at * (len(rows) - at)
            on_progress(Progress(at, len(rows), {}, None, spent_s, left_s, counted))
        yield rows[at : at + BLOCK_ROWS]


def beaten(
    bounds: Losses, known: Iterable[tuple[float, ...]], top_k: int, epsilon: float = 0.0
) -> NDArray[np.bool_]:
    """Which rows known recipes keep out of the best ``top_k`` (or the front), whatever they take.

    Args:
        bounds: shape (rows, objectives).
        known: losses of recipes that fit: for one objective the best ``top_k`` in order, for
            several the front.
        epsilon: by what fraction a row may beat them and still be kept out.
    """
    known = list(known)
    if bounds.shape[1] == 1:
        if len(known) < top_k:
            return np.zeros(len(bounds), dtype=np.bool_)
        known = known[-1:]
    out = np.zeros(len(bounds), dtype=np.bool_)
    for losses in known:
        reach = np.array(losses) - epsilon * np.abs(losses)
        # An equal recipe may still come first by its place in the space.
        out |= (reach <= bounds).all(axis=1) & (reach < bounds).any(axis=1)
    return out
