"""Days and dollars, the front, and who meets a target."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.fakes import point
from trainscout.planning.points import answer_target, front, preferred
from trainscout.planning.study import Target

SIZES = st.lists(
    st.tuples(st.sampled_from([8, 16, 32, 64]), st.floats(0.1, 10)), min_size=1, max_size=12
)


def test_days_and_dollars_of_a_run():
    # 1e12 tokens at 131,072 tokens/s; 16 GPUs at $2 an hour; 80 % goodput.
    found = point(16, step_time_s=1.0, share=0.8)
    days = 1e12 / 131072 / 86400 / 0.8
    assert found.days == pytest.approx(days)
    assert found.usd == pytest.approx(days * 24 * 16 * 2)
    # As wide as the step's bar.
    per_second = found.days / found.best.step_time_s
    assert found.days_interval == tuple(end * per_second for end in found.best.interval_s)
    low, high = found.days_interval
    assert low <= 0.9 * days
    assert 1.2 * days <= high < 1.25 * days


@given(SIZES)
def test_the_front_is_what_nothing_beats(sizes):
    points = [point(num_gpus, step_s) for num_gpus, step_s in sizes]
    kept = front(points)

    def loss(each):
        return each.num_gpus, each.days, each.usd

    def beaten(each):
        return any(
            loss(other) != loss(each)
            and all(a <= b for a, b in zip(loss(other), loss(each), strict=True))
            for other in points
        )

    assert {loss(each) for each in kept} == {loss(each) for each in points if not beaten(each)}


def test_a_target_is_met_by_those_within_all_its_limits():
    # 88 and 44 days, 67.8k and 67.8k and 101k dollars.
    points = [point(8, 2.0), point(16, 1.0), point(32, 0.75)]
    days = points[1].days
    found = answer_target("soon", Target(days=days, usd=points[1].usd), points)
    assert found.meeting == (points[1],)
    found = answer_target("soon", Target(days=days), points)
    assert found.meeting == (points[1], points[2])
    assert tuple(found.best.values()) == (points[1], points[2], points[1])
    assert answer_target("never", Target(days=1.0), points).best["cheapest"] is None


def test_a_target_without_limits_is_met_by_all_that_fit():
    points = [point(16), point(8, 2.5)]
    found = answer_target("fits", Target(), points)
    assert found.meeting == tuple(points)
    assert found.best["smallest"] is points[1]


def test_nothing_is_preferred_among_none():
    assert preferred([], "cheapest") is None
