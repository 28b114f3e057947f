"""Events in a 4-ary heap, ordered by time and code."""

from __future__ import annotations

from trainscout.simulators.predictor.network.compiled import compiled

from .engine_arrays import EVENTS_DUE, KIND_SHIFT, SUBJECT


@compiled
def push(heap, count, time, kind, subject):  # type: ignore[no-untyped-def]
    """Put an event into the heap, ordered by time and code."""
    code = (kind << KIND_SHIFT) + subject
    at = count[EVENTS_DUE]
    count[EVENTS_DUE] += 1
    while at > 0:
        parent = (at - 1) >> 2
        if heap[parent, 0] < time or (heap[parent, 0] == time and heap[parent, 1] <= code):
            break
        heap[at, 0] = heap[parent, 0]
        heap[at, 1] = heap[parent, 1]
        at = parent
    heap[at, 0] = time
    heap[at, 1] = code


@compiled
def pop(heap, count):  # type: ignore[no-untyped-def]
    """Take the first event out of the heap."""
    count[EVENTS_DUE] -= 1
    last = count[EVENTS_DUE]
    time, moved = heap[last, 0], heap[last, 1]
    at = 0
    while True:
        child = 4 * at + 1
        if child >= last:
            break
        best = child
        for other in range(child + 1, min(child + 4, last)):
            if heap[other, 0] < heap[best, 0] or (
                heap[other, 0] == heap[best, 0] and heap[other, 1] < heap[best, 1]
            ):
                best = other
        if time < heap[best, 0] or (time == heap[best, 0] and moved <= heap[best, 1]):
            break
        heap[at, 0] = heap[best, 0]
        heap[at, 1] = heap[best, 1]
        at = best
    heap[at, 0] = time
    heap[at, 1] = moved


@compiled
def put(times, codes, heap, count):  # type: ignore[no-untyped-def]
    """Put events into the heap."""
    for row in range(len(times)):
        push(heap, count, times[row], codes[row] >> KIND_SHIFT, codes[row] & SUBJECT)
