"""The allocator played over a rank's trace: what is allocated, reserved and lost, over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.allocator.allocator_settings import AllocatorSettings
from trainscout.simulators.virtual_cluster.allocator.segments import Block
from trainscout.simulators.virtual_cluster.traces import events

from .allocator import Allocator, OutOfMemory

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Clock:
    """When things happened, for memory that waits for another stream.

    ``host_s[i]``: when the host issued event i. ``passed_s(stream, i)``: when the stream had run
    what was launched on it before event i.
    """

    host_s: NDArray[np.float64]
    passed_s: Callable[[int, int], float]


@dataclass(frozen=True)
class MemoryOverTime:
    """One row for every event that changed what is allocated or reserved.

    ``event`` (index into the trace), ``allocated_bytes`` (live blocks, rounded),
    ``requested_bytes`` (as asked for), ``active_bytes`` (with blocks that wait for a stream),
    ``reserved_bytes`` (segments): int64, shape (n,). ``largest_free_bytes``: of one free block
    when most was reserved. ``out_of_memory``: the failure that ended the play, at the event after
    the last row; None when the trace was played to its end.
    """

    event: Ints
    allocated_bytes: Ints
    requested_bytes: Ints
    active_bytes: Ints
    reserved_bytes: Ints
    retries: int
    largest_free_bytes: int = 0
    out_of_memory: OutOfMemory | None = None

    @property
    def peak_allocated_bytes(self) -> int:
        return int(self.allocated_bytes.max(initial=0))

    @property
    def peak_reserved_bytes(self) -> int:
        return int(self.reserved_bytes.max(initial=0))

    @property
    def at_peak(self) -> dict[str, int]:
        """When most was reserved, and of those times most allocated: bytes of blocks that were
        ``allocated``, ``deferred`` (freed, but another stream had not passed) and ``free``, and of
        the ``largest_free`` one."""
        found = dict.fromkeys(("allocated", "deferred", "free"), 0)
        if len(self.event):
            row = np.lexsort((self.allocated_bytes, self.reserved_bytes))[-1]
            held = (0, self.allocated_bytes[row], self.active_bytes[row], self.reserved_bytes[row])
            found = dict(zip(found, np.diff(held).tolist(), strict=True))
        return found | {"largest_free": self.largest_free_bytes}


def memory_over_time(
    trace_events: Sequence[events.Event],
    capacity_bytes: int,
    settings: AllocatorSettings | None = None,
    outside_bytes: int = 0,
    clock: Clock | None = None,
) -> MemoryOverTime:
    """Play a trace's allocations on a device of ``capacity_bytes`` (see ``Allocator``).

    Without a clock a block that another stream used is free at once, as where the device keeps
    pace with its host. A resized storage gets its new block on the stream it was first allocated
    on.

    Raises:
        InputError: when the trace frees, resizes or records what it never allocated.
    """
    player = _Player(trace_events, Allocator(capacity_bytes, settings, outside_bytes), clock)
    rows: list[tuple[int, int, int, int, int]] = []
    allocator, out_of_memory = player.allocator, None
    last = (0, 0, 0, 0)
    peak, largest_free = (0, 0), 0
    for index, event in enumerate(trace_events):
        handle = player.handlers.get(type(event))
        if handle is None:
            continue
        try:
            handle(index, event)
        except OutOfMemory as error:
            out_of_memory = error
            break
        figures = (
            allocator.allocated_bytes,
            allocator.requested_bytes,
            allocator.active_bytes,
            allocator.reserved_bytes,
        )
        if figures != last:
            rows.append((index, *figures))
            last = figures
            if (figures[3], figures[0]) >= peak:
                peak, largest_free = (figures[3], figures[0]), allocator.largest_free_bytes
    columns: tuple[Ints, Ints, Ints, Ints, Ints] = (*np.array(rows, np.int64).reshape(-1, 5).T,)
    return MemoryOverTime(*columns, allocator.retries, largest_free, out_of_memory)


class _Player:
    """Turns events into calls of the allocator."""

    def __init__(
        self, trace_events: Sequence[events.Event], allocator: Allocator, clock: Clock | None
    ) -> None:
        self.allocator = allocator
        self.clock = clock
        self.blocks: dict[int, Block | None] = {}
        self.stream_of: dict[int, int] = {}
        # Deferred frees by stream: when the stream has passed, and the number to release.
        self.passing: dict[int, list[tuple[float, int]]] = {}
        self.handlers: dict[type, Callable[[int, Any], None]] = {
            events.Alloc: self.alloc,
            events.Free: self.free,
            events.Resize: self.resize,
            events.RecordStream: self.record_stream,
            events.EmptyCache: self.empty_cache,
        }

    def alloc(self, index: int, event: events.Alloc) -> None:
        self.stream_of[event.storage] = event.stream
        self.blocks[event.storage] = self.take(index, event.bytes, event.stream)

    def free(self, index: int, event: events.Free) -> None:
        self.release(index, self.block(index, event.storage))
        del self.blocks[event.storage]

    def resize(self, index: int, event: events.Resize) -> None:
        old = self.block(index, event.storage)
        # The new block is there before the old one goes, whose content it takes over.
        self.blocks[event.storage] = self.take(index, event.bytes, self.stream_of[event.storage])
        self.release(index, old)

    def record_stream(self, index: int, event: events.RecordStream) -> None:
        block = self.block(index, event.storage)
        if block is not None and self.clock is not None:
            self.allocator.record_stream(block, event.stream)

    def empty_cache(self, index: int, event: object) -> None:
        self.passing.clear()
        self.allocator.empty_cache()

    def block(self, index: int, storage: int) -> Block | None:
        try:
            return self.blocks[storage]
        except KeyError:
            place = f"trace.events[{index}].storage"
            raise InputError(place, storage, "is not allocated there") from None

    def take(self, index: int, size: int, stream: int) -> Block | None:
        """A block; None for none of its bytes."""
        if self.clock is not None:
            self.pass_streams(self.clock.host_s[index])
        return self.allocator.allocate(size, stream) if size else None

    def release(self, index: int, block: Block | None) -> None:
        if block is None:
            return
        streams = block.streams or ()
        number = self.allocator.free(block)
        if number is None or self.clock is None:
            return
        for stream in streams:
            passed_s = self.clock.passed_s(stream, index)
            self.passing.setdefault(stream, []).append((passed_s, number))

    def pass_streams(self, now_s: float) -> None:
        """Let go what streams have passed by now, in order, as the allocator polls its events."""
        for stream, waiting in self.passing.items():
            done = 0
            while done < len(waiting) and waiting[done][0] <= now_s:
                done += 1
            if done:
                self.allocator.stream_passed(stream, waiting[done - 1][1])
                del waiting[:done]
