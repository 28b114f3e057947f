from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from tests.simulators.virtual_cluster.emulation.values.rank import FakeRank  # noqa: E402
from tests.simulators.virtual_cluster.emulation.values.routers import ROUTERS, counted, scattered  # noqa: E402
from trainscout.simulators.predictor.moe.router import Router, expert_loads  # noqa: E402
from trainscout.simulators.predictor.question.errors import InputError  # noqa: E402
from trainscout.simulators.virtual_cluster.emulation.imbalance import Imbalance  # noqa: E402
from trainscout.simulators.virtual_cluster.emulation.values import Exchange, Values  # noqa: E402
from trainscout.simulators.virtual_cluster.emulation.values.defaults import ASSUMED_SHARE  # noqa: E402
from trainscout.simulators.virtual_cluster.emulation.values.imbalance import expected_loads  # noqa: E402
from trainscout.simulators.virtual_cluster.emulation.values.shadow import apportion  # noqa: E402
from trainscout.simulators.virtual_cluster.emulation.values.sizes import own_size  # noqa: E402

HOT = Imbalance(64, hot_ratio=0.125, hot_weight=0.5)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_apportioned_numbers_add_up_and_stay_near(shares: list[float]) -> None:
    exact = torch.tensor(shares, dtype=torch.float64)
    counts = apportion(exact)
    assert (
        int(counts.sum()) == round(float(exact.sum())) or abs(float(exact.sum()) % 1 - 0.5) < 1e-6
    )
    assert bool(((counts - exact).abs() < 1 + 1e-6).all())


