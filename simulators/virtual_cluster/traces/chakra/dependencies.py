"""What each launch of a trace must wait for: streams, events and the host, as a graph.

A node waits for what is before it on its stream, for the streams, events and communications that
its stream was made to wait for, and for what the host waited for before it launched.
Communications run on their communicator's own queue (single sends and receives on one for each
peer).
"""

from __future__ import annotations

from collections import defaultdict

from trainscout.simulators.virtual_cluster.traces.events import (
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

# A queue is a stream's number, a communicator's name, or a communicator's name with a peer.
Queue = int | str | tuple[str, int]


class Dependencies:
    """Follows a trace: give it every event in order, ask it about launches."""

    def __init__(self) -> None:
        self._fronts: dict[Queue, frozenset[int]] = defaultdict(frozenset)
        # By queue, so that a later wait for the same queue takes the place of an earlier one.
        self._host: dict[Queue | None, frozenset[int]] = {}
        self._recorded: dict[int, tuple[Queue, frozenset[int]]] = {}
        self._works: dict[int, int] = {}
        self._batch: tuple[str, int | None, frozenset[int]] | None = None

    def host_work(self, node: int) -> tuple[int, ...]:
        """The host itself works: ``node`` waits for what the host did; launches wait for it."""
        waits = self._of_host()
        self._host = {None: frozenset((node,))}
        return tuple(sorted(waits))

    def launch(self, node: int, event: Op | Collective | PointToPoint) -> tuple[int, ...]:
        """``event`` is launched as ``node``: what it waits for, in ascending order."""
        waits = self._of_host() | self._fronts[event.stream]
        if isinstance(event, Op):
            self._fronts[event.stream] = frozenset((node,))
            return tuple(sorted(waits))
        self._works[event.work] = node
        queue = _queue(event)
        if isinstance(event, PointToPoint) and event.batch is not None:
            before = self._before_batch(event)
            waits |= before
            self._fronts[queue] = (self._fronts[queue] - before) | {node}
        else:
            waits |= self._fronts[queue]
            self._fronts[queue] = frozenset((node,))
        return tuple(sorted(waits))

    def _before_batch(self, event: PointToPoint) -> frozenset[int]:
        """Those that run together wait for what was on the queue before the first of them."""
        if self._batch is None or self._batch[:2] != (event.group, event.batch):
            self._batch = (event.group, event.batch, self._fronts[event.group])
        return self._batch[2]

    def follow(self, event: Event) -> None:
        """Any event that is no launch."""
        if type(event) is WorkWait:
            node = self._works.get(event.work)
            if node is not None:
                self._fronts[event.stream] |= {node}
                if event.blocks_host:
                    self._host_waits(event.stream)
        elif type(event) is EventRecord:
            self._recorded[event.event] = (event.stream, self._fronts[event.stream])
        elif type(event) is EventWait:
            self._fronts[event.stream] |= self._recorded.get(event.event, (0, frozenset()))[1]
        elif type(event) is ValueRead:
            self._host_waits(event.stream)
        elif type(event) is Synchronise:
            if event.number is None:
                for queue in list(self._fronts):
                    self._host_waits(queue)
            elif event.scope == "stream":
                self._host_waits(event.number)
            elif event.number in self._recorded:
                queue, front = self._recorded[event.number]
                self._host[queue] = front

    def _host_waits(self, queue: Queue) -> None:
        self._host[queue] = self._fronts[queue]

    def _of_host(self) -> frozenset[int]:
        return frozenset().union(*self._host.values())


def _queue(event: Collective | PointToPoint) -> Queue:
    if isinstance(event, PointToPoint) and event.batch is None:
        return (event.group, event.peer)
    return event.group
