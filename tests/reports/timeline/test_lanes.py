"""Lanes for intervals that may overlap."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from trainscout.reports.timeline.chrome import lanes_of

intervals = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda e: (e[0], e[0] + e[1]))
)


@given(intervals)
def test_no_lane_holds_two_at_once_and_none_is_in_vain(given: list[tuple[float, float]]) -> None:
    lanes = lanes_of(given)
    by_lane: dict[int, list[tuple[float, float]]] = {}
    for interval, lane in sorted(zip(given, lanes, strict=True)):
        by_lane.setdefault(lane, []).append(interval)
    for one in by_lane.values():
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(one))
    assert sorted(by_lane) == list(range(len(by_lane)))
    most = max((sum(low <= at < high for low, high in given) for at in range(60)), default=0)
    # What takes no time may need a lane of its own for an instant.
    if all(low < high for low, high in given):
        assert len(by_lane) == most


def test_an_earlier_interval_has_the_lower_lane() -> None:
    assert lanes_of([(2.0, 4.0), (0.0, 3.0), (3.0, 5.0)]) == [1, 0, 0]
