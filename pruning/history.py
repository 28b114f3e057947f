"""What a search already knows, in the form the tactics ask for."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.recipe import Recipe


@dataclass(frozen=True)
class Known:
    """One recipe's resolved outcome.

    ``time_like`` is the objective as a quantity proportional to step time, None when the
    search is not after time alone. ``prediction`` is None for a recipe that was itself ruled
    out of memory without a simulation.
    """

    recipe: Recipe
    fits: bool
    prediction: Prediction | None = None
    time_like: float | None = None


@dataclass
class History:
    """Resolved recipes, and the bar a newcomer must beat to be among the ``top`` best."""

    top: int
    _known: dict[Recipe, Known] = field(default_factory=dict)
    _best: list[float] = field(default_factory=list)

    def add(self, known: Known) -> None:
        self._known[known.recipe] = known
        if known.fits and known.time_like is not None:
            bisect.insort(self._best, known.time_like)
            del self._best[self.top :]

    def find(self, recipe: Recipe) -> Known | None:
        return self._known.get(recipe)

    def out_of_reach(self, time_like: float) -> bool:
        """Whether a recipe this slow surely stays outside the ``top`` best."""
        return len(self._best) == self.top and time_like > self._best[-1]
