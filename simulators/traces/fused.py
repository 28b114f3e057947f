"""Tensors that a fused kernel never writes: those that only live inside of one."""

from __future__ import annotations

from collections.abc import Iterable

from simulators.traces.events import Alloc, Begin, End, Event, Free

FUSED = "fused"


def storages_within_fusions(events: Iterable[Event]) -> frozenset[int]:
    """Storages that are allocated and freed within one fused region.

    A compiler keeps what only passes between the operations it fuses in registers, so these take
    no device memory. Regions within regions count as the outermost.
    """
    depth = region = 0
    allocated: dict[int, int] = {}
    found: set[int] = set()
    for event in events:
        if isinstance(event, Begin) and event.kind == FUSED:
            region += depth == 0
            depth += 1
        elif isinstance(event, End) and event.kind == FUSED:
            depth = max(depth - 1, 0)
        elif isinstance(event, Alloc) and depth:
            allocated[event.storage] = region
        elif isinstance(event, Free) and depth and allocated.get(event.storage) == region:
            found.add(event.storage)
    return frozenset(found)
