"""From one rank's events, in the order its host issued them, to tasks that wait for each other.

What a GPU does with them (CUDA programming guide, streams and events; NCCL's user guide):

- A stream runs what is launched on it in order. Each communicator has a stream of its own, where
  a communication also waits for the work of the stream it was launched from. A send or receive
  alone runs on a communicator of its two ranks; those of one batch are one kernel.
- An event stands for everything given to its stream so far. Streams wait for events and for
  communications, which holds up only what is launched on them later.
- The host launches ahead until it waits: for a stream, an event, a communication or the device.

Whoever walks says what a task is (``TaskMaker``): live mode's are played while scripts run, those
of traced ranks are an engine's columns, those of a Chakra trace are the numbers of its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from .events import (
    Collective,
    Event,
    EventRecord,
    EventWait,
    Op,
    PointToPoint,
    Synchronise,
    ValueRead,
    WorkWait,
)

T = TypeVar("T")
HostWait = Synchronise | ValueRead | WorkWait


class UseError(RuntimeError):
    """A rank's events make no sense: a work nobody launched, a communicator nobody announced."""


class Launch(NamedTuple):
    """``times`` launches of one operation's kernels on ``stream``; equal content, one object."""

    name: str
    stream: int
    times: int
    content: object
    site: int | None = None


@dataclass(slots=True)
class Lane(Generic[T]):
    """A stream: its last tasks (several where they started together), and what its next waits for
    besides them."""

    name: str
    last: list[T] = field(default_factory=list)
    waits: list[T] = field(default_factory=list)

    @property
    def frontier(self) -> list[T]:
        """Tasks after which everything given to this stream so far has run."""
        # Each once: streams that wait for each other by turns would double them every time.
        return list(dict.fromkeys([*self.last, *self.waits])) if self.waits else [*self.last]

    def run(self, last: list[T]) -> None:
        """These are the stream's last tasks from now on; they have waited for its waits."""
        self.last, self.waits = last, []


@dataclass(slots=True)
class Batch(Generic[T]):
    """A grouped point-to-point call: its members start after ``before``; who waits for one of them
    waits for ``done``, since they are one kernel."""

    event: PointToPoint
    lane: str
    before: list[T]
    done: list[T] = field(default_factory=list)


class TaskMaker(Protocol[T]):
    """Makes the tasks of a walk. A ``lane`` is as it was before: its frontier comes first."""

    def kernel(self, launch: Launch, lane: Lane[T]) -> T | None:
        """Device work of an operation; None where there is nothing to run."""
        ...

    def communication(
        self, event: Collective | PointToPoint, lane: Lane[T], before: Sequence[T]
    ) -> T:
        """A rank's part of a communication on its communicator's lane, after ``before`` too."""
        ...

    def open_batch(self, event: PointToPoint, lane: Lane[T], before: Sequence[T]) -> Batch[T]:
        """The batch that begins with ``event``, after ``before`` and the lane's frontier."""
        ...

    def batched(self, event: PointToPoint, batch: Batch[T]) -> T:
        """One send or receive of a batch."""
        ...

    def recorded(self, event: EventRecord, frontier: Sequence[T]) -> None:
        """An event was recorded behind ``frontier``."""
        ...

    def host_waits(self, event: HostWait, waits: Mapping[str, Sequence[T]]) -> T | None:
        """The host stands still until tasks, by the lane they are on, have run."""
        ...


