"""What a routing means for expert-parallel ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.predictor.moe.loads import dropped_share, rank_imbalance
from trainscout.simulators.predictor.moe.router import Router
from trainscout.simulators.predictor.question.errors import InputError


@pytest.mark.parametrize(
    ("router", "ep", "expected"),
    [
        # One of eight experts gets half of all routings, on a rank of its own: 4 times the mean.
        (Router(8, 10**9, 1, 0.125, 0.5), 8, 4.0),
        # Shared with another expert, which gets 1/14: 4 ranks of mean 1/4.
        (Router(8, 10**9, 1, 0.125, 0.5), 4, (1 / 2 + 1 / 14) / (1 / 4)),
        (Router(8, 10**9, 2), 4, 1.0),
        (Router(8, 10**9, 2, 0.25, 0.5), 1, 1.0),
        # Measured: experts stay where they were.
        (Router(4, 10**9, 1, measured=((1, 2, 3, 4),)), 2, 7 / 5),
        (Router(4, 10**9, 1, measured=((1, 2, 3, 4),)), 4, 8 / 5),
    ],
)
def test_many_tokens_meet_the_expectation(router: Router, ep: int, expected: float) -> None:
    assert rank_imbalance(router, ep, 4) == pytest.approx(expected, rel=1e-3)


def test_layers_have_favourites_of_their_own() -> None:
    """Two hot experts with all routings on two ranks: together with chance 3 of 7 pairs, else
    apart; a layer's ratio is 2 or 1, their mean what a step waits for."""
    router = Router(8, 10**9, 1, 0.25, 1.0, seed=1)
    assert rank_imbalance(router, 2, 1) in (pytest.approx(1, abs=1e-3), pytest.approx(2, abs=1e-3))
    # 400 layers: the standard error of the share is 2.5 %.
    assert rank_imbalance(router, 2, 400) == pytest.approx(1 + 3 / 7, abs=0.125)


def test_few_tokens_are_uneven_by_chance() -> None:
    few, many = Router(64, 100, 2), Router(64, 10**6, 2)
    assert rank_imbalance(few, 64, 8) > 1.5 > 1.1 > rank_imbalance(many, 64, 8)


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 4),
    st.integers(1, 10_000),
    st.floats(0.0, 1.0),
    st.integers(0, 3),
)
def test_the_busiest_rank_is_between_the_mean_and_all(
    ep: int, top_k: int, tokens: int, heat: float, seed: int
) -> None:
    weight = 0.25 + heat * (min(1.0, 2 / top_k) - 0.25)
    router = Router(8, tokens, top_k, 0.25, weight, seed)
    assert 1 <= rank_imbalance(router, ep, 2) <= ep


def test_unequal_ranks_are_refused() -> None:
    with pytest.raises(InputError, match="ep=3"):
        rank_imbalance(Router(8), 3)
    with pytest.raises(InputError, match="num_layers"):
        rank_imbalance(Router(8), 2, 0)
    with pytest.raises(InputError, match="top_k"):
        rank_imbalance(Router(8, top_k=9), 2)


@pytest.mark.parametrize(
    ("factor", "expected"),
    # Two of eight experts get 0.4 each and keep factor / 8 of it; six get 1 / 30 each, which
    # only a factor below 8 / 30 cuts.
    [(1.0, 0.55), (2.0, 0.3), (4.0, 0.0), (0.2, 1 - 0.2)],
)
def test_capacity_drops_what_is_over_it(factor: float, expected: float) -> None:
    router = Router(8, 10**8, 2, 0.25, 0.8)
    assert dropped_share(router, factor, 2) == pytest.approx(expected, abs=1e-3)


def test_an_impossible_capacity_is_refused() -> None:
    with pytest.raises(InputError, match="capacity_factor"):
        dropped_share(Router(8), 0.0)
