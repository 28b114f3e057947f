"""The narrow waist between a search and whatever proposes its points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trainscout.optimizer.samplers.base import Evaluation, Proposal
from trainscout.optimizer.space import Indices

if TYPE_CHECKING:
    from trainscout.optimizer.samplers.exact import ExactSampler


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
