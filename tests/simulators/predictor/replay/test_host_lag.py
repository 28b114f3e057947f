"""The device waits for a host that had to wait for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.jobs import MOE, TINY, make_job
from trainscout.simulators.predictor.interference.overlap import KERNEL_CLASSES
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.replay.assemble import Assembler
from trainscout.simulators.predictor.replay.host import SYNC_LAUNCHES, host_lag_s
from trainscout.simulators.predictor.replay.passes import sum_blocks
from trainscout.simulators.predictor.replay.priced import (
    COMPUTE,
    HOST,
    PART_INDEX,
    PARTS,
    PricedBlock,
    launches_of,
)
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.communicators import communicators
from trainscout.simulators.predictor.workload.ir import SendRecv, Streaming
from trainscout.simulators.predictor.workload.megatron import build_workload

Work = list[tuple[float, float, bool]]
# What the host takes to read what it waited for and to launch what follows.
READ = SYNC_LAUNCHES + 1


def test_a_host_that_gets_ahead_has_no_lag() -> None:
    assert host_lag_s([(1, 1.0, False), (1, 50.0, False)]) == 0


@pytest.mark.parametrize(
    ("work", "lag"),
    [
        # At the wait both stand still; six launches' time later the next kernel arrives.
        ([(READ, 50.0, True)], READ),
        # The second kernel is launched while the first runs.
        ([(READ, 5.0, True), (1, 50.0, False)], READ),
        # Short kernels each wait for their own launch, long ones let the host get ahead.
        ([(READ, 0.25, True), (1, 0.25, False), (1, 50.0, False)], READ + 2 * 0.75),
        ([(READ, 50.0, True), (1, 0.25, False), (1, 0.25, False)], READ),
    ],
)
def test_what_follows_the_wait_is_launched_first(work: Work, lag: float) -> None:
    assert host_lag_s(work) == pytest.approx(lag)


@pytest.mark.parametrize(
    ("work", "lag"),
    [
        ([(1, 50.0, False), (1, 50.0, False)], 1),
        # Short kernels each wait for their own launch, until long ones let the host get ahead.
        ([(1, 0.25, False), (1, 0.25, False), (1, 50.0, False)], 1 + 2 * 0.75),
        # At its own wait the host is as far as the device.
        ([(1, 50.0, False), (READ, 0.0, True)], 1 + READ),
    ],
)
def test_a_device_with_nothing_left_to_run_waits_for_the_first_launches(
    work: Work, lag: float
) -> None:
    assert host_lag_s(work, starts=True) == pytest.approx(lag)


OPERATIONS = st.tuples(st.floats(1, 9), st.floats(0, 20), st.just(False))


@given(
    before=st.lists(OPERATIONS, max_size=6),
    waited=st.tuples(st.floats(1, 9), st.floats(0, 20), st.just(True)),
    after=st.lists(OPERATIONS, max_size=6),
)
def test_lag_is_at_least_the_wait_and_at_most_all_launches(
    before: Work, waited: tuple[float, float, bool], after: Work
) -> None:
    work = [*before, waited, *after]
    assert waited[0] - 1e-9 <= host_lag_s(work) <= sum(each for each, _, _ in work) + 1e-9


@given(
    st.lists(
        st.tuples(st.lists(OPERATIONS, min_size=1, max_size=4), st.integers(1, 4)), max_size=4
    )
)
def test_a_pass_after_a_wait_takes_what_its_operations_take_one_by_one(
    blocks: list[tuple[Work, int]],
) -> None:
    priced = [(_priced(work), count) for work, count in blocks]
    one_by_one = [each for work, count in blocks for each in work * count]
    seconds = sum(seconds for _, seconds, _ in one_by_one)
    took = sum_blocks(priced, synced=True).seconds
    assert took == pytest.approx(seconds + host_lag_s(one_by_one, starts=True))


def _priced(work: Work) -> PricedBlock:
    seconds = sum(seconds for _, seconds, _ in work)
    part_s = np.eye(len(PARTS))[PART_INDEX[COMPUTE]] * seconds
    host_s, start_s = sum(host_s for host_s, _, _ in work), host_lag_s(work, starts=True)
    none = np.zeros((2, len(KERNEL_CLASSES)))
    return PricedBlock(seconds, part_s, host_s, start_s, none, 0, 0, 0, np.zeros(3))


def lag_s(**framework: float) -> float:
    job = make_job(MOE, nodes=2, batch=32, ep=2)
    software = replace(job.framework, host_launch_s=1e-6, **framework)
    layer = replace(build_workload(job).stages[0].chunks[0].runs[1].forward, units=1.0)
    priced = Pricer.of(replace(job, framework=software), communicators(job)).block(layer)
    return float(priced.part_s[PART_INDEX[HOST]])


@pytest.mark.parametrize("slower", [{"host_forward_s": 1e-3}, {"host_unit_s": 1.0}])
def test_all_that_the_host_does_after_a_wait_keeps_the_device_waiting(
    slower: dict[str, float],
) -> None:
    """The operations that it issues, and the next layer's hooks."""
    assert lag_s(**slower) > lag_s() + 0.9e-3


