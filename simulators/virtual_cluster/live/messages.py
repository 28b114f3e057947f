"""What a rank's process sends the simulator: a trace's events, and what only live mode has."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.virtual_cluster.traces.codec import MalformedError
from trainscout.simulators.virtual_cluster.traces.events import (
    Event,
    Synchronise,
    ValueRead,
    WorkWait,
)


@dataclass(frozen=True)
class Sleep:
    """The script sleeps."""

    seconds: float


@dataclass(frozen=True)
class AskElapsed:
    """The script wants to know the milliseconds between two recorded events."""

    start: int
    end: int


@dataclass(frozen=True)
class Publish:
    """A small tensor or object for other ranks, as text, and the ``key`` they ask for it by."""

    key: str
    payload: str


@dataclass(frozen=True)
class Collect:
    """The script needs what each of ``ranks`` publishes under its key."""

    keys: tuple[str, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.ranks):
            raise MalformedError(f"{len(self.keys)} keys of {len(self.ranks)} ranks")


@dataclass(frozen=True)
class Finish:
    """The script has ended."""


# What the simulation is fed with; what is published only passes through it.
Message = Event | Sleep | AskElapsed | Publish | Collect | Finish


def blocks(message: Message) -> bool:
    """Whether the host stands still until the simulator lets it go on."""
    if isinstance(message, WorkWait):
        return message.blocks_host
    return isinstance(message, Synchronise | ValueRead | Sleep | AskElapsed | Collect)
