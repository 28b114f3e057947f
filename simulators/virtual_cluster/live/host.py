"""One rank as the simulation sees it: its events become tasks, frontiers and waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainscout.simulators.virtual_cluster.live.clock import (
    PICOSECONDS,
    HostClock,
    HostCost,
    to_picoseconds,
)
from trainscout.simulators.virtual_cluster.live.launches import Launch, Launches
from trainscout.simulators.virtual_cluster.live.prices import KernelPrice, Prices
from trainscout.simulators.virtual_cluster.live.rendezvous import Meetings, Membership
from trainscout.simulators.virtual_cluster.live.said import (
    AskElapsed,
    AwaitTold,
    Finish,
    Said,
    Sleep,
)
from trainscout.simulators.virtual_cluster.live.tasks import Frontier, Step, Task, Wait
from trainscout.simulators.virtual_cluster.traces.events import (
    FORWARD,
    OPTIMIZER,
    SETUP,
    Collective,
    EventRecord,
    EventWait,
    Group,
    Phase,
    PointToPoint,
    Site,
    Synchronise,
    ValueRead,
    WorkWait,
)

# Tasks between two looks at what may be forgotten.
FORGET_EVERY = 4096


class UseError(RuntimeError):
    """A rank's events make no sense: a work or an event nobody launched or recorded."""


@dataclass
class _Batch:
    """A grouped point-to-point call: its members start together."""

    number: int
    before: Frontier
    tasks: list[Task] = field(default_factory=list)


