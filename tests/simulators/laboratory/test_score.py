import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.laboratory.score import Summary, summarise, summarise_by

ERRORS = st.lists(st.floats(-1, 10, allow_nan=False), min_size=1, max_size=50)


def test_closed_form():
    found = summarise([0.1, -0.2, 0.3, -0.4], skipped=2)
    assert found.n == 4
    assert found.skipped == 2
    assert found.median_abs_error == pytest.approx(0.25)
    assert found.mean_abs_error == pytest.approx(0.25)
    assert found.p90_abs_error == pytest.approx(0.37)
    assert found.bias == pytest.approx(-0.05)


def test_nothing_to_sum_up():
    assert summarise([], 3) == Summary(0, 3, None, None, None, None)


@given(ERRORS)
def test_magnitudes_are_ordered_and_bound_the_bias(errors):
    found = summarise(errors)
    largest = max(abs(error) for error in errors)
    slack = 1e-9
    assert 0 <= found.median_abs_error <= found.p90_abs_error + slack <= largest + 2 * slack
    assert abs(found.bias) <= found.mean_abs_error + slack


@given(ERRORS, st.randoms())
def test_the_order_of_rows_does_not_matter(errors, random):
    shuffled = list(errors)
    random.shuffle(shuffled)
    one, other = summarise(errors), summarise(shuffled)
    assert one.n == other.n
    assert one.median_abs_error == other.median_abs_error
    assert one.mean_abs_error == pytest.approx(other.mean_abs_error)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.floats(-1, 1)), max_size=30))
def test_groups_share_out_the_rows(items):
    groups = summarise_by(items, lambda item: item[0], lambda item: item[1])
    assert list(groups) == sorted({name for name, _ in items})
    assert sum(group.n for group in groups.values()) == sum(e is not None for _, e in items)
    assert sum(group.n + group.skipped for group in groups.values()) == len(items)
