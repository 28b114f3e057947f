"""What the simulation moves: work of devices, transfers that ranks come to, hosts that wait.

A *stream* is no object here: its order is a chain of dependencies, as the walk makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trainscout.simulators.virtual_cluster.live.messages import AskElapsed
from trainscout.simulators.virtual_cluster.live.prices import CommunicationPrice, KernelPrice
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


@dataclass(slots=True, eq=False)
class Task:
    """Work of one rank's device: a kernel, a rank's part of a transfer, or a mark in a stream.

    ``number`` counts the rank's tasks in host order; (rank, number) orders everything that
    happens at one instant, so that nothing depends on whose messages came first. ``issue_ps`` is
    when the host had launched it, ``ready_ps`` the latest of that and what it waited for.
    ``site`` is where a communication was launched.
    ``left_ps`` of its time remain since ``since_ps``, at 1 / ``slowdown``.
    """

    rank: int
    number: int
    name: str
    lane: str
    issue_ps: int
    step: Step
    kernel: KernelPrice | None = None
    transfer: Transfer | None = None
    site: str = ""
    waiting_for: int = 0
    ready_ps: int = 0
    start_ps: int | None = None
    end_ps: int | None = None
    left_ps: float = 0.0
    since_ps: int = 0
    slowdown: float = 1.0
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
    price: CommunicationPrice
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
