"""The simulation: every rank's streams, transfers between ranks, and hosts that wait for them.

Events of ranks come in as their scripts run, in any interleaving. A host's clock may run ahead
of the simulation as far as the script gets without waiting; the simulation never passes what
the slowest host may still launch (its *horizon*). So whatever happens at one time is known when
that time is played, every answer to a host is final, and all times are the same whatever order
their messages come in. When every host waits, time passes until one of them is released.

What is not known in order is the network: a transfer that starts changes when those in flight
end (``network``), and their announced ends move.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainscout.simulators.virtual_cluster.walk.host import HostCost
from trainscout.simulators.virtual_cluster.walk.launches import Launches

from .clock import PICOSECONDS, to_picoseconds
from .host import Host
from .messages import Message
from .network import Ends, Network
from .prices import Prices
from .representation import Representation
from .tasks import Board, Progress, Task, Transfer, Transfers, Wait

_READY, _TASK_ENDS, _TRANSFER_ENDS, _WAKE = range(4)
_NEVER = 1 << 62


class DeadlockError(RuntimeError):
    """Every host waits and nothing can happen; the message says what each waits for."""


@dataclass(frozen=True)
class Release:
    """A host may go on: its clock, and the answer where it had asked for one."""

    rank: int
    now_ps: int
    elapsed_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """Something a rank's device did, for a timeline; a transfer's start is its last member's."""

    rank: int
    lane: str
    name: str
    start_ps: int
    end_ps: int
    step: int


@dataclass(slots=True)
class _Device:
    """What one rank's device is doing, and since when."""

    kernels: dict[Task, None]
    transfers: dict[Transfer, Task]
    # Arrived at a transfer that others have not arrived at.
    early: dict[Task, None]
    since_ps: int = 0


