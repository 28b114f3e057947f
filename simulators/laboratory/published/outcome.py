"""What becomes of a row: a job to predict, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.job import Job


class CannotReplayError(Exception):
    """Raised while a row is read as a job; the message is the reason for the reader."""


@dataclass(frozen=True)
class Replayable:
    """A job and, in words, everything it takes for granted beyond what the row states.

    ``recompute_open``: what is recomputed is not published, so it must be as much as fitting
    in memory took. ``deepest_sharding``: the same of sharding, up to this ZeRO stage; None
    where it is published.
    """

    job: Job
    assumptions: tuple[str, ...]
    recompute_open: bool = False
    deepest_sharding: int | None = None


@dataclass(frozen=True)
class NotReplayable:
    """Why no job can be made of a row."""

    reason: str