@pytest.mark.parametrize("facts", [{}, {"torch_wrappers": True}])
def test_experts_that_are_modules_have_hooks_of_their_own(facts: dict[str, bool]) -> None:
    """Under DeepSpeed's ZeRO 3; FSDP has one unit for a layer."""
    job = make_job(MOE, nodes=2, batch=32, ep=2, zero_stage=3)
    looped = replace(job.framework, loops_experts=True, **facts)
    runs = build_workload(replace(job, framework=looped)).stages[0].chunks[0].runs
    layer = next(run for run in runs if run.parameters.expert)
    assert MOE.moe is not None
    own = 0.0 if facts else MOE.moe.num_experts // 2 * 5 / 13
    assert layer.forward.units == layer.backward.units == pytest.approx(1 + own)


def step_s(model: Model, **framework: object) -> float:
    job = make_job(model, nodes=2, batch=32, ep=2 if model.moe else 1)
    software = replace(job.framework, host_launch_s=50e-6, **framework)
    return ReplaySimulator().without_error_bar(replace(job, framework=software)).step_time_s


def test_graphs_that_end_before_the_experts_leave_them_to_the_host() -> None:
    eager, whole = step_s(MOE), step_s(MOE, cuda_graphs=True)
    layers = step_s(MOE, cuda_graphs=True, graphs_leave_experts=True)
    assert whole < layers < eager
    # Once a layer and micro-batch the device waits for the host to read and to launch.
    waits = MOE.num_layers * make_job(MOE, nodes=2, batch=32, ep=2).num_micro_batches
    assert layers - whole >= waits * SYNC_LAUNCHES * 50e-6


@pytest.mark.parametrize("vpp", [1, 2])
def test_passes_that_receive_blocking_messages_begin_with_an_idle_device(vpp: int) -> None:
    job = make_job(TINY, pp=2, vpp=vpp, batch=16)

    def host_s(*, p2p_sync: bool, overlap_p2p: bool = False) -> tuple[float, list[list[float]]]:
        software = Framework(host_launch_s=50e-6, overlap_p2p=overlap_p2p, p2p_sync=p2p_sync)
        own = replace(job, framework=software)
        workload = build_workload(own)
        assembler = Assembler(own, workload, Pricer.of(own, workload.communicators))
        passes = [
            [float(row[0][PART_INDEX[HOST]]) for row in table.pass_part_s]
            for table in assembler.tables
        ]
        return ReplaySimulator().without_error_bar(own).step_time_s, passes

    (slow_s, synced), (fast_s, free) = host_s(p2p_sync=True), host_s(p2p_sync=False)
    more = np.array(synced) - np.array(free)
    # The first chunk of the first stage has its input from nobody; the last of the last stage, not
    # of the first chunk where there are two, its gradient.
    assert (more > 0).tolist() == [[False, True], [True, vpp == 2]]
    assert slow_s > fast_s
    if vpp == 2:
        beside = host_s(p2p_sync=True, overlap_p2p=True)
        assert beside == host_s(p2p_sync=False, overlap_p2p=True)


def test_without_experts_graphs_cover_all() -> None:
    whole = step_s(TINY, cuda_graphs=True)
    assert step_s(TINY, cuda_graphs=True, graphs_leave_experts=True) == whole


@pytest.mark.parametrize(("kind", "calls"), [("cast", 5), ("cast_fp4", 2)])
def test_casts_to_four_bits_are_fewer_calls_than_kernels(kind: str, calls: int) -> None:
    """A largest value, a cast and the order of scales: five kernels."""
    kernels = [Streaming("kernels", kind, 8, launches) for launches in (2, 1, 2)]
    assert sum(map(launches_of, kernels)) == calls


@pytest.mark.parametrize(("paired", "calls"), [(False, 1), (True, 2)])
def test_a_send_and_a_receive_by_themselves_are_two_calls(paired: bool, calls: int) -> None:
    assert launches_of(SendRecv("exchange", 8, "cp", paired=paired)) == calls
