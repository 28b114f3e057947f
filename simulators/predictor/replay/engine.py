"""The event loop: tasks on streams, rendezvous, lagged dependencies, and rates.

The nouns:

- A *stream* runs its tasks in the given order, one at a time, and belongs to one rank.
- A *task* has an amount of ``work`` (seconds at full rate) and sits on one or more streams.
  On several (a collective, a send with its receive) it is a rendezvous: it starts when it
  is at the front of all of them, and occupies all until it ends.
- A *dependency* releases a task ``lag`` seconds after another ends.
- A *rate*: a task that shares its rank with others runs at one over its slowdown,
  ``1 + sum_j (slowdown[kind, kind_j] - 1)`` over what runs beside it.

Starting or ending a task changes the rates on its ranks and nothing else.

Two ways to play the same program. The event loop plays any. The sweep visits tasks in order of
their dependencies, without a clock, which is an order of magnitude faster; it needs a program
in which nothing slows anything, or only a rank's *side* stream and its *main* stream slow each
other, the side stream depending on nothing but that main stream.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.network.indexed_heap import sift_down, sift_up

from .loops import Loop
from .sweep import sweep

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NO_TASK = -1
NO_STREAM = -1


@dataclass(frozen=True, eq=False, repr=False)
class Tasks:
    """A program for the engine; ``n`` tasks, CSR arrays for everything one-to-many.

    ``work``, ``kind`` (row of ``slowdown``): shape (n,). ``task_streams[stream_start[t] :
    stream_start[t + 1]]`` are a task's streams. ``successors`` with ``lags`` are released by a
    task's end. ``stream_tasks[order_start[s] : order_start[s + 1]]`` is a stream's order.
    ``stream_rank`` maps a stream to its rank. ``slowdown``: shape (kinds, kinds). ``side`` of a
    main stream is its side stream, else ``NO_STREAM``; None: the program has no such pairs.
    """

    work: Floats
    kind: Ints
    stream_start: Ints
    task_streams: Ints
    successor_start: Ints
    successors: Ints
    lags: Floats
    order_start: Ints
    stream_tasks: Ints
    stream_rank: Ints
    slowdown: Floats
    side: Ints | None = None

    @property
    def arrays(self) -> tuple[Floats | Ints, ...]:
        """What every loop over tasks takes: all but how streams belong together."""
        flow = (self.successor_start, self.successors, self.lags, self.order_start)
        own = (self.work, self.kind, self.stream_start, self.task_streams)
        return *own, *flow, self.stream_tasks, self.slowdown


@dataclass(frozen=True, eq=False, repr=False)
class Times:
    """When each task started and ended, and whose end released it last (``NO_TASK``: none)."""

    start: Floats
    end: Floats
    released_by: Ints


def run(tasks: Tasks) -> Times:
    """Play the program.

    Raises:
        RuntimeError: when tasks wait for each other and none can start.
    """
    side = tasks.side
    if side is None and (tasks.slowdown == 1.0).all():
        side = np.full(len(tasks.stream_rank), NO_STREAM, dtype=np.int64)
    count = len(tasks.work)
    start, end, released_by, finished = (
        loop(count, *tasks.arrays, tasks.stream_rank)
        if side is None
        else sweep(count, *tasks.arrays, side)
    )
    if finished != count:
        problem = f"{count - finished} of {count} tasks wait for each other"
        raise RuntimeError(f"replay deadlock: {problem}")
    return Times(start, end, released_by)


def _schedule(heap, place, key, size, item, time):  # type: ignore[no-untyped-def]
    """Put an event into the heap, or move it when it is already there."""
    at = place[item]
    if at < 0:
        key[item] = time
        heap[size] = item
        sift_up(heap, place, key, size)
        return size + 1
    earlier = time < key[item]
    key[item] = time
    if earlier:
        sift_up(heap, place, key, at)
    else:
        sift_down(heap, place, key, at, size)
    return size


def _take(heap, place, key, size):  # type: ignore[no-untyped-def]
    """Remove the first event, which the caller has read."""
    place[heap[0]] = -1
    size -= 1
    if size > 0:
        heap[0] = heap[size]
        sift_down(heap, place, key, 0, size)
    return size


def _loop(  # type: ignore[no-untyped-def]
    work,
    kind,
    stream_start,
    task_streams,
    successor_start,
    successors,
    lags,
    order_start,
    stream_tasks,
    slowdown,
    stream_rank,
):
    n = len(work)
    streams = len(order_start) - 1
    ranks = 0
    for stream in range(streams):
        ranks = max(ranks, stream_rank[stream] + 1)
    # At most one task of each of its streams runs on a rank.
    streams_of_rank = np.zeros(ranks, np.int64)
    most = 0
    for stream in range(streams):
        streams_of_rank[stream_rank[stream]] += 1
        most = max(most, streams_of_rank[stream_rank[stream]])

    start = np.zeros(n)
    end = np.zeros(n)
    released_by = np.full(n, -1, np.int64)
    waiting = np.zeros(n, np.int64)
    for edge in range(len(successors)):
        waiting[successors[edge]] += 1
    ready = np.zeros(n)
    front = order_start[:-1].copy()
    busy = np.zeros(streams, np.bool_)

    started = np.zeros(n, np.bool_)
    left = work.copy()
    slowed = np.ones(n)
    since = np.zeros(n)
    running = np.full((ranks, most), -1, np.int64)
    running_count = np.zeros(ranks, np.int64)
    changed = np.zeros(ranks, np.bool_)
    changed_ranks = np.empty(ranks, np.int64)
    changed_count = 0

    # Event t < n is the end of task t, event n + t its release after a lag.
    heap = np.empty(2 * n + 1, np.int64)
    place = np.full(2 * n, -1, np.int64)
    key = np.zeros(2 * n)
    size = 0
    # Tasks that may now be able to start.
    candidates = np.empty(streams + n, np.int64)
    pending = 0
    for stream in range(streams):
        if order_start[stream] < order_start[stream + 1]:
            candidates[pending] = stream_tasks[order_start[stream]]
            pending += 1

    now = 0.0
    finished = 0
    while True:
        for at in range(pending):
            task = candidates[at]
            if started[task] or waiting[task] != 0 or ready[task] > now:
                continue
            able = True
            for spot in range(stream_start[task], stream_start[task + 1]):
                stream = task_streams[spot]
                if busy[stream] or stream_tasks[front[stream]] != task:
                    able = False
                    break
            if not able:
                continue
            started[task] = True
            start[task] = now
            since[task] = now
            for spot in range(stream_start[task], stream_start[task + 1]):
                stream = task_streams[spot]
                busy[stream] = True
                rank = stream_rank[stream]
                count = running_count[rank]
                if count > 0 and running[rank, count - 1] == task:
                    continue
                running[rank, count] = task
                running_count[rank] = count + 1
                if count > 0 and not changed[rank]:
                    changed[rank] = True
                    changed_ranks[changed_count] = rank
                    changed_count += 1
            size = _schedule(heap, place, key, size, task, now + left[task])
        pending = 0

        for at in range(changed_count):
            rank = changed_ranks[at]
            changed[rank] = False
            for slot in range(running_count[rank]):
                task = running[rank, slot]
                slow = 1.0
                for spot in range(stream_start[task], stream_start[task + 1]):
                    here = stream_rank[task_streams[spot]]
                    total = 1.0
                    for other in range(running_count[here]):
                        concurrent = running[here, other]
                        if concurrent != task:
                            total += slowdown[kind[task], kind[concurrent]] - 1.0
                    slow = max(slow, total)
                if slow != slowed[task]:
                    left[task] = max(0.0, left[task] - (now - since[task]) / slowed[task])
                    since[task] = now
                    slowed[task] = slow
                    size = _schedule(heap, place, key, size, task, now + left[task] * slow)
        changed_count = 0

        if size == 0:
            break
        now = key[heap[0]]
        # Everything that happens at this instant, before anything new starts.
        while size > 0 and key[heap[0]] == now:
            item = heap[0]
            size = _take(heap, place, key, size)
            if item >= n:
                candidates[pending] = item - n
                pending += 1
                continue
            task = item
            end[task] = now
            finished += 1
            for spot in range(stream_start[task], stream_start[task + 1]):
                stream = task_streams[spot]
                rank = stream_rank[stream]
                for slot in range(running_count[rank]):
                    if running[rank, slot] == task:
                        running_count[rank] -= 1
                        running[rank, slot] = running[rank, running_count[rank]]
                        if running_count[rank] > 0 and not changed[rank]:
                            changed[rank] = True
                            changed_ranks[changed_count] = rank
                            changed_count += 1
                        break
                front[stream] += 1
                if front[stream] < order_start[stream + 1]:
                    busy[stream] = False
                    candidates[pending] = stream_tasks[front[stream]]
                    pending += 1
            for edge in range(successor_start[task], successor_start[task + 1]):
                after = successors[edge]
                release = now + lags[edge]
                if release >= ready[after]:
                    ready[after] = release
                    released_by[after] = task
                waiting[after] -= 1
                if waiting[after] == 0:
                    if ready[after] <= now:
                        candidates[pending] = after
                        pending += 1
                    else:
                        size = _schedule(heap, place, key, size, n + after, ready[after])
    return start, end, released_by, finished


loop = Loop(_loop, sift_up, sift_down, _schedule, _take)
