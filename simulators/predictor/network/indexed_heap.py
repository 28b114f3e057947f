"""A binary heap of items by time, in which each knows its place: for loops that numba compiles, or
that run as plain Python.

``heap[:size]`` holds items, ``place[item]`` where each is, ``key[item]`` its time; those of one
time are ordered by number.
"""

from __future__ import annotations


def sift_up(heap, place, key, at):  # type: ignore[no-untyped-def]
    """Restore the order after the entry at ``at`` became earlier."""
    item = heap[at]
    while at > 0:
        up = (at - 1) >> 1
        above = heap[up]
        if key[above] < key[item] or (key[above] == key[item] and above < item):
            break
        heap[at] = above
        place[above] = at
        at = up
    heap[at] = item
    place[item] = at


def sift_down(heap, place, key, at, size):  # type: ignore[no-untyped-def]
    """Restore the order after the entry at ``at`` became later."""
    item = heap[at]
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        below = heap[down]
        if down + 1 < size:
            right = heap[down + 1]
            if key[right] < key[below] or (key[right] == key[below] and right < below):
                down += 1
                below = right
        if key[item] < key[below] or (key[item] == key[below] and item < below):
            break
        heap[at] = below
        place[below] = at
        at = down
    heap[at] = item
    place[item] = at
