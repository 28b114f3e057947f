"""What each launch of a rank must wait for, as a graph: the walk of the rank with nodes as tasks.

A node waits for what is before it on its stream, for the streams, events and communications that
its stream was made to wait for, and for what the host waited for before it launched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainscout.simulators.virtual_cluster.traces.events import (
    Collective,
    Event,
    EventRecord,
    Op,
    PointToPoint,
)
from trainscout.simulators.virtual_cluster.traces.rank_walk import (
    Batch,
    HostWait,
    Lane,
    Launch,
    RankWalk,
)

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
