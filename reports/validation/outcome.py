"""What becomes of a row: a job to predict, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from simulators.job import Job


class CannotReplayError(Exception):
    """Raised while a row is read as a job; the message is the reason for the reader."""


@dataclass(frozen=True)
class Replayable:
    """A job and, in words, everything it takes for granted beyond what the row states.

    ``recompute_open``: what is recomputed is not published, so it must be as much as fitting
    in memory took.
    """

    job: Job
    assumptions: tuple[str, ...]
    recompute_open: bool = False


@dataclass(frozen=True)
class NotReplayable:
    """Why no job can be made of a row."""

    reason: str
