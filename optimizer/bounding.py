"""Bounds of a survey's recipes in terms of the objective: what no simulation can beat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainscout.optimizer.objective import MEASURES, Objective
from trainscout.optimizer.survey import Survey
from trainscout.pruning.bounds import Bounds
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.memory.bands import may_fit_bytes
from trainscout.simulators.registry import SimulatorSpec, measured_table

Rows = NDArray[np.int64]
Losses = NDArray[np.float64]
# The one simulator whose predictions ``pruning.bounds`` bounds.
BOUNDED_SIMULATOR = "replay"
# Recipes bounded at once: the columns of so many fit in the memory.
BLOCK_ROWS = 1 << 17


class Bounded(NamedTuple):
    """``losses``, shape (rows, objectives), of which no recipe's are smaller; and the bytes each
    row uses of a GPU, to be compared with the capacity."""

    losses: Losses
    used_bytes: Rows


class BoundingSurvey:
    """Bounds the recipes of one survey under one objective and simulator."""

    def __init__(self, survey: Survey, objective: Objective, spec: SimulatorSpec) -> None:
        self._survey, self._objective = survey, objective
        declared = survey.space.declared
        self._job_of = declared.job
        # What a network adds is left out of bounds: congestion factors are 1 or more, on prices
        # of a fabric that is not oversubscribed.
        bounded = declared
        if spec.network is not None:
            bounded = replace(declared, cluster=replace(declared.cluster, oversubscription=1.0))
        self._bounds = Bounds(bounded.job, spec.calibration, measured_table(spec.measured_kernels))
        self.capacity_bytes = int(
            declared.gpu.memory_bytes * (1 - declared.cluster.memory_reserve)
        )
        # What needs more is beyond doubt too large.
        self.frameworks = declared.framework.offered
        self.may_fit_bytes = may_fit_bytes(self.capacity_bytes, self.frameworks)

    def rows(self, rows: Sequence[int]) -> Bounded:
        """The bounds of some rows."""
        return self._bound(self._survey.recipes.take(np.asarray(rows, dtype=np.int64)))

    def all_rows(self) -> Bounded:
        """The bounds of every row."""
        blocks = [
            self._bound(self._survey.recipes.take(slice(start, start + BLOCK_ROWS)))
            for start in range(0, len(self._survey), BLOCK_ROWS)
        ]
        return Bounded(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))

    def fitting_rows(self) -> Bounded:
        """The bounds of every row, losses only of those that may fit (of the closest miss where
        none does) and else infinite: most recipes need no price."""
        recipes = self._survey.recipes
        starts = range(0, len(recipes), BLOCK_ROWS)
        sizes = [self._bounds.sizes(recipes.take(slice(at, at + BLOCK_ROWS))) for at in starts]
        memory_bytes, used_bytes = (np.concatenate(parts) for parts in zip(*sizes, strict=True))
        able = np.flatnonzero(used_bytes <= self.may_fit_bytes)
        if not len(able):
            able = np.array([int(np.argmin(used_bytes))])
        losses = np.full((len(recipes), len(self._objective.names)), np.inf)
        for at in range(0, len(able), BLOCK_ROWS):
            rows = able[at : at + BLOCK_ROWS]
            table = recipes.take(rows)
            losses[rows] = self._losses(table, self._bounds.step_time_s(table), memory_bytes[rows])
        return Bounded(losses, used_bytes)

    def _bound(self, table: RecipeTable) -> Bounded:
        found = self._bounds(table)
        return Bounded(
            self._losses(table, found.step_time_s, found.memory_bytes), found.used_bytes
        )

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
