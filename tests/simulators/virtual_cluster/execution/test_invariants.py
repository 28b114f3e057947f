"""What holds for any program: work is conserved, causes come first, representatives suffice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import GPU
from tests.simulators.virtual_cluster.execution.scripts import INSTANT, PAIR, Script, gemm_s
from tests.simulators.virtual_cluster.traces.megatron_like import Layout, megatron_trace
from trainscout.simulators.virtual_cluster.execution.answer import TracedStep
from trainscout.simulators.virtual_cluster.execution.step import replay_ranks
from trainscout.simulators.virtual_cluster.traces.events import EventRecord, EventWait, Op

SIZES = (512, 1024, 2048)
_CALLS = st.lists(
    st.tuples(
        st.sampled_from(["gemm", "record", "wait", "stop"]),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=25,
)


def play(*scripts: Script) -> TracedStep:
    return replay_ranks([script.trace() for script in scripts], GPU, PAIR, INSTANT)


@given(_CALLS)
def test_one_gpu_is_never_idle_and_never_faster_than_it_is(
    calls: list[tuple[str, int, int]],
) -> None:
    script = Script(0, 1)
    script.gemm(512)
    work_s = gemm_s(512, 1)
    for name, stream, number in calls:
        if name == "gemm":
            script.gemm(SIZES[number], stream)
            work_s += gemm_s(SIZES[number], 1)
        elif name == "record":
            script.record(number, stream)
        elif name == "wait":
            script.wait(number, stream)
        else:
            script.synchronise("stream", stream)
    step = play(script)
    # Something can always run, and streams share the GPU without loss.
    assert step.step_time_s == pytest.approx(work_s)


@given(_CALLS)
def test_causes_come_before_what_they_order(calls: list[tuple[str, int, int]]) -> None:
    script = Script(0, 1)
    script.gemm(512)
    for name, stream, number in calls:
        if name == "gemm":
            script.gemm(SIZES[number], stream)
        elif name == "record":
            script.record(number, stream)
        elif name == "wait":
            script.wait(number, stream)
    times = play(script).ranks[0].times
    done: dict[int, float] = {}
    recorded: dict[int, float] = {}
    for index, event in enumerate(script.events):
        if isinstance(event, Op):
            assert times.start_s[index] >= done.get(event.stream, 0.0) - 1e-12
            done[event.stream] = max(done.get(event.stream, 0.0), float(times.end_s[index]))
        elif isinstance(event, EventRecord):
            recorded[event.event] = done.get(event.stream, 0.0)
        elif isinstance(event, EventWait):
            waited = recorded.get(event.event, 0.0)
            done[event.stream] = max(done.get(event.stream, 0.0), waited)


_LENGTHS = st.lists(st.sampled_from([0, 1, 2]), min_size=2, max_size=6)


@given(st.lists(_LENGTHS, min_size=4, max_size=4))
def test_a_step_is_at_least_every_round_of_its_slowest_rank(lengths: list[list[int]]) -> None:
    rounds = min(len(each) for each in lengths)
    scripts = [Script(rank, 4) for rank in range(4)]
    for script, sizes in zip(scripts, lengths, strict=True):
        script.group("TENSOR_MODEL_PARALLEL_GROUP", 0, 1, 2, 3)
        for size in sizes[:rounds]:
            script.gemm(SIZES[size])
            script.collective("TENSOR_MODEL_PARALLEL_GROUP", 1024)
    step = play(*scripts)
    # Ranks that do the same work in another order may be played as one.
    played = [lengths[rank.rank] for rank in step.ranks]
    bound_s = sum(
        gemm_s(SIZES[max(each[number] for each in played)], 4) for number in range(rounds)
    )
    assert step.step_time_s >= bound_s * (1 - 1e-9)
    for rank in step.ranks:
        assert sum(rank.breakdown_s.values()) == pytest.approx(step.step_time_s)


LAYOUT = Layout(tp=2, dp=2, pp=2, micro_batches=4, layers=2)


@pytest.fixture(scope="module")
def everybody() -> TracedStep:
    traces = [megatron_trace(LAYOUT, rank, steps=2) for rank in range(LAYOUT.world_size)]
    return replay_ranks(traces, GPU, PAIR)


def test_a_few_ranks_stand_for_all(everybody: TracedStep) -> None:
    # One replica of every stage and tensor-parallel place, not of one pipeline.
    ranks = [rank.rank for rank in everybody.ranks]
    others = [LAYOUT.rank(tp, 1 - tp, pp) for pp in range(2) for tp in range(2)]
    few = replay_ranks([megatron_trace(LAYOUT, rank, steps=2) for rank in others], GPU, PAIR)
    assert len(few.ranks) == len(ranks)
    assert sum(rank.ranks for rank in few.ranks) == LAYOUT.world_size
    assert few.step_time_s == pytest.approx(everybody.step_time_s)
    assert few.hfu == pytest.approx(everybody.hfu)
    # Tensor-parallel rank 0 counts one tensor more in the gradient norm.
    assert few.evidence_share == pytest.approx(everybody.evidence_share, rel=1e-4)


def test_the_order_of_traces_does_not_matter(everybody: TracedStep) -> None:
    traces = [megatron_trace(LAYOUT, rank, steps=2) for rank in range(LAYOUT.world_size)]
    assert replay_ranks(traces[::-1], GPU, PAIR).step_time_s == everybody.step_time_s


def test_traffic_is_shown_by_dimension(everybody: TracedStep) -> None:
    shown = set(everybody.breakdown_s)
    assert {"compute", "tp_communication", "pp_communication", "dp_communication"} <= shown
    assert everybody.mismatches == ()
    assert sum(everybody.coverage_share.values()) == pytest.approx(1)
    flops = sum(rank.flops * rank.ranks for rank in everybody.ranks)
    # Layers of 12 h^2 parameters, three products each.
    layers = LAYOUT.layers * LAYOUT.pp * LAYOUT.dp * LAYOUT.micro_batches
    assert flops == 3 * 2 * 512 * 12 * 1024**2 * layers


def test_times_of_what_is_shown_are_in_order(everybody: TracedStep) -> None:
    for rank in everybody.ranks:
        shown = np.isfinite(rank.times.start_s)
        assert shown.any()
        assert (rank.times.end_s[shown] >= rank.times.start_s[shown]).all()
        assert rank.times.start_s[shown].min() >= 0
