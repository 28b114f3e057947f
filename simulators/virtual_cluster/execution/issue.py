"""One rank's events, in the order its host issued them, as the engine's tasks and dependencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainscout.simulators.predictor.replay.priced import COMPUTE, HOST, OPTIMIZER, PART_INDEX
from trainscout.simulators.virtual_cluster.traces import events, rank_walk
from trainscout.simulators.virtual_cluster.traces.lowering.tensors import Lowered
from trainscout.simulators.virtual_cluster.walk.host import HostCalls, HostCost

from .program import DEVICE, MARK, Contents, Program
from .program import HOST as HOST_ROLE
from .rendezvous import JobRendezvous
from .window import Window

NO_TASK = -1
_HOST_PART = PART_INDEX[HOST]
# Events besides operations that take the host's time or make something wait.
_ISSUED = rank_walk.WALKED | {events.HostGap, events.Phase, events.Begin, events.End}
# What is told once, mostly before the window.
_ANNOUNCED = frozenset((events.Group, events.Site))


@dataclass(frozen=True)
class Issued:
    """Tasks of one rank by event of its trace, -1 where there is none (or not played).

    ``device``: what runs for an operation or communication, or where the host waits. ``host``: the
    last task the host had issued when it came to the event. ``launches``: operations by stream
    number, as pairs (event, task). ``run_up``, ``step``: kernels of the step before the one that
    counts and of that one, up to the last of the optimizer's (or its work on the host); where
    there is none, all. The
    latter's first event is ``step_start``. ``counted``: events between the ends of the two, whose
    device work the step time has; without a run-up from ``step_start`` on.
    """

    device: list[int]
    host: list[int]
    launches: dict[int, list[tuple[int, int]]]
    run_up: list[int]
    step: list[int]
    step_start: int
    counted: range


class RankIssue:
    """Grows the program by one rank's window: the maker of the tasks of its walk."""

    def __init__(
        self,
        rank: int,
        place: int,
        program: Program,
        rendezvous: JobRendezvous,
        contents: Contents,
        cost: HostCost,
    ) -> None:
        self._rank = rank
        self._place = place
        self._program = program
        self._rendezvous = rendezvous
        self._contents = contents
        self._cost = cost
        self._calls = HostCalls(cost)
        self._gap_s = 0.0
        self._host = program.stream(place)
        self._issued = NO_TASK
        self._streams: dict[str, int] = {}
        # How many transfers the open batch has.
        self._batched = 0

    @property
    def cost(self) -> HostCost:
        """That of the framework whose code launches."""
        return self._calls.cost

    def play(
        self, trace: Sequence[events.Event], lowered: Sequence[Lowered | None], window: Window
    ) -> Issued:
        """Issue the events of the window; ``lowered`` has one entry for each of the trace's."""
        walk = rank_walk.RankWalk(self._rank, self, whole=False)
        device = [NO_TASK] * len(trace)
        host = [NO_TASK] * len(trace)
        launched: dict[int, list[tuple[int, int]]] = {}
        kernels: tuple[list[int], list[int]] = [], []
        updates = [0, 0]
        updated = [0, 0]
        for event in trace:
            if type(event) in _ANNOUNCED:
                self._calls.learn(event)
        for index in range(window.start, window.stop):
            event = trace[index]
            alone = lowered[index]
            if alone is not None:
                # Most of a trace, and what most of the time goes to.
                if alone.kernels or alone.transfer_bytes:
                    assert isinstance(event, events.Op)
                    task = device[index] = self._operation(event, alone, walk)
                    launched.setdefault(event.stream, []).append((index, task))
                    which = index >= window.step_start
                    kernels[which].append(task)
                    if self._calls.phase == events.OPTIMIZER:
                        updates[which], updated[which] = len(kernels[which]), index + 1
            elif type(event) is events.HostWork:
                self._gap_s += event.bytes * self._cost.memory_s
                self._issue(0)
                if self._calls.phase == events.OPTIMIZER:
                    which = index >= window.step_start
                    kernels[which].append(self._issued)
                    updates[which], updated[which] = len(kernels[which]), index + 1
            elif type(event) in _ISSUED:
                device[index] = self._issue_event(event, walk)
            host[index] = self._issued
        run_up, step = (
            each[: count or len(each)] for each, count in zip(kernels, updates, strict=True)
        )
        begin, end = updated if all(updated) else (window.step_start, len(trace))
        counted = range(begin, end)
        return Issued(device, host, launched, run_up, step, window.step_start, counted)

    def _operation(self, event: events.Op, lowered: Lowered, walk: rank_walk.RankWalk[int]) -> int:
        content = self._contents.operation(lowered)
        count = self._contents.launches[content]
        self._issue(self._calls.operation_s(count, lowered, event.site))
        task = walk.launch(rank_walk.Launch(event.name, event.stream, count, content))
        return NO_TASK if task is None else task

    def _issue_event(self, event: events.Event, walk: rank_walk.RankWalk[int]) -> int:
        if type(event) is events.HostGap:
            self._gap_s += event.cpu_s * self._cost.gap_factor
            return NO_TASK
        for seconds in self._calls.take(event, ()):
            self._issue(seconds)
        task = walk.take(event)
        return NO_TASK if task is None else task

    # The walk's tasks

    def kernel(self, launch: rank_walk.Launch, lane: rank_walk.Lane[int]) -> int:
        assert isinstance(launch.content, int)
        part = PART_INDEX[OPTIMIZER if self._calls.phase == events.OPTIMIZER else COMPUTE]
        return self._run(self._program.task(DEVICE, part, launch.content), lane)

    def communication(
        self,
        event: events.Collective | events.PointToPoint,
        lane: rank_walk.Lane[int],
        before: Sequence[int],
    ) -> int:
        return self._run(self._rendezvous.join(self._rank, event), lane, before)

    def open_batch(
        self, event: events.PointToPoint, lane: rank_walk.Lane[int], before: Sequence[int]
    ) -> rank_walk.Batch[int]:
        """A stretch of the communicator's stream, between two marks."""
        part = self._rendezvous.group(self._rank, event.group).part
        entry = self._run(self._program.task(MARK, part), lane, before)
        done = self._program.task(MARK, part)
        self._program.append(self._stream(lane.name), done)
        self._batched = 0
        return rank_walk.Batch(event, lane.name, [entry], [done])

    def batched(self, event: events.PointToPoint, batch: rank_walk.Batch[int]) -> int:
        """A transfer runs beside the others of its batch, on a stream of its own."""
        task = self._rendezvous.join(self._rank, event)
        self._program.edges(batch.before, task)
        for done in batch.done:
            self._program.edge(task, done)
        self._program.append(self._stream(f"{batch.lane} beside {self._batched}"), task)
        self._batched += 1
        return task

    def recorded(self, event: events.EventRecord, frontier: Sequence[int]) -> None:
        """Nobody asks when."""

    def host_waits(self, event: rank_walk.HostWait, waits: Mapping[str, Sequence[int]]) -> int:
        """The host stands still until tasks have run; what it did before is behind it."""
        if self._gap_s:
            self._issue(0)
        task = self._program.task(MARK, _HOST_PART)
        for tasks in waits.values():
            self._program.edges(tasks, task)
        self._program.append(self._host, task)
        self._issued = task
        return task

    # Parts of them

    def _run(self, task: int, lane: rank_walk.Lane[int], before: Sequence[int] = ()) -> int:
        """Put a task on a lane, as the host's last call launched it. Its stream has the lane's
        order."""
        self._program.edge(self._issued, task)
        self._program.edges(before, task)
        self._program.append(self._stream(lane.name), task)
        self._program.edges(lane.waits, task)
        return task

    def _stream(self, name: str) -> int:
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = self._program.stream(self._place)
        return stream

    def _issue(self, launching_s: float) -> None:
        """The host's work for a call, and what it did before."""
        seconds = launching_s + self._gap_s
        self._gap_s = 0.0
        self._issued = self._program.task(HOST_ROLE, _HOST_PART, fixed_s=seconds)
        self._program.append(self._host, self._issued)
