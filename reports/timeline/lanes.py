"""Threads for what may run at the same time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def lanes_of(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """A lane for each interval (start, end), such that those of one lane never overlap.

    As few lanes as there are intervals at once; an earlier interval has the lower free lane.
    """
    order = sorted(range(len(intervals)), key=lambda each: intervals[each])
    lanes = [0] * len(intervals)
    running: list[tuple[float, int]] = []
    free: list[int] = []
    for number in order:
        start, end = intervals[number]
        while running and running[0][0] <= start:
            heapq.heappush(free, heapq.heappop(running)[1])
        lane = heapq.heappop(free) if free else len(running)
        lanes[number] = lane
        heapq.heappush(running, (end, lane))
    return lanes
