"""A binary heap of flows by the time of their next event; each flow has at most one.

``heap[:size]`` holds flows, ``place[flow]`` where each is (-1: not in it), ``event[flow]`` its
time.
"""

from __future__ import annotations

from trainscout.simulators.predictor.network import indexed_heap
from trainscout.simulators.predictor.network.compiled import compiled

sift_up = compiled(indexed_heap.sift_up)
sift_down = compiled(indexed_heap.sift_down)


@compiled
def put(heap, place, event, size, flow):  # type: ignore[no-untyped-def]
    """Enter ``flow``, or move it after its event changed. Returns the new size."""
    at = place[flow]
    if at < 0:
        at = size
        heap[at] = flow
        size += 1
    sift_up(heap, place, event, at)
    sift_down(heap, place, event, place[flow], size)
    return size


@compiled
def remove(heap, place, event, size, flow):  # type: ignore[no-untyped-def]
    """Take ``flow`` out if it is in. Returns the new size."""
    at = place[flow]
    if at < 0:
        return size
    place[flow] = -1
    size -= 1
    if at < size:
        moved = heap[size]
        heap[at] = moved
        sift_up(heap, place, event, at)
        sift_down(heap, place, event, place[moved], size)
    return size


@compiled
def put_all(heap, place, event, size, flows, times, count):  # type: ignore[no-untyped-def]
    """Enter or move ``flows[:count]`` to ``times[:count]``. Returns the new size.

    Few are sifted one after another, each before the next one's time changes: sifting relies on
    all others being in order. For many the heap is built anew.
    """
    if 4 * count < size:
        for at in range(count):
            event[flows[at]] = times[at]
            size = put(heap, place, event, size, flows[at])
        return size
    for at in range(count):
        flow = flows[at]
        event[flow] = times[at]
        if place[flow] < 0:
            heap[size] = flow
            place[flow] = size
            size += 1
    for at in range((size >> 1) - 1, -1, -1):
        sift_down(heap, place, event, at, size)
    return size
