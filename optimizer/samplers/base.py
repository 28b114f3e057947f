"""The narrow waist between a search and whatever proposes its points."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import SearchOptions
from trainscout.optimizer.space import Indices, Space
from trainscout.optimizer.survey import Survey
from trainscout.optimizer.trial import OnProgress
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.memory.bands import TIGHT
from trainscout.simulators.registry import SimulatorSpec

if TYPE_CHECKING:
    from trainscout.optimizer.samplers.exact import ExactSampler


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


class Sampler(Protocol):
    """Proposes points of a space.

    An ``exhaustive`` sampler lists every point once: what it asks is never replaced by a
    neighbour. ``proof`` says how far it has proved its best, None where it proves nothing.
    """

    exhaustive: bool

    @property
    def proof(self) -> ExactSampler | None: ...

    def ask(self) -> Proposal | None:
        """The next point, possibly one asked before or not launchable; None when no further
        one is worth a simulation."""
        ...

    def tell(self, proposal: Proposal, evaluation: Evaluation) -> None:
        """The outcome of a proposal. Each is told at most once."""
        ...

    def learn(self, indices: Indices, evaluation: Evaluation) -> None:
        """The outcome of a point that was not proposed."""
        ...