@pytest.mark.parametrize("router", ROUTERS)
@settings(max_examples=settings.default.max_examples // 2)
@given(tokens=st.integers(1, 5000), experts=st.integers(2, 160), data=st.data())
def test_tokens_are_neither_lost_nor_made(
    router: Callable[[object, int], object], tokens: int, experts: int, data: st.DataObject
) -> None:
    top_k = data.draw(st.integers(1, min(experts, 8)))
    rank = FakeRank()
    with rank:
        counts = router(rank.unknown(tokens, experts), top_k)
        assert rank.grade(counts) == "expected" or tokens * top_k < experts
        found = rank.read(counts)
    assert sum(found) == tokens * top_k
    assert max(found) - min(found) <= 1


# The order in which all experts are sorted says nothing of how many of them are then chosen.
@pytest.mark.parametrize("router", [router for router in ROUTERS if router is not counted])
def test_every_router_sees_the_same_popular_experts(
    router: Callable[[object, int], object],
) -> None:
    rank = FakeRank(Values(HOT))
    with rank:
        found = rank.read(router(rank.unknown(1000, 64), 6))
    assert found == expected_loads(HOT, 64, 6, 1000).tolist()
    assert sum(sorted(found)[-8:]) == 3000
    assert sum(found) == 6000


def test_a_router_in_one_kernel_chooses_alike() -> None:
    library = torch.library.Library("trainscout_router_test", "DEF")
    library.define(
        "moe_router_fwd(Tensor logits, Tensor? bias, int topk, str score)"
        " -> (Tensor, Tensor, Tensor)"
    )
    func = torch.ops.trainscout_router_test.moe_router_fwd.default
    rank = FakeRank(Values(HOT))
    with rank:
        logits, weights, scores = (rank.unknown(1000, 64) for _ in range(3))
        mask = rank.unknown(1000, 64, dtype=torch.bool)
        rank.values.observe(func, (logits, None, 6, "softmax"), {}, (weights, mask, scores))
        assert rank.read(mask.sum(dim=0)) == expected_loads(HOT, 64, 6, 1000).tolist()
        assert weights.T.contiguous().masked_select(mask.T.contiguous()).shape == (6000,)
        assert rank.read(torch.count_nonzero(weights)) == 6000
        assert rank.grade(scores.sum()) == "invented"


def test_expected_loads_are_the_means_of_drawn_ones() -> None:
    drawn = expert_loads(Router(64, 1_000_000, 6, 0.125, 0.5), layer=3)
    expected = expected_loads(HOT, 64, 6, 1_000_000, layer=3)
    assert torch.allclose(expected.double(), torch.from_numpy(drawn).double(), rtol=0.02)


@given(
    world=st.integers(1, 12),
    local=st.integers(1, 12),
    tokens=st.integers(1, 3000),
    hot=st.booleans(),
    data=st.data(),
)
def test_what_ranks_send_is_what_the_others_receive(
    world: int, local: int, tokens: int, hot: bool, data: st.DataObject
) -> None:
    """Each rank alone decides its splits, as Megatron's dispatcher does, and all agree."""
    experts = world * local
    top_k = data.draw(st.integers(1, min(experts, 8)))
    imbalance = Imbalance(experts, 1 / experts, min(1, 2 / experts, 1 / top_k)) if hot else None
    sent, received = [], []
    for position in range(world):
        rank = FakeRank(Values(imbalance))
        with rank:
            counts = scattered(rank.unknown(tokens, experts), top_k)
            sent.append(rank.read(counts.reshape(world, local).sum(axis=1)))
            gathered = rank.unknown(world * experts, dtype=torch.int64)
            exchange = Exchange("all_gather", "ep", 0, position, world)
            rank.values.communicate(exchange, [counts], [gathered])
            mine = gathered.reshape(world, experts)[:, position * local : (position + 1) * local]
            received.append(rank.read(mine.contiguous().sum(axis=1)))
            exchanged = rank.unknown(world, local, dtype=torch.int64)
            exchange = Exchange("all_to_all", "ep", 1, position, world)
            rank.values.communicate(exchange, [counts.view(world, local)], [exchanged])
            assert rank.read(exchanged) == rank.read(mine)
    assert sent == [list(column) for column in zip(*received, strict=True)]
    assert all(sum(splits) == tokens * top_k for splits in sent)


@pytest.mark.parametrize("position", [0, 1, 3])
def test_choices_that_go_to_their_owners_are_of_what_each_owns(position: int) -> None:
    """Numbers of experts sent beside their tokens, and counted as the owner counts its own."""
    rank = FakeRank(Values(HOT))
    with rank:
        chosen = torch.topk(rank.unknown(1024, 64), 2, dim=1)[1].reshape(-1)
        loads = rank.read(torch.bincount(chosen, minlength=64))
        own = loads[16 * position : 16 * (position + 1)]
        got = rank.unknown(sum(own), 1)
        splits = tuple(sum(loads[first : first + 16]) for first in range(0, 64, 16))
        exchange = Exchange("all_to_all", "ep", 0, position, 4, splits=splits)
        rank.values.communicate(exchange, [chosen.float().unsqueeze(-1)], [got])
        numbers = got.squeeze(-1).long() - 16 * position
        assert rank.read(torch.bincount(numbers, minlength=16)) == own


def test_selected_tokens_are_as_many_as_the_mask_has_ones() -> None:
    rank = FakeRank(Values(HOT))
    with rank:
        logits = rank.unknown(1000, 64)
        chosen = torch.topk(logits, 6, dim=1)[1]
        mask = torch.zeros_like(logits).int().scatter(1, chosen, 1).bool()
        by_expert = mask.T.contiguous()
        tokens = torch.arange(1000).unsqueeze(0).expand(64, -1).masked_select(by_expert)
        assert tokens.shape == (6000,)
        loads = rank.read(mask.sum(dim=0))
        for expert in (0, 7, 63):
            assert torch.where(by_expert[expert])[0].shape == (loads[expert],)
            assert logits[mask[:, expert]].shape == (loads[expert], 64)
    assert {size.grade for size in rank.sizes} == {"expected"}


def test_edges_counted_by_atom_are_as_many_as_there_are() -> None:
    rank = FakeRank()
    with rank:
        atom_of_edge = rank.unknown(1000, dtype=torch.int64)
        ones = torch.ones(1000, dtype=torch.int64)
        counts = torch.zeros(18, dtype=torch.int64).scatter_reduce(0, atom_of_edge, ones, "sum")
        assert sorted(rank.read(counts)) == [55] * 8 + [56] * 10
        assert torch.repeat_interleave(torch.arange(18), counts).shape == (1000,)


def test_only_sums_count_what_is_scattered() -> None:
    rank = FakeRank()
    with rank:
        chosen = torch.topk(rank.unknown(1000, 4), 1)[1].flatten()
        ones = torch.ones(1000)
        added = torch.zeros(4).scatter_(0, chosen, ones, reduce="add")
        assert rank.read(added) == [250] * 4
        for way in ("prod", "amin", "mean"):
            found = torch.zeros(4).scatter_reduce(0, chosen, ones, way)
            assert rank.grade(found) == "invented"


@pytest.mark.parametrize("number", [1, 2, 4])
def test_tokens_that_chose_an_expert_at_all_are_as_many_as_their_weights(number: int) -> None:
    rank = FakeRank()
    with rank:
        weights, chosen = torch.topk(rank.unknown(1000, 4), number, dim=1)
        mask = chosen == 2
        tokens = mask.any(dim=-1).nonzero().flatten()
        assert tokens.shape == weights[mask].shape == (250 * number,)
        assert mask.amax(dim=-1).nonzero().shape == (250 * number, 1)
        assert (~mask).all(dim=-1).nonzero().shape == (1000 - 250 * number, 1)
        assert rank.read(mask.any()) is True


@pytest.mark.parametrize("capacity", [200, 250, 312])
def test_an_expert_keeps_no_more_than_its_capacity(capacity: int) -> None:
    """Tokens are dropped after the choice: what is kept was routed, by probability or place."""
    rank = FakeRank()
    with rank:
        logits = rank.unknown(1000, 8)
        scores, chosen = torch.topk(logits, 2, dim=1)
        weights = torch.zeros_like(logits).scatter(1, chosen, torch.softmax(scores, -1))
        mask = torch.zeros_like(logits).int().scatter(1, chosen, 1).bool()
        for ranked in (weights, mask.int()):
            kept = torch.topk(ranked, k=capacity, dim=0, sorted=False)[1]
            allowed = torch.zeros_like(weights).scatter(0, kept, 1).bool()
            final = torch.logical_and(mask, allowed)
            assert rank.read(allowed.sum(dim=0)) == [capacity] * 8
            assert rank.read(final.sum(dim=0)) == [min(capacity, 250)] * 8
            assert rank.read(((weights * final) != 0).sum()) == 8 * min(capacity, 250)


@pytest.mark.parametrize("imbalance", [None, HOT])
def test_experts_are_padded_to_a_multiple(imbalance: Imbalance | None) -> None:
    """As Megatron-core pads its map for FP8: the first zeros of each expert become ones."""
    rank = FakeRank(Values(imbalance))
    with rank:
        logits = rank.unknown(1000, 64)
        chosen = torch.topk(logits, 6, dim=1)[1]
        mask = torch.zeros_like(logits).int().scatter(1, chosen, 1).bool()
        loads = rank.read(mask.sum(dim=0))
        by_expert = mask.transpose(0, 1)
        missing = (-by_expert.sum(dim=1)) % 32
        places = torch.cumsum((by_expert == 0).int(), dim=1)
        by_expert[places <= missing.unsqueeze(1)] = 1
        padded = by_expert.transpose(0, 1)
        assert rank.read(padded.sum(dim=0)) == [-(-load // 32) * 32 for load in loads]
        selected = logits.T.contiguous().masked_select(padded.bool().T.contiguous())
        assert selected.shape == (sum(-(-load // 32) * 32 for load in loads),)


def test_groups_of_experts_limit_no_experts_share() -> None:
    rank = FakeRank(Values(HOT))
    loads = expected_loads(HOT, 64, 6, 1000).tolist()
    with rank:
        logits = rank.unknown(1000, 64)
        best = logits.view(1000, 8, -1).topk(2, dim=-1)[0].sum(dim=-1)
        groups = torch.zeros_like(best)
        groups.scatter_(1, torch.topk(best, k=4, dim=-1, sorted=False)[1], 1)
        open_ = groups.unsqueeze(-1).expand(1000, 8, 8).reshape(1000, -1)
        limited = logits.masked_fill(~open_.bool(), float("-inf"))
        assert rank.read(scattered(limited, 6)) == loads


class Layer(torch.nn.Module):
    def forward(self, logits: object) -> object:
        return scattered(logits, 2)


def test_layers_have_favourites_of_their_own_and_keep_them() -> None:
    rank = FakeRank(Values(HOT))
    layers = [Layer() for _ in range(3)]
    with rank:
        first = [rank.read(layer(rank.unknown(1000, 64))) for layer in layers]
        again = [rank.read(layer(rank.unknown(1000, 64))) for layer in reversed(layers)]
        rank.values.restart()
        another = rank.read(Layer()(rank.unknown(1000, 64)))
    assert another == first[0]
    assert first == again[::-1]
    assert first == [expected_loads(HOT, 64, 2, 1000, layer).tolist() for layer in range(3)]
    assert first[0] != first[1]


def test_categories_read_as_a_list_never_repeat_in_a_row() -> None:
    rank = FakeRank(Values(Imbalance(8, 0.125, 0.5)))
    with rank:
        chosen = torch.topk(rank.unknown(100, 8), 2, dim=1)[1]
        rows = rank.read(chosen)
        counts = rank.read(torch.bincount(chosen.view(-1), minlength=8))
    assert all(len(set(row)) == 2 for row in rows)
    flat = [expert for row in rows for expert in row]
    assert [flat.count(expert) for expert in range(8)] == counts


def test_a_few_of_many_are_far_apart_and_counted_as_read() -> None:
    """The strongest frequencies of a series: their neighbours, or none but the first, would be a
    period that nothing has."""
    rank = FakeRank()
    with rank:
        chosen = torch.topk(rank.unknown(49), 3)[1]
        assert rank.read(chosen) == [8, 24, 40]
        counts = rank.read(torch.bincount(chosen, minlength=49))
        assert [at for at, count in enumerate(counts) if count] == [8, 24, 40]
        best = rank.unknown(4, 10).argmax(dim=1)
        assert len(set(rank.read(best))) == 4
        assert rank.read(rank.unknown(1, 3).argmax(dim=1)) == [1]


def test_nearest_codes_are_among_the_codebook() -> None:
    with FakeRank() as rank:
        distances = rank.unknown(1000, 16)
        for codes in (distances.argmin(dim=1), distances.min(dim=1)[1]):
            assert len(codes.unique()) == 16
            assert sum(rank.read(torch.bincount(codes, minlength=16))) == 1000


def test_a_permutation_has_every_number_once() -> None:
    rank = FakeRank()
    with rank:
        order = torch.randperm(9)
        assert sorted(rank.read(order)) == list(range(9))
        assert rank.read((order < 3).sum()) == 3


def test_experts_of_a_rank_are_counted_by_division() -> None:
    rank = FakeRank()
    with rank:
        chosen = torch.topk(rank.unknown(1000, 64), 6, dim=1)[1]
        assert rank.read(((chosen // 8) == 3).sum()) in range(744, 753)
        values, counts = torch.unique(chosen, return_counts=True)
        assert rank.read(values) == list(range(64))
        assert sum(rank.read(counts)) == 6000


def test_of_masks_that_nothing_is_known_of_a_share_is_assumed() -> None:
    rank = FakeRank()
    with rank:
        unknown = rank.unknown(100, 100)
        assert unknown.nonzero().shape == (10_000 * ASSUMED_SHARE, 2)
        assert unknown[unknown > 0].shape == (10_000 * ASSUMED_SHARE,)
        whole = rank.unknown(100, dtype=torch.int64)
        values, where, counts = torch.unique(whole, return_inverse=True, return_counts=True)
        assert values.shape == counts.shape == (100 * ASSUMED_SHARE,)
        assert where.shape == (100,)
        assert torch.bincount(whole, minlength=7).shape == (7,)
        assert torch.repeat_interleave(unknown, whole, dim=0).shape == (100, 100)
    assert {size.grade for size in rank.sizes} == {"expected"}


def test_flags_that_nobody_knows_are_zero_or_one() -> None:
    """Metrics refuse labels that are neither."""
    rank = FakeRank()
    with rank:
        flags = rank.unknown(64) > 0
        assert not rank.read(torch.any((flags != 0) & (flags != 1)))
        for labels in (flags, flags.int()):
            values, counts = torch.unique(labels, return_counts=True)
            assert (rank.read(values), rank.read(counts)) == ([0, 1], [32, 32])
            assert not rank.read(torch.any((values != 0) & (values != 1)))


def test_a_measured_histogram_says_each_layers_loads(tmp_path: pytest.TempPathFactory) -> None:
    path = tmp_path / "loads.csv"  # type: ignore[operator]
    path.write_text("layer,expert,tokens\n0,0,6\n0,1,2\n0,2,4\n1,0,1\n1,1,1\n1,2,2\n")
    imbalance = Imbalance.parse(f"histogram={path}")
    assert expected_loads(imbalance, 3, 2, 12, 0).tolist() == [12, 4, 8]
    assert expected_loads(imbalance, 3, 2, 12, 1).tolist() == [6, 6, 12]
    with pytest.raises(InputError, match="2 layers"):
        expected_loads(imbalance, 3, 2, 12, 2)


def test_one_column_in_a_thousand_is_left_to_16_bits() -> None:
    # As bitsandbytes declares its operations.
    library = torch.library.Library("outliers", "DEF")
    quantise = "int8_vectorwise_quant(Tensor A, float threshold=0.0)"
    library.define(f"{quantise} -> (Tensor, Tensor, Tensor?)")
    library.define(
        "int8_mixed_scaled_mm(Tensor A, Tensor CA, Tensor CB, Tensor SCA, Tensor SCB,"
        " Tensor? outlier_cols=None, Tensor? bias=None) -> (Tensor, Tensor?)"
    )
    x, columns = torch.empty(6, 4000, device="meta"), torch.empty(7, device="meta")
    quantise, mixed = (
        getattr(torch.ops.outliers, name).default
        for name in ("int8_vectorwise_quant", "int8_mixed_scaled_mm")
    )
    assert own_size(quantise, (x, 6.0), x) == 4
    assert own_size(mixed, (x, x, x, x, x, columns), x) == 7
    # Of any other operation of a library, half of the rows.
    assert own_size(torch.ops.aten.nonzero.default, (x,), x) == 3


def test_tokens_that_are_drawn_end_no_text() -> None:
    with FakeRank() as rank:
        for drawn in (torch.multinomial(rank.unknown(2, 512), 1), rank.unknown(2, 512).argmax(-1)):
            assert rank.read((drawn == 5).all()) is False
            assert max(rank.read(drawn.flatten())) < 512
