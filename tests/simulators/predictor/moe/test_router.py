"""The router gives each expert its share, and each token different experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.predictor.moe.popularity import hot_shares, read_histograms
from trainscout.simulators.predictor.moe.router import Router, _lengths, expert_loads, route
from trainscout.simulators.predictor.question.errors import InputError


@st.composite
def routers(draw: st.DrawFn) -> Router:
    experts = draw(st.integers(1, 24))
    top_k = draw(st.integers(1, experts))
    router = Router(experts, draw(st.integers(1, 300)), top_k, seed=draw(st.integers(0, 9)))
    kind = draw(st.sampled_from(("even", "hot", "measured")))
    if kind == "hot":
        hot = draw(st.integers(1, experts))
        least, most = hot / experts, min(1.0, hot / top_k)
        weight = least + draw(st.floats(0, 1)) * (most - least)
        router = replace(router, hot_ratio=hot / experts, hot_weight=min(weight, most))
    if kind == "measured":
        tokens = draw(st.integers(1, 50))
        # Any tokens' choices are a histogram that some router produced.
        rows = [draw(st.permutations(range(experts)))[:top_k] for _ in range(min(tokens, 5))]
        counts = tuple(sum(row.count(expert) for row in rows) for expert in range(experts))
        router = replace(router, measured=(counts,))
    router.check()
    return router


@given(routers(), st.integers(0, 3))
def test_every_token_goes_to_different_experts(router: Router, layer: int) -> None:
    chosen = route(router, layer)
    assert chosen.shape == (router.seqlen, router.top_k)
    assert chosen.min() >= 0
    assert chosen.max() < router.num_experts
    assert (np.diff(np.sort(chosen, axis=1), axis=1) > 0).all()
    if router.measured is not None:
        unused = np.array(router.measured[0]) == 0
        assert not unused[chosen].any()


@given(routers(), st.integers(0, 3))
def test_same_seed_same_routing_and_no_routing_is_lost(router: Router, layer: int) -> None:
    assert (route(router, layer) == route(router, layer)).all()
    loads = expert_loads(router, layer)
    assert (loads == expert_loads(router, layer)).all()
    assert loads.sum() == router.seqlen * router.top_k
    assert loads.max() <= router.seqlen


def test_seeds_and_layers_differ() -> None:
    router = Router(64, 1000, 4, hot_ratio=0.25, hot_weight=0.6)
    first = route(router)
    assert (route(replace(router, seed=1)) != first).any()
    assert (route(router, 1) != first).any()
    # A layer does not depend on those before it.
    hottest = set(np.argsort(-expert_loads(router, 0))[:16].tolist())
    assert hottest != set(np.argsort(-expert_loads(router, 1))[:16].tolist())


@pytest.mark.parametrize(
    ("experts", "top_k", "ratio", "weight"),
    [
        (8, 2, 0.5, 0.8),
        (8, 1, 0.125, 0.9),
        (64, 6, 0.25, 0.6),
        (8, 2, 0.25, 1.0),
        (4, 4, 0.5, 0.5),
    ],
)
@pytest.mark.parametrize("counts_only", [True, False])
def test_hot_experts_receive_their_weight(
    experts: int, top_k: int, ratio: float, weight: float, counts_only: bool
) -> None:
    """The note's meaning: ratio 0.5 and weight 0.8 are half the experts with 80 % of routings."""
    router = Router(experts, 40_000, top_k, ratio, weight, seed=3)
    if counts_only:
        loads = expert_loads(router)
    else:
        loads = np.bincount(route(router).ravel(), minlength=experts)
    hot = round(ratio * experts)
    busiest = np.sort(loads)[::-1]
    routings = router.seqlen * top_k
    # Five standard deviations of a sum of binomials, which are at most independent.
    spread = 5 * np.sqrt(routings * weight * (1 - weight))
    assert abs(busiest[:hot].sum() - routings * weight) <= spread
    each = router.seqlen * top_k * weight / hot
    probability = each / router.seqlen
    spread = 5 * np.sqrt(router.seqlen * probability * (1 - probability))
    assert np.abs(busiest[:hot] - each).max() <= spread


