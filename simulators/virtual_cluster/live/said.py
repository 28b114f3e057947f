"""What a rank's process tells the simulator: a trace's events, and what only live mode has."""

from __future__ import annotations

from dataclasses import dataclass

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
class AwaitTold:
    """The script is to receive a small tensor of its last communication, told by ``key``."""

    key: str


@dataclass(frozen=True)
class Finish:
    """The script has ended."""


Said = Event | Sleep | AskElapsed | AwaitTold | Finish


def blocks(said: Said) -> bool:
    """Whether the host stands still until the simulator lets it go on."""
    if isinstance(said, WorkWait):
        return said.blocks_host
    return isinstance(said, Synchronise | ValueRead | Sleep | AskElapsed | AwaitTold)
