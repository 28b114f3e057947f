"""The lowest fidelity first: a recipe is simulated only when its bounds let it matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainscout.optimizer.bounding import Bounded, BoundingSurvey, beaten
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.samplers.base import Evaluation
from trainscout.optimizer.survey import Survey
from trainscout.simulators.registry import SimulatorSpec

# So many recipes cost less to bound at once than batch by batch; of more, few are asked for.
_AT_ONCE = 1 << 12
MEMORY_RULE, TIME_RULE = "memory_bound", "time_bound"


@dataclass(frozen=True)
class Screened:
    """A recipe resolved by its bounds: ``evaluation`` is what samplers are told."""

    rule: str
    reason: str
    evaluation: Evaluation


class Screen:
    """Resolves recipes by admissible bounds (``pruning.bounds``), so it cannot hide a best one.

    A small space is bounded at once, a large one as its recipes are asked for.
    """

    def __init__(
        self, survey: Survey, objective: Objective, simulator: SimulatorSpec, top_k: int
    ) -> None:
        self._bounding = BoundingSurvey(survey, objective, simulator)
        self._top_k = top_k
        self._survey = survey
        self._whole: Bounded | None = None
        # Bytes that the closest miss so far uses, while nothing is known to fit.
        self._least_bytes: int | None = None
        self._something_fits = False

    def resolve(
        self, rows: Sequence[int], known: Sequence[tuple[float, ...]]
    ) -> dict[int, Screened]:
        """Those of ``rows`` that need no simulation.

        As long as nothing fits, the closest miss so far is left to the simulator, so that a
        search in which nothing fits can say by how much.

        Args:
            rows: of the survey.
            known: losses of the best recipes so far, or of the front (see ``beaten``).
        """
        bounds = self._bounds(rows)
        capacity = self._bounding.capacity_bytes
        recipes = self._survey.recipes.take(np.asarray(rows, dtype=np.int64))
        may_fit = self._bounding.may_fit(recipes, bounds.used_bytes)
        slow = beaten(bounds.losses, known, self._top_k)
        resolved: dict[int, Screened] = {}
        for place, row in enumerate(rows):
            used = int(bounds.used_bytes[place])
            losses = tuple(bounds.losses[place].tolist())
            miss = used / capacity - 1
            if not may_fit[place]:
                if not self._something_fits and used < (self._least_bytes or used + 1):
                    self._least_bytes = used
                    continue
                reason = f"needs at least {used / 2**30:.1f} of {capacity / 2**30:.1f} GiB"
                resolved[row] = Screened(
                    MEMORY_RULE, reason, Evaluation(losses, miss, simulated=False)
                )
                continue
            self._something_fits = True
            if slow[place]:
                reason = "even its lower bound is no better than the best known"
                resolved[row] = Screened(
                    TIME_RULE, reason, Evaluation(losses, min(miss, 0.0), simulated=False)
                )
        return resolved

    def _bounds(self, rows: Sequence[int]) -> Bounded:
        if len(self._survey) > _AT_ONCE:
            return self._bounding.rows(rows)
        if self._whole is None:
            self._whole = self._bounding.all_rows()
        return self._whole.take(np.asarray(rows, dtype=np.int64))