def test_counts_alone_are_spread_as_those_of_tokens() -> None:
    """Both are binomial: mean and variance over seeds agree with it."""
    tokens, probability = 400, 2 * 3 / 10
    router = Router(8, tokens, 2, measured=((3, 3, 1, 1, 1, 1, 0, 0),))
    many = [replace(router, seed=seed) for seed in range(400)]
    by_count = np.array([expert_loads(one)[0] for one in many])
    by_token = np.array([(route(one) == 0).sum() for one in many])
    for drawn in (by_count, by_token):
        variance = tokens * probability * (1 - probability)
        assert abs(drawn.mean() - tokens * probability) < 5 * np.sqrt(variance / len(many))
        # The standard error of a variance is about sqrt(2 / n) of it.
        assert abs(drawn.var() / variance - 1) < 5 * np.sqrt(2 / len(many))


def test_experts_meet_in_every_pair() -> None:
    chosen = np.sort(route(Router(8, 20_000, 2)), axis=1)
    pairs = np.unique(chosen, axis=0)
    assert len(pairs) == 8 * 7 / 2


def test_measured_layers_are_routed_as_measured() -> None:
    router = Router(4, 60_000, 1, measured=((1, 2, 3, 4), (4, 3, 2, 1)))
    for layer, shares in enumerate(((0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1))):
        assert expert_loads(router, layer) / router.seqlen == pytest.approx(shares, abs=0.01)


@given(routers())
def test_lengths_are_exact(router: Router) -> None:
    shares = hot_shares(
        router.num_experts, router.hot_ratio, router.hot_weight, np.random.default_rng(0)
    )
    lengths = _lengths(shares, router.top_k)
    assert lengths.sum() == router.top_k << 32
    assert lengths.min() >= 0
    assert lengths.max() <= 1 << 32
    assert np.abs(lengths - shares * router.top_k * 2**32).max() <= 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_experts": 0}, "num_experts"),
        ({"num_experts": 2.5}, "num_experts"),
        ({"num_experts": 10**6}, "num_experts"),
        ({"seqlen": 0}, "seqlen"),
        ({"seqlen": 10**15}, "seqlen"),
        ({"top_k": 9}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"hot_ratio": -0.1}, "hot_ratio"),
        ({"hot_ratio": 1.1}, "hot_ratio"),
        ({"hot_ratio": float("nan")}, "hot_ratio"),
        ({"hot_ratio": 0.5}, "hot_ratio"),
        ({"hot_weight": 0.5}, "hot_ratio"),
        ({"hot_ratio": 0.01, "hot_weight": 0.5}, "hot_ratio"),
        ({"hot_ratio": 0.5, "hot_weight": 1.1}, "hot_weight"),
        ({"hot_ratio": 0.5, "hot_weight": float("nan")}, "hot_weight"),
        ({"hot_ratio": 0.5, "hot_weight": 0.4}, "hot_weight"),
        # One expert cannot get more than one of a token's two routings.
        ({"hot_ratio": 0.125, "hot_weight": 0.6}, "hot_weight"),
        ({"hot_ratio": 1.0, "hot_weight": 0.9}, "hot_weight"),
        ({"measured": ((1, 1),)}, "num_experts"),
        ({"measured": ((5, 1, 1, 0, 0, 0, 0, 0),)}, "top_k"),
        ({"measured": ((1,) * 8,), "hot_ratio": 0.5, "hot_weight": 0.8}, "hot_weight"),
    ],
)
def test_impossible_routers_are_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as refused:
        replace(Router(), **changes).check()  # type: ignore[arg-type]
    assert refused.value.field == field


def test_histograms_are_read_by_layer(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "counts.csv"
    path.write_text("layer,expert,tokens\n0,1,5\n0,0,3\n7,2,9\n7,0,1\n")
    assert read_histograms(path) == ((3, 5, 0), (1, 0, 9))
    path.write_text("expert,tokens\n0,3\n1,5\n")
    assert read_histograms(path) == ((3, 5),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "expert\n1\n",
        "expert,tokens\n",
        "expert,tokens\n0,0\n",
        "expert,tokens\n0,-1\n",
        "expert,tokens\n0,1.5\n",
        "expert,tokens\n0\n",
        "expert,tokens\n0,1\n0,2\n",
        "expert,tokens\n99999999999,1\n",
        "layer,expert,tokens\n0,0,1\n1,0,0\n",
    ],
)
def test_unusable_histograms_are_refused(text: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "counts.csv"
    path.write_text(text)
    with pytest.raises(InputError, match="histogram"):
        read_histograms(path)


def test_a_missing_or_binary_histogram_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "counts.csv"
    with pytest.raises(InputError, match="histogram"):
        read_histograms(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="histogram"):
        read_histograms(path)
