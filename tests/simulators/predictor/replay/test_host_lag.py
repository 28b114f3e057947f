"""The device waits for a host that had to wait for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.jobs import MOE, TINY, make_job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.replay.host import SYNC_LAUNCHES, host_lag_s
from trainscout.simulators.predictor.replay.priced import launches_of
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.ir import Streaming

SYNC = (SYNC_LAUNCHES, None)
Work = list[tuple[int, float | None]]


def test_without_a_wait_a_block_has_no_lag_of_its_own() -> None:
    assert host_lag_s([(1, 1.0), (100, 0.0)], 1.0) == 0


def test_replayed_graphs_do_not_lag() -> None:
    assert host_lag_s([(1, 1.0), SYNC], 0.0) == 0


@pytest.mark.parametrize(
    ("work", "lag"),
    [
        # At the wait both stand still; six launches' time later the next kernel arrives.
        ([(1, 50.0), SYNC], SYNC_LAUNCHES + 1),
        # The second kernel is launched while the first runs.
        ([SYNC, (1, 5.0), (1, 50.0)], SYNC_LAUNCHES + 1),
        # Short kernels each wait for their own launch, long ones let the host get ahead.
        ([SYNC, (1, 0.25), (1, 0.25), (1, 50.0)], SYNC_LAUNCHES + 1 + 2 * 0.75),
        ([SYNC, (1, 50.0), (1, 0.25), (1, 0.25)], SYNC_LAUNCHES + 1),
    ],
)
def test_what_follows_the_wait_is_launched_first(work: Work, lag: float) -> None:
    assert host_lag_s(work, 1.0) == pytest.approx(lag)


@given(
    before=st.lists(st.tuples(st.integers(1, 9), st.floats(0, 20)), max_size=6),
    after=st.lists(st.tuples(st.integers(1, 9), st.floats(0, 20)), min_size=1, max_size=6),
)
def test_lag_is_at_least_the_wait_and_at_most_all_launches(
    before: list[tuple[int, float]], after: list[tuple[int, float]]
) -> None:
    launches = sum(count for count, _ in (*before, *after))
    lag = host_lag_s([*before, SYNC, *after], 1.0)
    assert SYNC_LAUNCHES + 1 - 1e-9 <= lag <= SYNC_LAUNCHES + launches + 1e-9


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


def test_without_experts_graphs_cover_all() -> None:
    whole = step_s(TINY, cuda_graphs=True)
    assert step_s(TINY, cuda_graphs=True, graphs_leave_experts=True) == whole


@pytest.mark.parametrize(("kind", "calls"), [("cast", 5), ("cast_fp4", 2)])
def test_casts_to_four_bits_are_fewer_calls_than_kernels(kind: str, calls: int) -> None:
    """A largest value, a cast and the order of scales: five kernels."""
    kernels = [Streaming("kernels", kind, 8, launches) for launches in (2, 1, 2)]
    assert sum(map(launches_of, kernels)) == calls
