"""The backward pass of compiled regions: which operations the compiler would have had to fuse.

Autograd numbers the nodes it makes in forward, in order. Those made inside a compiled region have
numbers of a range of their own, so that in backward the node that runs tells the region.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Protocol

from trainscout.simulators.virtual_cluster.traces.events import Begin, End, Event


class RegionMemory(Protocol):
    """Memory that tells what only lives inside a region from what outlives it."""

    def enter_region(self) -> None: ...

    def leave_region(self) -> None: ...


class _Regions:
    """Ranges of node numbers, in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._regions: list[tuple[int, int, str]] = []

    def add(self, start: int, end: int, name: str) -> None:
        """A region made the nodes from ``start`` to before ``end``; it holds those inside it."""
        while self._regions and self._regions[-1][0] >= start:
            self._regions.pop()
            self._starts.pop()
        self._regions.append((start, end, name))
        self._starts.append(start)

    def find(self, number: int) -> tuple[int, int, str] | None:
        """The region that made this node."""
        at = bisect_right(self._starts, number) - 1
        if at < 0 or number >= self._regions[at][1]:
            return None
        return self._regions[at]

    def clear(self) -> None:
        """Their nodes have run, or never will."""
        self._starts.clear()
        self._regions.clear()

    def __bool__(self) -> bool:
        return bool(self._regions)


class CompiledBackward:
    """Opens and closes ``Begin("fused", name.backward)`` as backward enters and leaves regions.

    Args:
        emit: takes the events.
        memory: learns what only lives inside a region.
        node: the autograd node the calling thread runs.
        graph_task: the backward pass it belongs to, -1 outside.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        memory: RegionMemory,
        node: Callable[[], Any],
        graph_task: Callable[[], int],
    ) -> None:
        self._emit = emit
        self._memory = memory
        self._node = node
        self._graph_task = graph_task
        self._forward = _Regions()
        # Made by recomputation, on the engine's thread, which numbers nodes for itself; they run
        # in a backward pass within the backward pass.
        self._recomputed = _Regions()
        self._nested = threading.local()
        self._open: tuple[int, int, str] | None = None

    def made(self, start: int, end: int, name: str) -> None:
        """A compiled region ran forward and made these nodes."""
        if end > start:
            recomputing = self._graph_task() != -1
            (self._recomputed if recomputing else self._forward).add(start, end, name)

    def nested_begins(self) -> None:
        """A backward pass begins within another."""
        self._nested.depth = getattr(self._nested, "depth", 0) + 1

    def nested_ends(self) -> None:
        """The backward pass within is over."""
        self.close()
        self._nested.depth -= 1
        self._recomputed.clear()

    def region(self, node: Any) -> tuple[int, int, str] | None:
        """The compiled region that made a node of the backward pass."""
        regions = self._recomputed if getattr(self._nested, "depth", 0) else self._forward
        return None if node is None or not regions else regions.find(node._sequence_nr())

    def follow(self) -> None:
        """Something is about to happen in backward: in which region?"""
        if not (self._forward or self._recomputed or self._open):
            return
        found = self.region(self._node())
        if found is self._open:
            return
        self.close()
        if found is not None:
            self._open = found
            self._emit(Begin("fused", f"{found[2]}.backward"))
            self._memory.enter_region()

    def close(self) -> None:
        """Backward has left the region it was in."""
        if self._open is not None:
            self._open = None
            self._memory.leave_region()
            self._emit(End("fused"))

    def clear(self) -> None:
        """A step is over."""
        self._forward.clear()
        self._recomputed.clear()
