"""Playing a program without a clock: each task once everything before it is known.

Main streams are visited in order of their dependencies. A *side* stream, whose tasks depend on
nothing but the tasks of its own main stream, is brought forward together with that stream:
alone while the main stream waits, slowed and slowing while it runs.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import numpy as np

from .loops import Loop


def _sweep(  # type: ignore[no-untyped-def]
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
    side,
):
    """Start, end and last releaser of each task, and how many tasks could be played.

    The arguments are the fields of ``engine.Tasks``.
    """
    n = len(work)
    streams = len(order_start) - 1
    start = np.zeros(n)
    end = np.zeros(n)
    released_by = np.full(n, -1, np.int64)
    ready = np.zeros(n)
    front = order_start[:-1].copy()
    # How far a stream is played, and what its first task, if it has begun, has left to do.
    clock = np.zeros(streams)
    left = np.full(streams, -1.0)

    on_side = np.zeros(n, np.bool_)
    for stream in range(streams):
        if side[stream] >= 0:
            for place in range(order_start[side[stream]], order_start[side[stream] + 1]):
                on_side[stream_tasks[place]] = True
    # A main task waits for main tasks, for its turn on each of its streams, and until the side
    # stream is past the place in `awaits`; a side task waits for main tasks.
    waiting = np.zeros(n, np.int64)
    awaits = np.full(n, -1, np.int64)
    for place in range(len(stream_tasks)):
        task = stream_tasks[place]
        if on_side[task]:
            for edge in range(successor_start[task], successor_start[task + 1]):
                awaits[successors[edge]] = max(awaits[successors[edge]], place)
        else:
            waiting[task] += 1
    for task in range(n):
        if not on_side[task]:
            for edge in range(successor_start[task], successor_start[task + 1]):
                waiting[successors[edge]] += 1

    able = np.empty(n, np.int64)
    count = 0
    for stream in range(streams):
        if front[stream] < order_start[stream + 1]:
            task = stream_tasks[front[stream]]
            if not on_side[task]:
                waiting[task] -= 1
                if waiting[task] == 0:
                    able[count] = task
                    count += 1
    finished = 0
    while count > 0:
        count -= 1
        task = able[count]
        begin = ready[task]
        for spot in range(stream_start[task], stream_start[task + 1]):
            begin = max(begin, clock[task_streams[spot]])
        side_stream = side[task_streams[stream_start[task]]]
        if side_stream < 0:
            now = begin + work[task]
        else:
            last = order_start[side_stream + 1]
            # The side stream alone: past what the task awaits, then up to where it begins.
            while front[side_stream] < last:
                other = stream_tasks[front[side_stream]]
                if waiting[other] != 0:
                    break
                since, todo = _resume(other, side_stream, clock, left, ready, work)
                awaited = front[side_stream] <= awaits[task]
                if not awaited and since >= begin:
                    break
                if left[side_stream] < 0.0:
                    start[other] = since
                if not awaited and since + todo > begin:
                    left[side_stream] = since + todo - begin
                    clock[side_stream] = begin
                    break
                _end_side(
                    other, since + todo, side_stream, end, clock, left, front, ready, released_by,
                    successor_start, successors, lags,
                )  # fmt: skip
                finished += 1
                begin = max(begin, ready[task])
            if front[side_stream] <= awaits[task]:
                # What it awaits waits for a task behind it.
                continue
            # Both at once, until the task ends or no side task can run.
            now = begin
            todo_main = work[task]
            while front[side_stream] < last:
                other = stream_tasks[front[side_stream]]
                if waiting[other] != 0:
                    break
                since, todo = _resume(other, side_stream, clock, left, ready, work)
                if since >= now + todo_main:
                    break
                if left[side_stream] < 0.0:
                    start[other] = since
                if since > now:
                    todo_main -= since - now
                    now = since
                on_main = slowdown[kind[task], kind[other]]
                on_other = slowdown[kind[other], kind[task]]
                if todo_main * on_main < todo * on_other:
                    now += todo_main * on_main
                    left[side_stream] = todo - todo_main * on_main / on_other
                    clock[side_stream] = now
                    todo_main = 0.0
                    break
                now += todo * on_other
                todo_main = max(0.0, todo_main - todo * on_other / on_main)
                _end_side(
                    other, now, side_stream, end, clock, left, front, ready, released_by,
                    successor_start, successors, lags,
                )  # fmt: skip
                finished += 1
            now += todo_main
        start[task] = begin
        end[task] = now
        finished += 1
        for spot in range(stream_start[task], stream_start[task + 1]):
            stream = task_streams[spot]
            clock[stream] = now
            front[stream] += 1
            if front[stream] < order_start[stream + 1]:
                after = stream_tasks[front[stream]]
                waiting[after] -= 1
                if waiting[after] == 0:
                    able[count] = after
                    count += 1
        for edge in range(successor_start[task], successor_start[task + 1]):
            after = successors[edge]
            release = now + lags[edge]
            if released_by[after] < 0 or release > ready[after]:
                ready[after] = release
                released_by[after] = task
            waiting[after] -= 1
            if waiting[after] == 0 and not on_side[after]:
                able[count] = after
                count += 1

    # Side tasks that no main task came after.
    for stream in range(streams):
        side_stream = side[stream]
        if side_stream < 0 or front[stream] < order_start[stream + 1]:
            continue
        while front[side_stream] < order_start[side_stream + 1]:
            other = stream_tasks[front[side_stream]]
            since, todo = _resume(other, side_stream, clock, left, ready, work)
            if left[side_stream] < 0.0:
                start[other] = since
            _end_side(
                other, since + todo, side_stream, end, clock, left, front, ready, released_by,
                successor_start, successors, lags,
            )  # fmt: skip
            finished += 1
    return start, end, released_by, finished


def _resume(task, stream, clock, left, ready, work):  # type: ignore[no-untyped-def]
    """Since when the first task of a side stream runs, or could, and what it has left to do."""
    if left[stream] < 0.0:
        return max(clock[stream], ready[task]), work[task]
    return clock[stream], left[stream]


def _end_side(  # type: ignore[no-untyped-def]
    task,
    now,
    stream,
    end,
    clock,
    left,
    front,
    ready,
    released_by,
    successor_start,
    successors,
    lags,
):
    """End the first task of a side stream and note what it releases."""
    end[task] = now
    clock[stream] = now
    left[stream] = -1.0
    front[stream] += 1
    for edge in range(successor_start[task], successor_start[task + 1]):
        after = successors[edge]
        release = now + lags[edge]
        if released_by[after] < 0 or release >= ready[after]:
            ready[after] = release
            released_by[after] = task


sweep = Loop(_sweep, _resume, _end_side)
