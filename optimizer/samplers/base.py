"""What a search tells whatever proposes its points, and what it gets back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import SearchOptions
from trainscout.optimizer.space import Indices, Space
from trainscout.optimizer.survey import Survey
from trainscout.optimizer.trial import OnProgress
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.memory.bands import TIGHT
from trainscout.simulators.registry import SimulatorSpec


@dataclass(frozen=True)
class SearchSpec:
    """What a sampler is built for: the space, what is wanted of it, and how to look."""

    options: SearchOptions
    survey: Survey
    objective: Objective
    seed: int
    simulator: SimulatorSpec
    on_progress: OnProgress | None = field(default=None, compare=False)
    """Told how far bounding is."""

    @property
    def space(self) -> Space:
        return self.survey.space


@dataclass(frozen=True)
class Proposal:
    """A point a sampler asks for; ``token`` is the sampler's own handle on it."""

    indices: Indices
    token: Any = None


@dataclass(frozen=True)
class Evaluation:
    """What became of a point: ``losses`` (smaller is better), None when it failed.

    ``memory_violation`` is by which fraction of the capacity the recipe misses fitting;
    zero or less means it fits. ``tight`` is the probability of one that may fit
    (``predictor.memory.bands``), else 0. Not ``simulated``: a tactic or bounds stood for it.
    """

    losses: tuple[float, ...] | None
    memory_violation: float = 0.0
    tight: float = 0.0
    simulated: bool = True

    @classmethod
    def of(cls, prediction: Prediction, losses: tuple[float, ...]) -> Evaluation:
        """What simulating came to."""
        memory = prediction.memory
        missing = -memory.headroom_bytes / memory.capacity_bytes
        if memory.band == TIGHT:
            # It may fit, so it says nothing of recipes that need more or less.
            return cls(losses, max(missing, 1e-9), tight=memory.fit_probability)
        return cls(losses, min(missing, 0.0) if prediction.fits else max(missing, 1e-9))
