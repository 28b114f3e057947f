"""One rank's events, in the order its host issued them, as tasks and dependencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainscout.simulators.predictor.replay.prices import COMPUTE, HOST, OPTIMIZER, PART_INDEX
from trainscout.simulators.virtual_cluster.execution.contents import Contents
from trainscout.simulators.virtual_cluster.execution.program import DEVICE, MARK, Lane, Program
from trainscout.simulators.virtual_cluster.execution.program import HOST as HOST_ROLE
from trainscout.simulators.virtual_cluster.execution.rendezvous import Batch, Meetings
from trainscout.simulators.virtual_cluster.execution.window import Window
from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.traces.lowering import Lowered

NO_TASK = -1
_HOST_PART = PART_INDEX[HOST]


@dataclass(frozen=True)
class HostSpeed:
    """What launching costs a rank's host.

    ``launch_s`` for each kernel, ``forward_s`` more in forward passes. ``gap_factor`` times the
    CPU seconds that the trace recorded between events are added (0: they are left out).
    """

    launch_s: float
    forward_s: float = 0.0
    gap_factor: float = 1.0


@dataclass(frozen=True)
class Issued:
    """Tasks of one rank by event of its trace, -1 where there is none (or not played).

    ``device``: what runs for an operation or communication, or where the host waits. ``host``: the
    last task the host had issued when it came to the event. ``launches``: operations by stream
    number, as pairs (event, task). ``run_up``, ``step``: kernels of the step before the one that
    counts and of that one, up to the last of the optimizer's; where there is none, all. The
    latter's first event is ``step_start``.
    """

    device: list[int]
    host: list[int]
    launches: dict[int, list[tuple[int, int]]]
    run_up: list[int]
    step: list[int]
    step_start: int


class RankIssue:
    """Walks one rank's window and grows the program."""

    def __init__(
        self,
        rank: int,
        place: int,
        program: Program,
        meetings: Meetings,
        contents: Contents,
        speed: HostSpeed,
    ) -> None:
        self.rank = rank
        self.place = place
        self.program = program
        self.meetings = meetings
        self.contents = contents
        self.speed = speed
        self.host = program.lane(place)
        self.gap_s = 0.0
        self.phase = events.SETUP
        self.streams: dict[int, Lane] = {}
        self.wires: dict[tuple[str, int | None], Lane] = {}
        self.sides: dict[tuple[str, int], Lane] = {}
        self.works: dict[int, int] = {}
        self.recorded: dict[int, list[int]] = {}
        self.batch: tuple[int, Batch] | None = None
        self.launched: dict[int, list[tuple[int, int]]] = {}
        self.handlers: dict[type, Callable[..., int]] = {
            events.Collective: self.collective,
            events.PointToPoint: self.point_to_point,
            events.WorkWait: self.work_wait,
            events.EventRecord: self.event_record,
            events.EventWait: self.event_wait,
            events.Synchronise: self.synchronise,
            events.ValueRead: self.value_read,
            events.HostGap: self.host_gap,
            events.Phase: self.begin_phase,
        }

    def play(
        self, trace: Sequence[events.Event], lowered: Sequence[Lowered | None], window: Window
    ) -> Issued:
        """Issue the events of the window; ``lowered`` has one entry for each of the trace's."""
        device = [NO_TASK] * len(trace)
        host = [NO_TASK] * len(trace)
        kernels: tuple[list[int], list[int]] = [], []
        updates = [0, 0]
        for index in range(window.start, window.stop):
            event = trace[index]
            alone = lowered[index]
            if alone is not None:
                if alone.kernels or alone.transfer_bytes:
                    assert isinstance(event, events.Op)
                    which = index >= window.step_start
                    device[index] = self.operation(index, event, alone)
                    kernels[which].append(device[index])
                    if self.phase == events.OPTIMIZER:
                        updates[which] = len(kernels[which])
            else:
                handle = self.handlers.get(type(event))
                if handle is not None:
                    device[index] = handle(event)
            host[index] = self.host.tail
        run_up, step = (
            each[: count or len(each)] for each, count in zip(kernels, updates, strict=True)
        )
        return Issued(device, host, self.launched, run_up, step, window.step_start)

    def stream(self, number: int) -> Lane:
        lane = self.streams.get(number)
        if lane is None:
            lane = self.streams[number] = self.program.lane(self.place)
        return lane

    def issue(self, launches: int) -> int:
        """The host's work for so many launches, and what it did before."""
        seconds = launches * self.speed.launch_s + self.gap_s
        if self.phase == events.FORWARD:
            seconds += self.speed.forward_s
        self.gap_s = 0.0
        task = self.program.task(HOST_ROLE, _HOST_PART, fixed_s=seconds)
        self.program.append(self.host, task)
        return task

    def operation(self, index: int, event: events.Op, lowered: Lowered) -> int:
        content = self.contents.operation(lowered)
        launch = self.issue(self.contents.launches[content])
        part = PART_INDEX[OPTIMIZER if self.phase == events.OPTIMIZER else COMPUTE]
        task = self.program.task(DEVICE, part, content)
        self.program.edge(launch, task)
        self.program.append(self.stream(event.stream), task)
        self.launched.setdefault(event.stream, []).append((index, task))
        return task

    def collective(self, event: events.Collective) -> int:
        launch = self.issue(1)
        task = self.meetings.collective(self.rank, event)
        self.program.edge(launch, task)
        self.program.edges(self.stream(event.stream).state(), task)
        self.program.append(self.wire(event.group), task)
        self.works[event.work] = task
        return task

    def point_to_point(self, event: events.PointToPoint) -> int:
        """A transfer alone has a stream for its pair of ranks, those of a batch share their
        communicator's with its collectives and run side by side."""
        task = self.meetings.transfer(self.rank, event)
        if event.batch is None:
            launch = self.issue(1)
            self.program.edge(launch, task)
            self.program.edges(self.stream(event.stream).state(), task)
            self.program.append(self.wire(event.group, event.peer), task)
            self.works[event.work] = task
            return task
        batch = self.batch[1] if self.batch is not None else None
        if batch is None or self.batch is None or self.batch[0] != event.batch:
            group = self.meetings.group(self.rank, event.group)
            launch = self.issue(1)
            batch = self.meetings.open_batch(self.rank, self.wire(event.group), group)
            self.batch = event.batch, batch
            self.program.edge(launch, batch.entry)
            self.program.edges(self.stream(event.stream).state(), batch.entry)
        self.program.edge(batch.entry, task)
        self.program.edge(task, batch.exit)
        self.program.append(self.side(event.group, batch.transfers), task)
        batch.transfers += 1
        self.works[event.work] = batch.exit
        return task

    def wire(self, group: str, peer: int | None = None) -> Lane:
        """A communicator's own stream, or that of its pair with one peer."""
        lane = self.wires.get((group, peer))
        if lane is None:
            lane = self.wires[group, peer] = self.program.lane(self.place)
        return lane

    def side(self, group: str, number: int) -> Lane:
        """Where the transfer ``number`` of a batch runs, beside the others of its batch."""
        lane = self.sides.get((group, number))
        if lane is None:
            lane = self.sides[group, number] = self.program.lane(self.place)
        return lane

    def work_wait(self, event: events.WorkWait) -> int:
        work = self.works.get(event.work)
        if work is None:
            return NO_TASK
        self.stream(event.stream).waits.append(work)
        return self.host_waits([work]) if event.blocks_host else NO_TASK

    def event_record(self, event: events.EventRecord) -> int:
        self.recorded[event.event] = self.stream(event.stream).state()
        return NO_TASK

    def event_wait(self, event: events.EventWait) -> int:
        self.stream(event.stream).waits += self.recorded.get(event.event, [])
        return NO_TASK

    def synchronise(self, event: events.Synchronise) -> int:
        if event.scope == "stream" and event.number is not None:
            return self.host_waits(self.stream(event.number).state())
        if event.scope == "event" and event.number is not None:
            return self.host_waits(self.recorded.get(event.number, []))
        lanes = [*self.streams.values(), *self.wires.values()]
        return self.host_waits([task for lane in lanes for task in lane.state()])

    def value_read(self, event: events.ValueRead) -> int:
        self.issue(1)
        return self.host_waits(self.stream(event.stream).state())

    def host_waits(self, tasks: list[int]) -> int:
        """The host stands still until tasks have run; what it did before is behind it."""
        if self.gap_s:
            self.issue(0)
        task = self.program.task(MARK, _HOST_PART)
        self.program.edges(tasks, task)
        self.program.append(self.host, task)
        return task

    def host_gap(self, event: events.HostGap) -> int:
        self.gap_s += event.cpu_s * self.speed.gap_factor
        return NO_TASK

    def begin_phase(self, event: events.Phase) -> int:
        self.phase = event.phase
        return NO_TASK
