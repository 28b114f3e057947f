"""Longest paths through an acyclic graph of activities."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def longest_paths(seconds, first, followers):  # type: ignore[no-untyped-def]
    """Start and end of each activity, and how many could begin; ``first`` and ``followers`` as of
    ``Activities.followers``."""
    count = len(seconds)
    waits = np.zeros(count, np.int64)
    for other in followers:
        waits[other] += 1
    start = np.zeros(count)
    end = np.zeros(count)
    queue = np.empty(count, np.int64)
    last = 0
    for activity in range(count):
        if waits[activity] == 0:
            queue[last] = activity
            last += 1
    at = 0
    while at < last:
        activity = queue[at]
        at += 1
        end[activity] = start[activity] + seconds[activity]
        for place in range(first[activity], first[activity + 1]):
            other = followers[place]
            start[other] = max(start[other], end[activity])
            waits[other] -= 1
            if waits[other] == 0:
                queue[last] = other
                last += 1
    return start, end, last