class RankWalk(Generic[T]):
    """Walks the events of one rank.

    Args:
        rank: whose events they are.
        maker: of the tasks.
        whole: the walk begins with the trace, so that works are launched before they are waited
            for; otherwise what was launched earlier counts as done.
    """

    def __init__(self, rank: int, maker: TaskMaker[T], *, whole: bool = True) -> None:
        self._rank = rank
        self._maker = maker
        self._whole = whole
        self._lanes: dict[str, Lane[T]] = {}
        self._streams: dict[int, Lane[T]] = {}
        # Tasks with the lane they are on.
        self._works: dict[int, tuple[str, list[T]]] = {}
        self._events: dict[int, tuple[str, list[T]]] = {}
        self._batch: Batch[T] | None = None

    def take(self, event: Event, launches: Sequence[Launch] = ()) -> T | None:
        """Take one event, with what it launches; returns the task that runs for it, or at which
        the host waits.

        Raises:
            UseError: for events that make no sense.
        """
        task = None
        for launch in launches:
            task = self.launch(launch)
        handle = _HANDLERS.get(type(event))
        return task if handle is None else handle(self, event)

    def device(self) -> dict[str, list[T]]:
        """By lane, the tasks after which everything launched so far has run."""
        return {name: lane.frontier for name, lane in self._lanes.items()}

    def forget(self, is_past: Callable[[T], bool]) -> None:
        """Let go of tasks that can hold nothing up any more."""
        held = [tasks for _, tasks in (*self._works.values(), *self._events.values())]
        for lane in self._lanes.values():
            held += [lane.last, lane.waits]
        for tasks in held:
            tasks[:] = [task for task in tasks if not is_past(task)]

    def _lane(self, name: str) -> Lane[T]:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name)
        return lane

    def _stream(self, number: int) -> Lane[T]:
        lane = self._streams.get(number)
        if lane is None:
            lane = self._streams[number] = self._lane(f"stream {number}")
        return lane

    def launch(self, launch: Launch) -> T | None:
        """Take one launch of an operation, which is no event to wait for; returns its task."""
        lane = self._stream(launch.stream)
        task = self._maker.kernel(launch, lane)
        if task is not None:
            lane.run([task])
        return task

    def _collective(self, event: Collective) -> T:
        # What is batched afterwards, under whatever number, begins anew.
        self._batch = None
        return self._communicate(event, f"group {event.group}")

    def _communicate(self, event: Collective | PointToPoint, name: str) -> T:
        lane = self._lane(name)
        task = self._maker.communication(event, lane, self._stream(event.stream).frontier)
        lane.run([task])
        self._works[event.work] = name, lane.last
        return task

    def _point_to_point(self, event: PointToPoint) -> T:
        name = f"group {event.group}"
        if event.batch is None:
            low, high = sorted((self._rank, event.peer))
            return self._communicate(event, f"{name} {low}-{high}")
        batch = self._batch
        if batch is None or (batch.lane, batch.event.batch) != (name, event.batch):
            lane = self._lane(name)
            before = self._stream(event.stream).frontier
            batch = self._batch = self._maker.open_batch(event, lane, before)
            lane.run(batch.done)
        task = self._maker.batched(event, batch)
        self._works[event.work] = name, batch.done
        return task

    def _work_wait(self, event: WorkWait) -> T | None:
        if event.work not in self._works:
            if self._whole:
                problem = f"waits for work {event.work}, which it never launched"
                raise UseError(f"rank {self._rank} {problem}")
            return None
        lane, tasks = self._works[event.work]
        self._stream(event.stream).waits += tasks
        return self._maker.host_waits(event, {lane: tasks}) if event.blocks_host else None

    def _event_record(self, event: EventRecord) -> None:
        lane = self._stream(event.stream)
        frontier = lane.frontier
        self._events[event.event] = lane.name, frontier
        self._maker.recorded(event, frontier)

    def _event_wait(self, event: EventWait) -> None:
        # An event that was never recorded holds nobody up, as on a device.
        if event.event in self._events:
            self._stream(event.stream).waits += self._events[event.event][1]

    def _synchronise(self, event: Synchronise) -> T | None:
        if event.number is None:
            return self._maker.host_waits(event, self.device())
        if event.scope == "stream":
            lane = self._stream(event.number)
            return self._maker.host_waits(event, {lane.name: lane.frontier})
        waits = (self._events[event.number],) if event.number in self._events else ()
        return self._maker.host_waits(event, dict(waits))

    def _value_read(self, event: ValueRead) -> T | None:
        lane = self._stream(event.stream)
        return self._maker.host_waits(event, {lane.name: lane.frontier})


_HANDLERS: dict[type, Callable[[RankWalk[Any], Any], Any]] = {
    Collective: RankWalk._collective,
    PointToPoint: RankWalk._point_to_point,
    WorkWait: RankWalk._work_wait,
    EventRecord: RankWalk._event_record,
    EventWait: RankWalk._event_wait,
    Synchronise: RankWalk._synchronise,
    ValueRead: RankWalk._value_read,
}
WALKED = frozenset(_HANDLERS)
"""Events that make tasks, or make something wait."""


# What each launch of a rank must wait for, as a graph: the walk of the rank with nodes as tasks.
#
# A node waits for what is before it on its stream, for the streams, events and communications that
# its stream was made to wait for, and for what the host waited for before it launched.

_HOST = "host"


class Dependencies:
    """Follows a trace: give it every event in order, ask it about launches."""

    def __init__(self, rank: int) -> None:
        self._walk = RankWalk(rank, self, whole=False)
        self._node = 0
        # What the next launch waits for besides the host.
        self._waits: list[int] = []
        # By lane: what is last there has waited for what was before.
        self._host: dict[str, Sequence[int]] = {}

    def host_work(self, node: int) -> tuple[int, ...]:
        """The host itself works: ``node`` waits for what the host did; launches wait for it."""
        waits = self._of_host()
        self._host = {_HOST: (node,)}
        return tuple(sorted(waits))

    def launch(self, node: int, event: Op | Collective | PointToPoint) -> tuple[int, ...]:
        """``event`` is launched as ``node``: what it waits for, in ascending order."""
        self._node = node
        self.follow(event)
        return tuple(sorted(self._of_host().union(self._waits)))

    def follow(self, event: Event) -> None:
        """Any event that is no launch."""
        launches = [Launch(event.name, event.stream, 1, None)] if isinstance(event, Op) else []
        self._walk.take(event, launches)

    # The walk's tasks

    def kernel(self, launch: Launch, lane: Lane[int]) -> int:
        self._waits = lane.frontier
        return self._node

    def communication(
        self, event: Collective | PointToPoint, lane: Lane[int], before: Sequence[int]
    ) -> int:
        self._waits = [*before, *lane.frontier]
        return self._node

    def open_batch(
        self, event: PointToPoint, lane: Lane[int], before: Sequence[int]
    ) -> Batch[int]:
        return Batch(event, lane.name, [*before, *lane.frontier])

    def batched(self, event: PointToPoint, batch: Batch[int]) -> int:
        self._waits = batch.before
        batch.done.append(self._node)
        return self._node

    def recorded(self, event: EventRecord, frontier: Sequence[int]) -> None:
        """Graphs have no times."""

    def host_waits(self, event: HostWait, waits: Mapping[str, Sequence[int]]) -> None:
        for lane, nodes in waits.items():
            if max(nodes, default=-1) >= max(self._host.get(lane, ()), default=-1):
                self._host[lane] = nodes

    def _of_host(self) -> set[int]:
        return {node for nodes in self._host.values() for node in nodes}
