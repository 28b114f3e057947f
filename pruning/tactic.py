"""What a pruning tactic is."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Protocol

from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.job import Job
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


@dataclass(frozen=True)
class Verdict:
    """A recipe that need not be simulated.

    ``fits`` False: it would run out of memory. True: it fits, is no faster than ``resolved_by``
    can tell, and cannot be among the best; its runtime is set to that of ``resolved_by``.
    """

    rule: str
    fits: bool
    reason: str
    resolved_by: Known


class Tactic(Protocol):
    """One rule that resolves a recipe from recipes already resolved.

    Its docstring says why it never hides one of the best recipes, of a simulator where that holds.
    """

    @property
    def name(self) -> str: ...

    def check(self, job: Job, history: History) -> Verdict | None:
        """The verdict on a valid job, or None when this rule cannot resolve it."""
        ...


_MOST_RECOMPUTATION_FIRST = {"full": 0, "selective": 1, "none": 2}


def resolves_others_rank(recipe: Recipe) -> tuple[int, ...]:
    """Sort key: recipes whose outcome resolves others come before those others.

    More recomputation before less, with sequence parallelism before without, without the
    distributed optimizer before with, fewer virtual stages before more, larger micro-batches
    before smaller without a pipeline and after them with one.
    """
    return (
        _MOST_RECOMPUTATION_FIRST[recipe.recompute],
        -(recipe.recompute_layers or 1 << 30),
        not recipe.sp,
        recipe.zero_stage,
        recipe.vpp,
        # Without pipelining larger ones resolve smaller ones' time, with it smaller their memory.
        -recipe.micro_batch if recipe.pp == 1 else recipe.micro_batch,
    )
