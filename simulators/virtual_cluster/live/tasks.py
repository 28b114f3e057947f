"""What the simulation moves: work of devices, transfers that ranks come to, hosts that wait.

A *stream* is no object here: its order is a chain of dependencies, as the walk makes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from trainscout.simulators.virtual_cluster.traces.events import Collective, Group, PointToPoint
from trainscout.simulators.virtual_cluster.walk.prices import Price
from trainscout.simulators.virtual_cluster.walk.rendezvous import Call, RendezvousTable

from .messages import AskElapsed, Collect
from .prices import Prices
from .representation import Representation


@dataclass(slots=True, eq=False)
class Step:
    """A rank's training step, by the work launched in it.

    ``start_ps`` is the host's, ``end_ps`` is when all of it had run; it ``trains`` when an
    optimizer took a step in it. Of the device's time,
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
    """A host that waits: for tasks, or for a moment (``until_ps``); ``request`` gets an answer."""

    rank: int
    what: str
    site: int | None
    waiting_for: int = 0
    until_ps: int = 0
    tasks: tuple[Task, ...] = ()
    request: AskElapsed | None = None


# What ranks leave for each other beside the network: small tensors, objects, metadata.
#
# It passes in no time. Whoever collects something goes on when the last of those who leave it
# have, by their clocks: so times do not depend on whose message came first.


class Board:
    """Texts by key, when each was left, and who waits for which. ``ranks`` are those that run."""

    def __init__(self, ranks: Collection[int]) -> None:
        self._ranks = frozenset(ranks)
        self._left_ps: dict[str, int] = {}
        self._awaited: dict[str, list[Wait]] = defaultdict(list)
        # Waits that have got all they were for.
        self.over: list[Wait] = []

    def publish(self, key: str, now_ps: int) -> None:
        """Something is left under ``key``."""
        self._left_ps[key] = now_ps
        for wait in self._awaited.pop(key, ()):
            wait.until_ps = max(wait.until_ps, now_ps)
            wait.waiting_for -= 1
            if not wait.waiting_for:
                self.over.append(wait)

    def collect(self, rank: int, request: Collect) -> Wait:
        """The wait of ``rank`` for what it asks of ranks that run."""
        wait = Wait(rank, "", None)
        missing = []
        for key, giver in zip(request.keys, request.ranks, strict=True):
            left_ps = self._left_ps.get(key)
            if left_ps is not None:
                wait.until_ps = max(wait.until_ps, left_ps)
            elif giver in self._ranks:
                self._awaited[key].append(wait)
                wait.waiting_for += 1
                missing.append(giver)
        others = ", ".join(str(giver) for giver in dict.fromkeys(missing))
        wait.what = f"small tensors or objects of rank {others}"
        return wait


# Which transfer a rank's communication is part of, when only some ranks of the job are run.


@dataclass(frozen=True)
class Membership:
    """One rank's view of a communicator: its members, the name it is matched by, and whether it
    asked for switches that sum."""

    ranks: tuple[int, ...]
    key: tuple[object, ...]
    simulated: tuple[int, ...]
    collnet: bool = False


class Transfers:
    """Puts the ranks' communications together into transfers."""

    def __init__(self, representation: Representation, prices: Prices) -> None:
        self._who = representation
        self._prices = prices
        self._open: RendezvousTable[Transfer] = RendezvousTable()

    def announce(self, rank: int, group: Group, known: dict[str, Membership]) -> Membership:
        """How ``rank`` takes part in a communicator that came into being.

        Communicators whose members are all simulated are matched by name. Others look different
        on every rank: they are matched by what they are for and whom their members act like, and
        by the order in which the rank made them where that is not unique.
        """
        simulated = self._who.simulated_members(group.ranks)
        if set(group.ranks) == set(simulated):
            return Membership(group.ranks, ("all", group.name), simulated, group.collnet)
        actors = tuple(self._who.stand_in[member] for member in group.ranks)
        alike = ("some", group.description, actors)
        count = sum(
            member.key[:3] == alike
            for name, member in known.items()
            if name != group.name and rank in member.ranks
        )
        return Membership(group.ranks, (*alike, count), simulated, group.collnet)

    def join(
        self, task: Task, event: Collective | PointToPoint, group: Membership, site: str = ""
    ) -> Transfer:
        """The transfer that ``task`` is its rank's part of; ``site`` is where it was launched.

        Raises:
            MismatchError: when another member launched something else under the same number, or
                the two sides of a send disagree on the size.
        """
        call = Call.of(event)
        where = f"rank {task.rank} launched {event.kind} number {event.sequence}"
        if isinstance(event, Collective):
            ends, members = None, group.simulated
            key: tuple[object, ...] = (*group.key, event.sequence)
            where += f" on {group.key[1]!r}"
        else:
            sends = event.kind == "send"
            ends = (task.rank, event.peer) if sends else (event.peer, task.rank)
            actors = tuple(self._who.stand_in[rank] for rank in ends)
            members = tuple(sorted(set(actors)))
            # Two ranks that act alike would each be waiting for themselves: the peer's part is
            # the rank's own, its receive from the rank that is as far away on the other side.
            own = () if len(members) > 1 else (event.kind,)
            key = ("pair", group.key, *actors, *own, event.sequence)
            where += f" with {event.peer}"
        price = self._prices.communication(call, group.ranks, ends, collnet=group.collnet)

        def transfer() -> Transfer:
            return Transfer(call, ends or group.ranks, len(members), price)

        where += f" at {site}" if site else ""
        found = self._open.arrive(key, task.rank, call, members, transfer, where).task
        if call.bytes > found.call.bytes:
            found.call, found.price = call, price
        found.members.append(task)
        return found

    @property
    def unfinished(self) -> list[str]:
        """What was launched by some but not by all who have to."""
        found = []
        for each in self._open:
            ranks = sorted(rank for rank in each.missing if isinstance(rank, int))
            found.append(f"{each.first}; not yet there: {', '.join(map(str, ranks))}")
        return found
