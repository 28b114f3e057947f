"""What the simulation moves: work of devices, transfers that ranks come to, hosts that wait.

A *stream* is no object here: its order is a chain of dependencies, as the walk makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trainscout.simulators.virtual_cluster.live.messages import AskElapsed
from trainscout.simulators.virtual_cluster.walk.prices import Price
from trainscout.simulators.virtual_cluster.walk.rendezvous import Call


@dataclass(slots=True, eq=False)
class Step:
    """A rank's training step, by the work launched in it.

    ``start_ps`` is the host's, ``end_ps`` is when all of it had run; it ``trains`` when a forward
    pass was in it. Of the device's time,
    ``kernels_ps`` it ran kernels, ``transfers_ps`` only communication, ``peers_ps`` nothing but
    communication that waited for other ranks.
    """

    number: int
    start_ps: int = 0
    end_ps: int | None = None
    trains: bool = False
    kernels_ps: int = 0
    transfers_ps: int = 0
    peers_ps: int = 0


@dataclass(slots=True)
class Progress:
    """``left_ps`` of something's time remain since ``since_ps``, at 1 / ``slowdown``."""

    left_ps: float
    since_ps: int
    slowdown: float = 1.0

    @property
    def end_ps(self) -> int:
        """When it ends unless something changes."""
        return self.since_ps + round(self.left_ps * self.slowdown)

    def slow(self, slowdown: float, now_ps: int) -> None:
        """From now on it runs so much slower than alone."""
        passed_ps = (now_ps - self.since_ps) / self.slowdown
        self.left_ps = max(0.0, self.left_ps - passed_ps)
        self.since_ps, self.slowdown = now_ps, slowdown


@dataclass(slots=True, eq=False)
class Task:
    """Work of one rank's device: a kernel, a rank's part of a transfer, or a mark in a stream.

    ``number`` counts the rank's tasks in host order; (rank, number) orders everything that
    happens at one instant, so that nothing depends on whose messages came first. ``issue_ps`` is
    when the host had launched it, ``ready_ps`` the latest of that and what it waited for.
    ``site`` is where a communication was launched, ``progress`` that of a kernel which runs.
    """

    rank: int
    number: int
    name: str
    lane: str
    issue_ps: int
    step: Step
    kernel: Price | None = None
    transfer: Transfer | None = None
    site: str = ""
    waiting_for: int = 0
    ready_ps: int = 0
    start_ps: int | None = None
    end_ps: int | None = None
    progress: Progress | None = None
    # Counts the ends announced for it; only the last one holds.
    version: int = 0
    followers: list[Task | Wait] = field(default_factory=list)
    on_end: Callable[[int], None] | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.rank, self.number


@dataclass(slots=True, eq=False)
class Transfer:
    """A collective, or a send with its receive: starts when every simulated member has arrived.

    ``ranks`` are its real members, ``call`` what it is priced by,
    ``expected`` how many of the simulated ranks have to arrive.
    """

    call: Call
    ranks: tuple[int, ...]
    expected: int
    price: Price
    members: list[Task] = field(default_factory=list)
    arrived: int = 0
    start_ps: int | None = None
    slowdown: float = 1.0
    version: int = 0

    @property
    def key(self) -> tuple[int, int]:
        return min(member.key for member in self.members)


@dataclass(slots=True, eq=False)
class Wait:
    """A host that waits: for tasks, or for a moment (``until_ps``); ``asked`` gets an answer."""

    rank: int
    what: str
    site: int | None
    waiting_for: int = 0
    until_ps: int = 0
    tasks: tuple[Task, ...] = ()
    asked: AskElapsed | None = None
