"""The sweep over main and side streams against the slow twin and the event loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.predictor.replay.programs import Program, play
from tests.simulators.predictor.replay.test_timeline import wide_job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.replay.assemble import Assembler
from trainscout.simulators.predictor.replay.engine import NO_STREAM, Tasks, run
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.workload.megatron import build_workload


def paired(program: Program) -> Tasks:
    """Streams 2r are main, 2r + 1 their sides."""
    tasks = program.tasks()
    side = np.full(len(tasks.stream_rank), NO_STREAM, dtype=np.int64)
    side[::2] = np.arange(1, len(side), 2)
    return replace(tasks, side=side)


@st.composite
def paired_programs(draw: st.DrawFn) -> Program:
    """Main and side streams of a few ranks that agree with one hidden order of the tasks."""
    n = draw(st.integers(1, 14))
    ranks = draw(st.integers(1, 3))
    seconds = st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0]) | st.floats(0, 10)
    work = draw(st.lists(seconds, min_size=n, max_size=n))
    hidden = draw(st.permutations(range(n)))
    stream = draw(st.lists(st.integers(0, 2 * ranks - 1), min_size=n, max_size=n))
    orders = [[task for task in hidden if stream[task] == which] for which in range(2 * ranks)]
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=14))
    edges = []
    for pair in pairs:
        before, after = hidden[min(pair)], hidden[max(pair)]
        sides = [stream[before] % 2, stream[after] % 2]
        same_rank = stream[before] // 2 == stream[after] // 2
        if before != after and (sides == [0, 0] or (sum(sides) == 1 and same_rank)):
            edges.append((before, after, draw(st.sampled_from([0.0, 0.0, 1.0, 0.3]))))
    factor = st.sampled_from([1.0, 1.5, 2.0]) | st.floats(1, 4)
    slowdown = draw(st.lists(st.lists(factor, min_size=4, max_size=4), min_size=4, max_size=4))
    kinds = [draw(st.integers(0, 1)) + 2 * (stream[task] % 2) for task in range(n)]
    owners = [which // 2 for which in range(2 * ranks)]
    return Program(work, [[which] for which in stream], edges, owners, kinds, slowdown, orders)


@given(program=paired_programs())
def test_agrees_with_the_slow_twin(program: Program) -> None:
    times = run(paired(program))
    start, end = play(program)
    assert times.start == pytest.approx(start, rel=1e-9, abs=1e-9)
    assert times.end == pytest.approx(end, rel=1e-9, abs=1e-9)


def test_a_main_task_that_awaits_a_side_task_behind_it_is_a_deadlock() -> None:
    program = Program(
        [1.0, 1.0],
        [[0], [1]],
        [(0, 1, 0.0), (1, 0, 0.0)],
        ranks=[0, 0],
        kinds=[0, 1],
        slowdown=[[1.0, 1.0], [1.0, 1.0]],
    )
    with pytest.raises(RuntimeError, match="deadlock: 2 of 2 tasks"):
        run(paired(program))


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(tp=4, pp=4, vpp=2, sp=True),
        Recipe(tp=2, pp=2, sp=True, overlap_grad_reduce=True, overlap_param_gather=True),
        Recipe(tp=2, pp=4, vpp=2, overlap_grad_reduce=True, zero_stage=0),
        Recipe(tp=4, zero_stage=3, sp=True),
        Recipe(tp=4, zero_stage=2, sp=True),
    ],
    ids=["dp 1", "zero 1", "zero 0", "zero 3", "zero 2"],
)
def test_real_steps_take_the_same_time_on_the_event_loop(recipe: Recipe) -> None:
    job = wide_job(recipe)
    workload = build_workload(job)
    pricer = Pricer(job.gpu, job.cluster, job.framework, workload.communicators)
    tasks = Assembler(job, workload, pricer).assemble(job.num_micro_batches).tasks
    swept, played = run(tasks), run(replace(tasks, side=None))
    assert swept.start == pytest.approx(played.start, rel=1e-9, abs=1e-12)
    assert swept.end == pytest.approx(played.end, rel=1e-9, abs=1e-12)
    assert tasks.side is not None
