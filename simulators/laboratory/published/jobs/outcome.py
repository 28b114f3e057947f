"""What becomes of a row: a job to predict, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe


class CannotReplayError(Exception):
    """Raised while a row is read as a job; the message is the reason for the reader."""


@dataclass(frozen=True)
class Replayable:
    """A job and, in words, everything it takes for granted beyond what the row states.

    ``heavier``: where it is not published what is recomputed, recipes that recompute ever more: it
    must be as much as fitting in memory took. ``picking``: the same where software picks modules,
    or where the row's collector inferred it; which ones nobody knows, so they say whether a run
    may have fitted, not what it took.
    ``deepest_sharding``: as ``heavier`` of sharding, up to this ZeRO stage; None where it is
    published.
    """

    job: Job
    assumptions: tuple[str, ...]
    heavier: tuple[Recipe, ...] = ()
    picking: tuple[Recipe, ...] = ()
    deepest_sharding: int | None = None


@dataclass(frozen=True)
class NotReplayable:
    """Why no job can be made of a row."""

    reason: str
