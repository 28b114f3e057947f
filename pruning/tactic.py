"""What a pruning tactic is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trainscout.pruning.history import History, Known
from trainscout.simulators.predictor.question.job import Job


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

    ``premise`` states, for the reader, what must hold of the simulator for the rule to be
    fidelity-preserving, that is, never to hide one of the best recipes.
    """

    @property
    def name(self) -> str: ...

    @property
    def premise(self) -> str: ...

    def check(self, job: Job, history: History) -> Verdict | None:
        """The verdict on a valid job, or None when this rule cannot resolve it."""
        ...
