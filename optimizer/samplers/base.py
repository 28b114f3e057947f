"""The narrow waist between a search and whatever proposes its points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from optimizer.space import Indices


@dataclass(frozen=True)
class Proposal:
    """A point a sampler asks for; ``token`` is the sampler's own handle on it."""

    indices: Indices
    token: Any = None


@dataclass(frozen=True)
class Evaluation:
    """What became of a point: ``losses`` (smaller is better), None when it failed.

    ``memory_violation`` is by which fraction of the capacity the recipe misses fitting;
    zero or less means it fits.
    """

    losses: tuple[float, ...] | None
    memory_violation: float = 0.0


class Sampler(Protocol):
    """Proposes points of a space.

    An ``exhaustive`` sampler lists every point once: what it asks is never replaced by a
    neighbour.
    """

    exhaustive: bool

    def ask(self) -> Proposal:
        """The next point, possibly one asked before or not launchable."""
        ...

    def tell(self, proposal: Proposal, evaluation: Evaluation) -> None:
        """The outcome of a proposal. Each is told at most once."""
        ...

    def learn(self, indices: Indices, evaluation: Evaluation) -> None:
        """The outcome of a point that was not proposed."""
        ...