class Host:
    """Walks one rank's events until it must wait or has heard no more."""

    def __init__(
        self,
        rank: int,
        cost: HostCost,
        prices: Prices,
        meetings: Meetings,
        launches: Launches,
        launch: Callable[[Task, Iterable[Task]], None],
    ) -> None:
        self.rank = rank
        self.clock = HostClock(cost, launches)
        self.inbox: deque[Said] = deque()
        self.wait: Wait | None = None
        self.finished = False
        self.sites: dict[int, Site] = {}
        # What comes before the first step counts as step -1.
        self.steps = [Step(-1)]
        self._was = SETUP
        self._prices = prices
        self._meetings = meetings
        self._launch = launch
        self._tasks = 0
        self._groups: dict[str, Membership] = {}
        self._frontiers: dict[str, Frontier] = {}
        self._works: dict[int, Sequence[Task]] = {}
        self._events: dict[int, Frontier] = {}
        self._marks: dict[int, Task] = {}
        self._batches: dict[str, _Batch] = {}
        # What was communicated last.
        self._communicated: Frontier = ()

    @property
    def running(self) -> bool:
        """Whether more may come from it without anything happening first."""
        return self.wait is None and not self.finished

    def walk(self) -> Wait | None:
        """Take events up to the next wait, which is returned, or until none is left.

        Raises:
            UseError: for events that make no sense.
            MismatchError: where ranks that meet disagree.
        """
        while self.inbox and self.running:
            said = self.inbox.popleft()
            if isinstance(said, Sleep):
                until_ps = self.clock.now_ps + to_picoseconds(said.seconds)
                self.wait = Wait(self.rank, "sleep", None, until_ps=until_ps)
            elif isinstance(said, AskElapsed):
                self.wait = self._elapsed(said)
            elif isinstance(said, AwaitTold):
                self.wait = Wait(self.rank, "small message", None, tasks=self._communicated)
            elif isinstance(said, Finish):
                self._end_step()
                self.finished = True
            else:
                for launched in self.clock.apply(said):
                    self._kernel(launched)
                handle = _HANDLERS.get(type(said))
                if handle is not None:
                    handle(self, said)
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
        site = None if wait.site is None else self.sites.get(wait.site)
        where = "" if site is None else f" at {site.file}:{site.line} ({site.function})"
        held = [task for task in wait.tasks if task.end_ps is None]
        holding = f", held up by {held[0].name} in {held[0].lane}" if held else ""
        return (
            f"rank {self.rank} waits since {self.clock.now_s:.6f} s: {wait.what}{where}{holding}"
        )

    def elapsed_ms(self, asked: AskElapsed) -> float:
        """Milliseconds between two marks that have been passed."""
        start, end = self._marks[asked.start].end_ps, self._marks[asked.end].end_ps
        assert start is not None
        assert end is not None
        return 1e3 * (end - start) / PICOSECONDS

    # Events

    def _kernel(self, launched: Launch) -> None:
        price = self._prices.kernel(launched.content)
        if price.seconds:
            lane = _lane(launched.stream)
            task = self._task(launched.name, lane, kernel=price)
            self._after(task, lane, self._frontier(lane))

    def _group(self, event: Group) -> None:
        self._groups[event.name] = self._meetings.join(self.rank, event, self._groups)

    def _collective(self, event: Collective) -> None:
        lane = f"group {event.group}"
        task = self._task(event.kind, lane)
        task.transfer = self._meetings.collective(task, event, self._membership(event.group))
        self._batches.pop(lane, None)
        self._works[event.work] = self._communicated = (task,)
        before = self._frontier(_lane(event.stream)) + self._frontier(lane)
        self._after(task, lane, before)

    def _point_to_point(self, event: PointToPoint) -> None:
        lane = f"group {event.group}"
        if event.batch is None:
            # Alone, a send or receive runs on a communicator of its two ranks.
            low, high = sorted((self.rank, event.peer))
            lane += f" {low}-{high}"
        task = self._task(event.kind, lane)
        group = self._membership(event.group)
        task.transfer = self._meetings.point_to_point(task, event, group)
        batch = self._batches.get(lane)
        if event.batch is None or batch is None or batch.number != event.batch:
            batch = _Batch(-1 if event.batch is None else event.batch, self._frontier(lane))
            self._batches[lane] = batch
        batch.tasks.append(task)
        # Who waits for one of a batch waits for all: they are one kernel.
        self._works[event.work] = batch.tasks
        self._communicated = (task,)
        self._after(task, lane, batch.before + self._frontier(_lane(event.stream)))
        self._frontiers[lane] = tuple(batch.tasks)

    def _work_wait(self, event: WorkWait) -> None:
        if event.work not in self._works:
            raise UseError(
                f"rank {self.rank} waits for work {event.work}, which it never launched"
            )
        tasks = tuple(self._works[event.work])
        lane = _lane(event.stream)
        self._frontiers[lane] = self._frontier(lane) + tasks
        if event.blocks_host:
            what = " and ".join(sorted({task.name for task in tasks})) or "finished work"
            self.wait = Wait(self.rank, f"wait for {what}", None, tasks=tasks)

    def _event_record(self, event: EventRecord) -> None:
        frontier = self._frontier(_lane(event.stream))
        self._events[event.event] = frontier
        if event.timing:
            self._marks[event.event] = self._mark("event", frontier)

    def _event_wait(self, event: EventWait) -> None:
        # An event that was never recorded holds nobody up, as on a device.
        lane = _lane(event.stream)
        self._frontiers[lane] = self._frontier(lane) + self._events.get(event.event, ())

    def _synchronise(self, event: Synchronise) -> None:
        if event.scope == "stream":
            tasks = self._frontier(_lane(event.number or 0))
        elif event.scope == "event":
            tasks = self._events.get(event.number or 0, ())
        else:
            tasks = self._device()
        self.wait = Wait(self.rank, f"{event.scope} synchronise", event.site, tasks=tasks)

    def _value_read(self, event: ValueRead) -> None:
        tasks = self._frontier(_lane(event.stream))
        self.wait = Wait(self.rank, f"value read {event.operation}", event.site, tasks=tasks)

    def _phase(self, event: Phase) -> None:
        """A step begins with its first forward, or with what follows the optimizer before it."""
        left_optimizer = self._was == OPTIMIZER and event.phase != OPTIMIZER
        self._was = event.phase
        begun = event.step + 1 if left_optimizer and event.phase != FORWARD else event.step
        if event.phase != SETUP and begun > self.steps[-1].number:
            self._end_step()
            self.steps.append(Step(begun, self.clock.now_ps))
        if event.phase == FORWARD:
            self.steps[-1].trains = True

    def _site(self, event: Site) -> None:
        self.sites[event.number] = event

    # Parts of them

    def _end_step(self) -> None:
        """Note when all work launched so far has run, under the step that ends."""
        step = self.steps[-1]

        def passed(end_ps: int) -> None:
            step.end_ps = end_ps

        self._mark("step", self._device(), passed)

    def _mark(
        self, name: str, before: Frontier, on_end: Callable[[int], None] | None = None
    ) -> Task:
        task = self._task(name, "marks")
        task.on_end = on_end
        self._launch(task, before)
        return task

    def _task(self, name: str, lane: str, kernel: KernelPrice | None = None) -> Task:
        self._tasks += 1
        if self._tasks % FORGET_EVERY == 0:
            self._forget()
        now_ps, step = self.clock.now_ps, self.steps[-1]
        return Task(self.rank, self._tasks, name, lane, now_ps, step, kernel=kernel)

    def _after(self, task: Task, lane: str, before: Frontier) -> None:
        self._frontiers[lane] = (task,)
        self._launch(task, before)

    def _frontier(self, lane: str) -> Frontier:
        """What the next task of a stream waits for, less what is past for the host already."""
        frontier = self._frontiers.get(lane, ())
        kept = tuple(task for task in frontier if not self._is_past(task))
        if len(kept) < len(frontier):
            self._frontiers[lane] = kept
        return kept

    def _forget(self) -> None:
        """Let go of what is past for the host and can hold nothing up any more."""
        for number, tasks in self._works.items():
            if all(self._is_past(task) for task in tasks):
                self._works[number] = ()
        for number, frontier in self._events.items():
            if all(self._is_past(task) for task in frontier):
                self._events[number] = ()

    def _is_past(self, task: Task) -> bool:
        return task.end_ps is not None and task.end_ps <= self.clock.now_ps

    def _device(self) -> Frontier:
        return tuple(task for lane in self._frontiers for task in self._frontier(lane))

    def _membership(self, group: str) -> Membership:
        member = self._groups.get(group)
        if member is None:
            raise UseError(f"rank {self.rank} communicates on group {group!r}, never announced")
        return member

    def _elapsed(self, asked: AskElapsed) -> Wait:
        for event in (asked.start, asked.end):
            if event not in self._marks:
                raise UseError(f"rank {self.rank} times event {event}, never recorded for timing")
        tasks = (self._marks[asked.start], self._marks[asked.end])
        return Wait(self.rank, "elapsed time", None, tasks=tasks, asked=asked)


def _lane(stream: int) -> str:
    return f"stream {stream}"


_HANDLERS: dict[type, Callable[[Host, Any], None]] = {
    Group: Host._group,
    Collective: Host._collective,
    PointToPoint: Host._point_to_point,
    WorkWait: Host._work_wait,
    EventRecord: Host._event_record,
    EventWait: Host._event_wait,
    Synchronise: Host._synchronise,
    ValueRead: Host._value_read,
    Phase: Host._phase,
    Site: Host._site,
}
