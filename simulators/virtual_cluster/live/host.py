"""One rank as the simulation sees it: a host with a clock, and the tasks that its walk makes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.traces.collate.communication import site_text
from trainscout.simulators.virtual_cluster.traces.rank_walk import (
    Batch,
    HostWait,
    Lane,
    Launch,
    RankWalk,
    UseError,
)
from trainscout.simulators.virtual_cluster.walk.host import HostCost
from trainscout.simulators.virtual_cluster.walk.launches import Launches
from trainscout.simulators.virtual_cluster.walk.prices import Price

from .clock import PICOSECONDS, HostClock, to_picoseconds
from .messages import AskElapsed, Collect, Finish, Message, Publish, Sleep
from .prices import Prices
from .tasks import Board, Membership, Step, Task, Transfers, Wait

# Tasks between two looks at what may be forgotten.
FORGET_EVERY = 4096


class Host:
    """Takes one rank's messages until it must wait or has no more; the maker of its tasks."""

    def __init__(
        self,
        rank: int,
        cost: HostCost,
        prices: Prices,
        transfers: Transfers,
        launches: Launches,
        launch: Callable[[Task, Iterable[Task]], None],
        board: Board,
    ) -> None:
        self.rank = rank
        self.clock = HostClock(cost, launches)
        self.inbox: deque[Message] = deque()
        self.wait: Wait | None = None
        self.finished = False
        # Whether it waits for a thread of its own, as far as anybody knows.
        self.passed_by = False
        self.sites: dict[int, events.Site] = {}
        # What comes before the first step counts as step -1.
        self.steps = [Step(-1)]
        self._was = events.SETUP
        self._walk = RankWalk(rank, self)
        self._prices = prices
        self._transfers = transfers
        self._launch = launch
        self._board = board
        self._tasks = 0
        self._groups: dict[str, Membership] = {}
        self._marks: dict[int, Task] = {}

    @property
    def running(self) -> bool:
        """Whether more may come from it without anything happening first."""
        return self.wait is None and not self.finished

    @property
    def holds_time(self) -> bool:
        """Whether what it may launch next has to be waited for."""
        return self.running and not self.passed_by

    def walk(self) -> Wait | None:
        """Take messages up to the next wait, which is returned, or until none is left.

        Raises:
            UseError: for events that make no sense.
            MismatchError: where ranks that communicate disagree.
        """
        while self.inbox and self.running:
            message = self.inbox.popleft()
            if isinstance(message, (Sleep, AskElapsed, Publish, Collect, Finish)):
                self.wait = _REQUESTS[type(message)](self, message)
                continue
            launches = self.clock.apply(message)
            handle = _HANDLERS.get(type(message))
            if handle is None:
                self._walk.take(message, launches)
                continue
            for launch in launches:
                self._walk.launch(launch)
            handle(self, message)
        return self.wait

    def release(self) -> None:
        """What the host waited for has happened: the clock passes to then."""
        wait = self.wait
        assert wait is not None
        self.clock.wait_until(wait.until_ps)
        for task in wait.tasks:
            assert task.end_ps is not None
            self.clock.wait_until(task.end_ps)
        self.wait = None

    def describe_wait(self) -> str:
        """What the host waits for and where, for whoever asks why nothing happens."""
        wait = self.wait
        assert wait is not None
        site = site_text(self.sites, wait.site)
        where = f" at {site}" if site else ""
        held = [task for task in wait.tasks if task.end_ps is None]
        holding = f", held up by {held[0].name} in {held[0].lane}" if held else ""
        if held and held[0].site:
            holding += f" launched at {held[0].site}"
        return (
            f"rank {self.rank} waits since {self.clock.now_s:.6f} s: {wait.what}{where}{holding}"
        )

    def elapsed_ms(self, request: AskElapsed) -> float:
        """Milliseconds between two marks that have been passed."""
        start, end = self._marks[request.start].end_ps, self._marks[request.end].end_ps
        assert start is not None
        assert end is not None
        return 1e3 * (end - start) / PICOSECONDS

    # The walk's tasks

    def kernel(self, launch: Launch, lane: Lane[Task]) -> Task | None:
        price = self._prices.kernel(launch.content)
        if not price.seconds:
            return None
        task = self._task(launch.name, lane.name, price)
        self._launch(task, lane.frontier)
        return task

    def communication(
        self,
        event: events.Collective | events.PointToPoint,
        lane: Lane[Task],
        before: Sequence[Task],
    ) -> Task:
        return self._communicate(event, lane.name, [*before, *lane.frontier])

    def open_batch(
        self, event: events.PointToPoint, lane: Lane[Task], before: Sequence[Task]
    ) -> Batch[Task]:
        return Batch(event, lane.name, [*lane.frontier, *before])

    def batched(self, event: events.PointToPoint, batch: Batch[Task]) -> Task:
        task = self._communicate(event, batch.lane, batch.before)
        batch.done.append(task)
        return task

    def recorded(self, event: events.EventRecord, frontier: Sequence[Task]) -> None:
        if event.timing:
            self._marks[event.event] = self._mark("event", frontier)

    def host_waits(self, event: HostWait, waits: Mapping[str, Sequence[Task]]) -> None:
        tasks = tuple(task for each in waits.values() for task in each)
        if isinstance(event, events.Synchronise):
            what, site = f"{event.scope} synchronise", event.site
        elif isinstance(event, events.ValueRead):
            what, site = f"value read {event.operation}", event.site
        else:
            names = " and ".join(sorted({task.name for task in tasks})) or "finished work"
            what, site = f"wait for {names}", None
        self.wait = Wait(self.rank, what, site, tasks=tasks)

    # Parts of them

    def _communicate(
        self, event: events.Collective | events.PointToPoint, lane: str, before: Iterable[Task]
    ) -> Task:
        group = self._groups.get(event.group)
        if group is None:
            problem = f"communicates on group {event.group!r}, never announced"
            raise UseError(f"rank {self.rank} {problem}")
        task = self._task(event.kind, lane)
        task.site = site_text(self.sites, event.site)
        task.transfer = self._transfers.join(task, event, group, task.site)
        self._launch(task, before)
        return task

    def _mark(
        self, name: str, before: Iterable[Task], on_end: Callable[[int], None] | None = None
    ) -> Task:
        task = self._task(name, "marks")
        task.on_end = on_end
        self._launch(task, before)
        return task

    def _task(self, name: str, lane: str, kernel: Price | None = None) -> Task:
        self._tasks += 1
        if self._tasks % FORGET_EVERY == 0:
            self._walk.forget(self._is_past)
        now_ps, step = self.clock.now_ps, self.steps[-1]
        return Task(self.rank, self._tasks, name, lane, now_ps, step, kernel=kernel)

    def _is_past(self, task: Task) -> bool:
        return task.end_ps is not None and task.end_ps <= self.clock.now_ps

    # What the walk does not need

    def _group(self, event: events.Group) -> None:
        self._groups[event.name] = self._transfers.announce(self.rank, event, self._groups)

    def _phase(self, event: events.Phase) -> None:
        """A step begins with its first forward, or with what follows the optimizer before it."""
        left_optimizer = self._was == events.OPTIMIZER and event.phase != events.OPTIMIZER
        self._was = event.phase
        begun = event.step + 1 if left_optimizer and event.phase != events.FORWARD else event.step
        if event.phase != events.SETUP and begun > self.steps[-1].number:
            self._end_step()
            self.steps.append(Step(begun, self.clock.now_ps))
        # The second optimizer of a step updates after the next step was taken to begin.
        if event.phase == events.OPTIMIZER and event.step == self.steps[-1].number:
            self.steps[-1].trains = True

    def _site(self, event: events.Site) -> None:
        self.sites[event.number] = event

    def _end_step(self) -> None:
        """Note when all work launched so far has run, under the step that ends."""
        step = self.steps[-1]

        def passed(end_ps: int) -> None:
            step.end_ps = end_ps

        before = [task for tasks in self._walk.device().values() for task in tasks]
        self._mark("step", before, passed)

    def _sleep(self, request: Sleep) -> Wait:
        until_ps = self.clock.now_ps + to_picoseconds(request.seconds)
        return Wait(self.rank, "sleep", None, until_ps=until_ps)

    def _publish(self, request: Publish) -> None:
        self._board.publish(request.key, self.clock.now_ps)

    def _collect(self, request: Collect) -> Wait:
        return self._board.collect(self.rank, request)

    def _finish(self, request: Finish) -> None:
        self._end_step()
        self.finished = True

    def _elapsed(self, request: AskElapsed) -> Wait:
        for event in (request.start, request.end):
            if event not in self._marks:
                raise UseError(f"rank {self.rank} times event {event}, never recorded for timing")
        tasks = (self._marks[request.start], self._marks[request.end])
        return Wait(self.rank, "elapsed time", None, tasks=tasks, request=request)


_REQUESTS: dict[type, Callable[[Host, Any], Wait | None]] = {
    Sleep: Host._sleep,
    AskElapsed: Host._elapsed,
    Publish: Host._publish,
    Collect: Host._collect,
    Finish: Host._finish,
}
_HANDLERS: dict[type, Callable[[Host, Any], None]] = {
    events.Group: Host._group,
    events.Phase: Host._phase,
    events.Site: Host._site,
}
