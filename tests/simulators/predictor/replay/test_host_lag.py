"""The device waits for a host that had to wait for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.predictor.replay.host_lag import SYNC_LAUNCHES, host_lag_s

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
