"""The event loop against hand-computed times, a slow twin, and bounds that always hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.predictor.replay.programs import Program, play
from trainscout.simulators.predictor.replay.engine import NO_TASK, Tasks, Times, _loop, run

# Neutral in effect, but not all ones: keeps a program on the event loop.
ON_LOOP = [[1.0, 1.0], [1.0, 2.0]]


def both(program: Program) -> list[Times]:
    """The program swept and, with a slowdown nobody meets, on the event loop."""
    loop = replace(program, kinds=None, slowdown=ON_LOOP)
    return [run(program.tasks()), run(loop.tasks())]


def test_a_stream_runs_its_tasks_one_after_another() -> None:
    for times in both(Program([3.0, 1.0, 2.0], [[0], [0], [0]])):
        assert times.start.tolist() == [0, 3, 4]
        assert times.end.tolist() == [3, 4, 6]
        assert times.released_by.tolist() == [NO_TASK] * 3


def test_order_of_a_stream_is_given_not_by_number() -> None:
    for times in both(Program([3.0, 1.0], [[0], [0]], orders=[[1, 0]])):
        assert times.start.tolist() == [1, 0]


def test_fork_and_join() -> None:
    fork_join = Program(
        [1.0, 5.0, 2.0, 1.0],
        [[0], [1], [2], [0]],
        [(0, 1, 0.0), (0, 2, 0.0), (1, 3, 0.0), (2, 3, 0.0)],
    )
    for times in both(fork_join):
        assert times.start.tolist() == [0, 1, 1, 6]
        assert times.end.tolist() == [1, 6, 3, 7]
        assert times.released_by.tolist() == [NO_TASK, 0, 0, 1]


def test_a_lag_delays_the_release_and_holds_no_stream() -> None:
    program = Program([1.0, 1.0, 4.0], [[0], [1], [0]], [(0, 1, 2.5)])
    for times in both(program):
        assert times.start.tolist() == [0, 3.5, 1]
        assert times.end.max() == 5


def test_the_latest_release_counts_not_the_latest_end() -> None:
    program = Program([1.0, 2.0, 1.0], [[0], [1], [2]], [(0, 2, 9.0), (1, 2, 0.0)])
    for times in both(program):
        assert times.start[2] == 10
        assert times.released_by[2] == 0


def test_a_rendezvous_waits_for_its_last_stream_and_holds_both() -> None:
    program = Program([1.0, 4.0, 2.0, 1.0, 1.0], [[0], [1], [0, 1], [0], [1]])
    for times in both(program):
        assert times.start.tolist() == [0, 0, 4, 6, 6]
        assert times.end.tolist() == [1, 4, 6, 7, 7]


def test_tasks_without_work_end_when_they_start() -> None:
    program = Program([0.0, 2.0, 0.0, 0.0], [[0], [0], [1], [1]], [(1, 2, 0.0), (2, 3, 0.0)])
    for times in both(program):
        assert times.start.tolist() == [0, 0, 2, 2]
        assert times.end.tolist() == [0, 2, 2, 2]


def test_two_tasks_slow_each_other_by_different_factors() -> None:
    program = Program(
        [4.0, 1.0], [[0], [1]], ranks=[0, 0], kinds=[0, 1], slowdown=[[1.0, 2.0], [1.5, 1.0]]
    )
    times = run(program.tasks())
    # The second ends at 1.5, when the first has done 0.75 of its 4 seconds.
    assert times.end.tolist() == [4.75, 1.5]


def test_a_task_that_starts_later_slows_only_what_is_left() -> None:
    program = Program(
        [4.0, 1.0, 2.0],
        [[0], [1], [1]],
        ranks=[0, 0],
        kinds=[0, 1, 2],
        slowdown=[[1.0, 1.0, 2.0], [1.0, 1.0, 1.0], [3.0, 1.0, 1.0]],
    )
    times = run(program.tasks())
    # Beside each other from 1: rates 1/2 and 1/3. The third does 2 by 7; the first 3 by 7.
    assert times.start.tolist() == [0, 0, 1]
    assert times.end.tolist() == [7, 1, 7]


def test_slowdowns_of_several_neighbours_add_up() -> None:
    program = Program(
        [3.0, 3.0, 3.0],
        [[0], [1], [2]],
        ranks=[0, 0, 0],
        kinds=[0, 1, 1],
        slowdown=[[1.0, 1.25], [1.0, 1.0]],
    )
    times = run(program.tasks())
    # Half as fast again slower for 3 seconds: 2 of 3 done, the rest alone.
    assert times.end.tolist() == [4, 3, 3]


def test_neighbours_on_other_ranks_do_not_matter() -> None:
    slow = [[1.0, 5.0], [5.0, 1.0]]
    program = Program([2.0, 1.0], [[0], [1]], ranks=[0, 1], kinds=[0, 1], slowdown=slow)
    assert run(program.tasks()).end.tolist() == [2, 1]


def test_a_rendezvous_is_as_slow_as_on_its_slowest_rank() -> None:
    program = Program(
        [2.0, 4.0, 3.0],
        [[0, 1], [2], [3]],
        ranks=[0, 1, 0, 1],
        kinds=[0, 1, 2],
        slowdown=[[1.0, 1.5, 2.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]],
    )
    # 1.5 on one rank, 2 on the other until that neighbour ends at 3; then 0.5 left at 1.5.
    assert run(program.tasks()).end.tolist() == [3.75, 4, 3]


def test_many_streams_of_one_rank() -> None:
    count = 40
    program = Program(
        [1.0] * count,
        [[stream] for stream in range(count)],
        ranks=[0] * count,
        slowdown=[[1.5]],
    )
    assert run(program.tasks()).end == pytest.approx([1 + 0.5 * (count - 1)] * count)


CYCLE = Program([1.0, 1.0], [[0], [1]], [(0, 1, 0.0), (1, 0, 0.0)])
CROSSED = Program([1.0, 1.0, 1.0], [[0, 1], [0, 1], [0]], orders=[[2, 0, 1], [1, 0]])


@pytest.mark.parametrize(("program", "stuck"), [(CYCLE, 2), (CROSSED, 2)])
def test_waiting_for_each_other_is_an_error(program: Program, stuck: int) -> None:
    for slowdown in (None, ON_LOOP):
        same = replace(program, slowdown=slowdown)
        with pytest.raises(RuntimeError, match=f"deadlock: {stuck} of {len(program.work)} tasks"):
            run(same.tasks())


@st.composite
def programs(draw: st.DrawFn, *, rates: bool) -> Program:
    """Any program whose streams and dependencies agree with one hidden order of the tasks."""
    n = draw(st.integers(1, 14))
    streams = draw(st.integers(1, 5))
    ranks = draw(st.lists(st.integers(0, 2), min_size=streams, max_size=streams))
    seconds = st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0]) | st.floats(0, 10)
    work = draw(st.lists(seconds, min_size=n, max_size=n))
    hidden = draw(st.permutations(range(n)))
    some = st.sets(st.integers(0, streams - 1), min_size=1, max_size=min(3, streams))
    chosen = [sorted(draw(some)) for _ in range(n)]
    orders = [[task for task in hidden if stream in chosen[task]] for stream in range(streams)]
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=12))
    edges = [
        (hidden[min(pair)], hidden[max(pair)], draw(st.sampled_from([0.0, 0.0, 1.0, 0.3])))
        for pair in pairs
        if pair[0] != pair[1]
    ]
    kinds, slowdown = [0] * n, [[1.0]]
    if rates:
        count = draw(st.integers(1, 3))
        kinds = draw(st.lists(st.integers(0, count - 1), min_size=n, max_size=n))
        factor = st.sampled_from([1.0, 1.5, 2.0]) | st.floats(1, 4)
        row = st.lists(factor, min_size=count, max_size=count)
        slowdown = draw(st.lists(row, min_size=count, max_size=count))
    return Program(work, chosen, edges, ranks, kinds, slowdown, orders)


@given(program=programs(rates=True))
def test_agrees_with_the_slow_twin(program: Program) -> None:
    times = run(program.tasks())
    start, end = play(program)
    assert times.start == pytest.approx(start, rel=1e-9, abs=1e-9)
    assert times.end == pytest.approx(end, rel=1e-9, abs=1e-9)


def looped(tasks: Tasks) -> Times:
    start, end, released_by, finished = _loop(*tasks.arrays, tasks.stream_rank)
    assert finished == len(tasks.work)
    return Times(start, end, released_by)


@given(program=programs(rates=False))
def test_sweep_and_loop_agree_where_nothing_slows(program: Program) -> None:
    tasks = program.tasks()
    swept, played = run(tasks), looped(tasks)
    assert swept.start == pytest.approx(played.start, rel=1e-12, abs=1e-12)
    assert swept.end == pytest.approx(played.end, rel=1e-12, abs=1e-12)


@given(program=programs(rates=True))
def test_no_task_starts_early_or_idles_when_it_could_run(program: Program) -> None:
    times = run(program.tasks())
    for task in range(len(program.work)):
        free = [0.0]
        for stream in program.streams[task]:
            order = program.stream_orders[stream]
            place = order.index(task)
            free += [times.end[order[place - 1]]] if place else []
        releases = [
            (first, times.end[first] + lag) for first, after, lag in program.edges if after == task
        ]
        latest = max((time for _, time in releases), default=0.0)
        assert times.start[task] == pytest.approx(max(*free, latest), rel=1e-9, abs=1e-9)
        if releases:
            stated = max(time for first, time in releases if first == times.released_by[task])
            assert stated == pytest.approx(latest, rel=1e-9, abs=1e-9)
        else:
            assert times.released_by[task] == NO_TASK


@given(program=programs(rates=True))
def test_never_faster_than_its_critical_path_or_its_busiest_stream(program: Program) -> None:
    times = run(program.tasks())
    unhindered = replace(program, kinds=None, slowdown=None)
    bound = run(unhindered.tasks()).end.max()
    for order in program.stream_orders:
        assert times.end.max() >= sum(program.work[task] for task in order) - 1e-9
    assert times.end.max() >= bound - 1e-9
    durations = times.end - times.start
    assert (durations >= np.array(program.work) - 1e-9).all()


@given(program=programs(rates=True))
def test_same_program_same_times(program: Program) -> None:
    first, second = run(program.tasks()), run(program.tasks())
    assert (first.start == second.start).all()
    assert (first.end == second.end).all()
    assert (first.released_by == second.released_by).all()