class Simulation:
    """Plays what ranks do; see the module for what it promises.

    Args:
        representation: which ranks are simulated, and for whom they stand.
        prices: of kernels and transfers, and how they slow each other.
        network: when transfers end.
        cost: what the hosts' work takes.
        launches: makes what turns one rank's events into launches.
        record: keep a ``Slice`` of everything that ran.
    """

    def __init__(
        self,
        representation: Representation,
        prices: Prices,
        network: Network,
        cost: HostCost,
        launches: Callable[[], Launches],
        *,
        record: bool = False,
    ) -> None:
        self._prices = prices
        self._network = network
        self.asked = cost.framework
        self._least_launch_ps = to_picoseconds(cost.least_launch_s)
        self._transfers = Transfers(representation, prices)
        self._board = Board(representation.simulated)
        self.hosts = {
            rank: Host(rank, cost, prices, self._transfers, launches(), self._launch, self._board)
            for rank in representation.simulated
        }
        self._devices = {rank: _Device({}, {}, {}) for rank in representation.simulated}
        self._heap: list[tuple[int, int, int, int, int, Task | Transfer | Host]] = []
        self._to_start: list[Task] = []
        self._dirty: set[int] = set()
        self._now_ps = 0
        self._releases: list[Release] = []
        self.slices: list[Slice] | None = [] if record else None

    @property
    def now_ps(self) -> float:
        """The time up to which everything has been played."""
        return self._now_ps

    def feed(self, rank: int, messages: Iterable[Message]) -> None:
        """Take what a rank's script did next, in order.

        Raises:
            UseError, MismatchError: for events that cannot be.
        """
        self.go_on(rank)
        host = self.hosts[rank]
        host.inbox.extend(messages)
        self._walk(host)

    def pass_by(self, ranks: Iterable[int]) -> None:
        """Hosts that run but wait for threads of their own hold time up no longer."""
        for rank in ranks:
            self.hosts[rank].passed_by = True

    def go_on(self, rank: int) -> None:
        """A host that time passed by may have got what its thread waited for: at what time is."""
        host = self.hosts[rank]
        if host.passed_by:
            host.passed_by = False
            host.clock.wait_until(self._now_ps)

    def publish(self, rank: int, key: str) -> None:
        """A thread beside the host of ``rank`` leaves something, at what is now its time."""
        self._board.publish(key, max(self._now_ps, self.hosts[rank].clock.now_ps))
        self._wake_collectors()

    def advance(self) -> list[Release]:
        """Play as far as is known; returns the hosts that waited and may go on, in order.

        Raises:
            DeadlockError: when nothing can happen any more and not every rank has finished.
        """
        horizon_ps, released = self._horizon_ps(), len(self._releases)
        while self._heap and self._heap[0][0] < horizon_ps:
            self._play_instant()
            if len(self._releases) > released:
                horizon_ps, released = self._horizon_ps(), len(self._releases)
        if not self._heap and not self._releases:
            self._refuse_deadlock()
        releases, self._releases = self._releases, []
        return releases

    @property
    def finished(self) -> bool:
        """Whether every rank's script has ended and all its work has run."""
        return not self._heap and all(host.finished for host in self.hosts.values())

    def _horizon_ps(self) -> int:
        """Before this nothing can be launched that is not known."""
        clocks = [host.clock.now_ps for host in self.hosts.values() if host.holds_time]
        return min(clocks, default=_NEVER) + self._least_launch_ps

    def _refuse_deadlock(self) -> None:
        if any(host.running for host in self.hosts.values()):
            return
        if waits := self.waits():
            raise DeadlockError("nothing can happen any more:\n  " + "\n  ".join(waits))

    def waits(self) -> list[str]:
        """What each host waits for and where, what not all have come to, and who has ended;
        nothing while none waits."""
        hosts = self.hosts.values()
        waits = [host.describe_wait() for host in hosts if host.wait is not None]
        waits += [*self._transfers.unfinished, *self._stuck()]
        ended = [str(host.rank) for host in hosts if host.finished]
        return [*waits, f"ranks that have ended: {', '.join(ended)}"] if waits and ended else waits

    def _stuck(self) -> Iterator[str]:
        """Communications that a rank has begun and others have only launched, behind others."""
        for rank, device in self._devices.items():
            for task in device.early:
                assert task.transfer is not None
                others = [each for each in task.transfer.members if each.start_ps is None]
                if others:
                    site = f" at {task.site}" if task.site else ""
                    ranks = ", ".join(str(each.rank) for each in sorted(others, key=_key))
                    behind = f"it waits behind other work of rank {ranks}"
                    yield f"rank {rank} has begun {task.name}{site}; {behind}"

    # Hosts

    def _walk(self, host: Host) -> None:
        """Let a host take its events up to a wait that is not over yet."""
        while host.inbox and host.running:
            wait = host.walk()
            self._wake_collectors()
            if wait is None:
                return
            for task in wait.tasks:
                if task.end_ps is None:
                    task.followers.append(wait)
                    wait.waiting_for += 1
            if wait.waiting_for:
                return
            if not self._over(host, wait):
                return

    def _over(self, host: Host, wait: Wait) -> bool:
        """Let a host go on that waits for no more than a moment, if that has come."""
        if wait.until_ps > max(self._now_ps, host.clock.now_ps):
            self._schedule(wait.until_ps, _WAKE, (host.rank, 0), 0, host)
            return False
        self._let_go(host)
        return True

    def _wake_collectors(self) -> None:
        """Hosts have got what they collect."""
        while self._board.over:
            wait = self._board.over.pop(0)
            host = self.hosts[wait.rank]
            if self._over(host, wait):
                self._walk(host)

    def _let_go(self, host: Host) -> None:
        wait = host.wait
        assert wait is not None
        elapsed_ms = None if wait.request is None else host.elapsed_ms(wait.request)
        host.release()
        self._releases.append(Release(host.rank, host.clock.now_ps, elapsed_ms))

    def _launch(self, task: Task, before: Iterable[Task]) -> None:
        """A host launched a task that follows others."""
        task.ready_ps = task.issue_ps
        for other in dict.fromkeys(before):
            if other.end_ps is None:
                other.followers.append(task)
                task.waiting_for += 1
            else:
                task.ready_ps = max(task.ready_ps, other.end_ps)
        if not task.waiting_for:
            self._ready(task)

    # Time

    def _play_instant(self) -> None:
        """Everything that happens at the next moment; what starts then sees all that ended."""
        heap = self._heap
        now_ps = self._now_ps = heap[0][0]
        while True:
            while heap and heap[0][0] == now_ps:
                _, what, _, _, version, about = heapq.heappop(heap)
                if isinstance(about, Host):
                    self._let_go(about)
                    self._walk(about)
                elif version != about.version:
                    continue
                elif isinstance(about, Transfer):
                    self._end_transfer(about, now_ps)
                elif what == _READY:
                    self._to_start.append(about)
                else:
                    self._end_kernel(about, now_ps)
            if not self._to_start:
                break
            starting, self._to_start = sorted(self._to_start, key=_key), []
            self._start(starting, now_ps)
        self._rerate(now_ps)

    def _schedule(
        self,
        time_ps: int,
        what: int,
        key: tuple[int, int],
        version: int,
        about: Task | Transfer | Host,
    ) -> None:
        heapq.heappush(self._heap, (time_ps, what, *key, version, about))

    def _ready(self, task: Task) -> None:
        """Nothing holds a task up but the time ``ready_ps``."""
        if task.kernel is None and task.transfer is None:
            self._finish(task, task.ready_ps)
        else:
            self._schedule(task.ready_ps, _READY, task.key, task.version, task)

    def _start(self, tasks: Sequence[Task], now_ps: int) -> None:
        complete = []
        for task in tasks:
            device = self._pass_time(task.rank, now_ps)
            task.start_ps = now_ps
            if task.kernel is not None:
                device.kernels[task] = None
                task.progress = Progress(task.kernel.seconds * PICOSECONDS, now_ps)
                self._dirty.add(task.rank)
                self._schedule_end(task, task.progress)
                continue
            transfer = task.transfer
            assert transfer is not None
            device.early[task] = None
            transfer.arrived += 1
            if transfer.arrived == transfer.expected:
                complete.append(transfer)
        for transfer in complete:
            transfer.start_ps = now_ps
            for member in transfer.members:
                device = self._pass_time(member.rank, now_ps)
                del device.early[member]
                device.transfers[transfer] = member
                self._dirty.add(member.rank)
        if complete:
            self._announce(self._network.start(complete, now_ps))

    def _schedule_end(self, task: Task, progress: Progress) -> None:
        task.version += 1
        self._schedule(progress.end_ps, _TASK_ENDS, task.key, task.version, task)

    def _announce(self, ends: Ends) -> None:
        for transfer, end_ps in ends:
            transfer.version += 1
            self._schedule(end_ps, _TRANSFER_ENDS, transfer.key, transfer.version, transfer)

    def _end_kernel(self, task: Task, now_ps: int) -> None:
        del self._pass_time(task.rank, now_ps).kernels[task]
        self._dirty.add(task.rank)
        self._finish(task, now_ps)

    def _end_transfer(self, transfer: Transfer, now_ps: int) -> None:
        self._network.end(transfer)
        for member in sorted(transfer.members, key=_key):
            del self._pass_time(member.rank, now_ps).transfers[transfer]
            self._dirty.add(member.rank)
            self._finish(member, now_ps)

    def _finish(self, task: Task, end_ps: int) -> None:
        """A task has run: what followed it may go on."""
        task.end_ps = end_ps
        if self.slices is not None and task.start_ps is not None:
            self.slices.append(_slice_of(task, end_ps))
        if task.on_end is not None:
            task.on_end(end_ps)
        followers, task.followers, task.transfer = task.followers, [], None
        for follower in followers:
            follower.waiting_for -= 1
            if isinstance(follower, Wait):
                if not follower.waiting_for:
                    host = self.hosts[follower.rank]
                    self._let_go(host)
                    self._walk(host)
                continue
            follower.ready_ps = max(follower.ready_ps, end_ps)
            if not follower.waiting_for:
                self._ready(follower)

    def _pass_time(self, rank: int, now_ps: int) -> _Device:
        """Book what a rank's device did up to now."""
        device = self._devices[rank]
        passed_ps = now_ps - device.since_ps
        if passed_ps > 0:
            if device.kernels:
                next(iter(device.kernels)).step.kernels_ps += passed_ps
            elif device.transfers:
                next(iter(device.transfers.values())).step.transfers_ps += passed_ps
            elif device.early:
                next(iter(device.early)).step.peers_ps += passed_ps
            device.since_ps = now_ps
        return device

    def _rerate(self, now_ps: int) -> None:
        """What runs beside something else on a device runs slower; both ways."""
        touched: dict[Transfer, None] = {}
        for rank in sorted(self._dirty):
            device = self._devices[rank]
            # Copies from and to the host, of no class, are made by engines of their own.
            kernels = [task for task in device.kernels if task.kernel and task.kernel.mix]
            for task in kernels:
                progress = task.progress
                assert task.kernel is not None
                assert progress is not None
                slowdown = 1 + (len(kernels) - 1) * (self._prices.slowdown_of_two - 1)
                for transfer in device.transfers:
                    slowdown += self._prices.slowdowns(task.kernel, transfer.price)[0] - 1
                if slowdown != progress.slowdown:
                    progress.slow(slowdown, now_ps)
                    self._schedule_end(task, progress)
            touched.update(dict.fromkeys(device.transfers))
        self._dirty.clear()
        for transfer in sorted(touched, key=_key):
            slowdown = max(self._slowdown_on(member.rank, transfer) for member in transfer.members)
            if slowdown != transfer.slowdown:
                transfer.slowdown = slowdown
                self._announce(self._network.slow(transfer, slowdown, now_ps))

    def _slowdown_on(self, rank: int, transfer: Transfer) -> float:
        slowdown = 1.0
        for task in self._devices[rank].kernels:
            assert task.kernel is not None
            slowdown += self._prices.slowdowns(task.kernel, transfer.price)[1] - 1
        return slowdown


def _key(about: Task | Transfer) -> tuple[int, int]:
    return about.key


def _slice_of(task: Task, end_ps: int) -> Slice:
    assert task.start_ps is not None
    start_ps = task.start_ps
    if task.transfer is not None and task.transfer.start_ps is not None:
        start_ps = task.transfer.start_ps
    return Slice(task.rank, task.lane, task.name, start_ps, end_ps, task.step.number)
