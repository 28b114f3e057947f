from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.predictor.network.flow.schedules import HOPS, capacities, routes
from tests.simulators.predictor.network.flow.twin import rising_rates
from trainscout.simulators.predictor.network.flow.water_filling import max_min_rates
from trainscout.simulators.predictor.question.errors import InputError


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, ...]]]:
    capacity = draw(capacities)
    return capacity, draw(st.lists(routes(len(capacity)), min_size=1, max_size=25))


def padded(paths: list[tuple[int, ...]]) -> np.ndarray:
    return np.array([[*path, *[-1] * (HOPS - len(path))] for path in paths])


def test_flows_of_one_link_share_it() -> None:
    np.testing.assert_array_equal(max_min_rates([[0]] * 4, [100.0]), [25.0] * 4)


def test_what_a_bottleneck_leaves_goes_to_the_others() -> None:
    # Bertsekas and Gallager's line: two flows on each of two links, one of them on both.
    np.testing.assert_array_equal(
        max_min_rates([[0, 1], [0, -1], [1, -1]], [1.0, 3.0]), [0.5, 0.5, 2.5]
    )


def test_no_flows_have_no_rates() -> None:
    assert max_min_rates(np.empty((0, 2)), [1.0]).shape == (0,)


@given(loads())
def test_rates_are_those_of_the_exact_twin(load: tuple[list[int], list[tuple[int, ...]]]) -> None:
    capacity, paths = load
    exact = rising_rates(dict(enumerate(paths)), capacity)
    expected = [float(exact[flow]) for flow in range(len(paths))]
    np.testing.assert_allclose(max_min_rates(padded(paths), capacity), expected, rtol=1e-12)


@given(loads())
def test_every_flow_has_a_full_link_on_which_it_is_fastest(
    load: tuple[list[int], list[tuple[int, ...]]],
) -> None:
    capacity, paths = load
    rates = max_min_rates(padded(paths), capacity)
    used = np.zeros(len(capacity))
    fastest = np.zeros(len(capacity))
    for path, rate in zip(paths, rates, strict=True):
        for link in path:
            used[link] += rate
            fastest[link] = max(fastest[link], rate)
    assert (used <= np.array(capacity) * (1 + 1e-12)).all()
    for path, rate in zip(paths, rates, strict=True):
        assert any(
            used[link] >= capacity[link] * (1 - 1e-12) and rate >= fastest[link] * (1 - 1e-12)
            for link in path
        )


@given(loads(), st.randoms())
def test_order_of_flows_and_other_components_change_no_bit(
    load: tuple[list[int], list[tuple[int, ...]]], random: object
) -> None:
    capacity, paths = load
    rates = max_min_rates(padded(paths), capacity)
    order = list(range(len(paths)))
    random.shuffle(order)  # type: ignore[attr-defined]
    # The same load once more beside it, on links of its own.
    beside = [tuple(link + len(capacity) for link in path) for path in paths]
    both = max_min_rates(
        padded(beside + [paths[flow] for flow in order]), capacity + capacity[::-1]
    )
    np.testing.assert_array_equal(both[len(paths) :], rates[order])


@given(loads())
def test_one_more_flow_never_raises_the_slowest(
    load: tuple[list[int], list[tuple[int, ...]]],
) -> None:
    capacity, paths = load
    rates = max_min_rates(padded(paths), capacity)
    fewer = max_min_rates(padded(paths)[:-1], capacity)
    assert len(fewer) == 0 or rates.min() <= fewer.min() * (1 + 1e-12)


@pytest.mark.parametrize(
    ("paths", "rates", "field"),
    [
        ([[-1]], [1.0], "flow.route"),
        ([[3]], [1.0], "flow.route"),
        ([[0]], [0.0], "flow.route"),
        ([[0]], [-1.0], "link.rate_bytes_per_s"),
    ],
)
def test_what_cannot_be_filled_is_refused(
    paths: list[list[int]], rates: list[float], field: str
) -> None:
    with pytest.raises(InputError) as refusal:
        max_min_rates(paths, rates)
    assert refusal.value.field == field
