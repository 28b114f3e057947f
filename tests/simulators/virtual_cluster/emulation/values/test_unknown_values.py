"""What is taken for numbers that nobody knows, and how it is graded."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.simulators.virtual_cluster.emulation.values.rank import FakeRank  # noqa: E402
from trainscout.simulators.virtual_cluster.emulation.values import defaults  # noqa: E402


def test_a_mask_nobody_knows_sums_to_what_it_selects() -> None:
    rank, thirds, halves = FakeRank(), torch.arange(300) % 3 == 0, torch.arange(300) % 2 == 0
    with rank:
        mask = rank.unknown(300) > 0
        assert rank.unknown(300, 4)[mask].shape == (150, 4)
        assert rank.read(mask.sum()) == 150
        assert rank.grade(mask.sum()) == "expected"
        # The host may ask for one of the sums.
        lengths = (rank.unknown(3, 20) > 0).float().sum(-1)
        assert [rank.read(each) for each in lengths] == [10.0] * 3
        # Of those selected, half are kept; and once known which, those beside them, too.
        mask[mask.clone()] = rank.unknown(150) > 0
        assert rank.unknown(300, 4)[mask].shape == (75, 4)
        known = rank.enter(thirds)
        known[rank.enter(halves)] = rank.unknown(150) > 0
        assert rank.read(known.sum()) == 75 + 50


def test_columns_put_beside_unknown_ones_stay_known() -> None:
    """Boxes that are counted by the image that they are of, as Ultralytics does under DDP."""
    rank = FakeRank()
    images = torch.tensor([0.0] * 90 + [1.0] * 20 + [2.0] * 40).reshape(-1, 1)
    with rank:
        column = rank.enter(images)
        targets = torch.cat((column, rank.unknown(150, 4)), 1)
        _, counts = targets[:, 0].unique(return_counts=True)
        assert rank.read(counts) == [90, 20, 40]
        assert rank.grade(counts) == "exact"
        assert targets[targets[:, 0] == 1, 1:].shape == (20, 4)
        assert rank.grade(targets[:, 1:]) == "invented"
        assert rank.grade(targets) == "invented"


def test_pooling_by_scores_keeps_nodes_of_every_graph() -> None:
    rank, nodes = FakeRank(), torch.arange(4).repeat_interleave(10)
    with rank:
        graph_of_node = rank.enter(nodes)
        kept = graph_of_node[rank.unknown(40).argsort()[:20]]
        assert [rank.read((kept == graph).sum()) for graph in range(4)] == [5] * 4
        assert rank.grade(kept.max()) == "expected"


def test_flags_nobody_knows_are_counted_alike_however_they_are_counted() -> None:
    """Borders that a model draws itself: as many per row as are found, with one at each end."""
    rank = FakeRank()
    with rank:
        borders = rank.unknown(4, 512) > 0
        counts = borders.long().sum(dim=-1) + 1
        assert rank.read(counts) == [257] * 4
        assert rank.read(borders.count_nonzero(dim=-1)) == [256] * 4
        assert rank.read(counts.max()) == rank.read(counts.amin(dim=0)) == 257
        assert rank.read(borders.sum(dim=1).amax()) == 256
        for ended in (
            torch.nn.functional.pad(borders, (0, 1), value=True),
            torch.cat([borders, torch.ones(4, 1, dtype=torch.bool)], dim=1),
        ):
            places = ended.nonzero()[:, 1]
            assert [len(part) for part in places.split(rank.read(counts))] == [257] * 4
        # Of what is known, the numbers around it are known, too.
        padded = torch.nn.functional.pad(torch.arange(3), (1, 2), value=7)
        assert rank.read(padded) == [7, 0, 1, 2, 7, 7]
        assert torch.nn.functional.pad(borders, (0, -1)).nonzero().shape == (4 * 511 // 2, 2)
        assert rank.grade((borders[0, 0]).float()) == "invented"


def test_a_known_flag_decides_what_it_is_combined_with() -> None:
    rank = FakeRank()
    with rank:
        unknown = rank.unknown(64, 1000) > 0
        done = torch.full((64, 1000), True)
        assert rank.read((unknown | done).all()) is True
        assert rank.grade((unknown | done).all()) == "exact"
        assert rank.read((unknown & ~done).any()) is False
        assert rank.grade((unknown & done).any()) == "invented"
        # A script asserts whole tensors; rows that are all one number are rows to leave out.
        assert rank.read(unknown.all()) is True
        assert rank.read(unknown.all(dim=1).any()) is False
        # Generation ends where every sequence is as long as it may be.
        unfinished = torch.ones(64, dtype=torch.int64) & ~unknown.any(dim=-1)
        assert rank.read((unfinished & ~done[:, 0]).max() == 0) is True
        lengths = torch.full((64,), 1000)
        lengths[unknown.any(dim=-1)] = 7
        assert rank.read(lengths.max()) == 1000
        assert rank.grade(lengths.max()) == "invented"


def test_random_numbers_are_not_known() -> None:
    rank = FakeRank()
    with rank:
        assert rank.grade(torch.rand(3)) == "invented"
        noise = torch.zeros(3)
        noise.normal_()
        assert rank.grade(noise) == "invented"
        assert rank.grade(torch.bernoulli(torch.full((3,), 0.5))) == "invented"


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (torch.bool, "bool"),
        (torch.int64, "int"),
        (torch.uint8, "int"),
        (torch.float32, "float"),
        (torch.bfloat16, "float"),
    ],
)
def test_what_nobody_knows_is_invented_by_its_kind(dtype: Any, kind: str) -> None:
    rank = FakeRank()
    with rank:
        reading = rank.values.read(rank.unknown(2, dtype=dtype), "item")
    assert reading.value.dtype is dtype
    # Numbers differ, as rewards of a group do that scripts drop where all are equal.
    first = defaults.INVENTED[kind]
    assert reading.value.tolist() == [first, defaults.IN_TURN[1] if kind == "float" else first]
    assert (reading.grade, type(reading.value.tolist()[0])) == ("invented", type(first))
    assert reading.hint is not None
    assert "item" in reading.hint


@pytest.mark.parametrize(
    ("shape", "channels"), [((2, 3, 64, 64), 3), ((2, 64, 64, 3), 3), ((2, 64, 64, 1), 1)]
)
def test_images_that_nobody_knows_differ(shape: tuple[int, ...], channels: int) -> None:
    rank = FakeRank()
    with rank:
        pixels = rank.values.read(rank.unknown(*shape, dtype=torch.uint8), "to cpu").value
    # Their sizes as JPEG are what rewards of image models are made of.
    assert torch.equal(pixels[0], pixels[1]) == (channels == 1)
    assert (int(pixels.min()), int(pixels.max())) == ((207, 255) if channels == 3 else (1, 1))


def test_unknown_numbers_are_taken_to_be_finite() -> None:
    rank = FakeRank()
    with rank:
        gradient = rank.unknown(100, 100)
        assert rank.read(torch.isfinite(gradient).all()) is True
        assert rank.read(torch.isnan(gradient).any() | torch.isinf(gradient).any()) is False
        for unknown in (gradient, gradient.sum()):
            assert rank.grade(torch.isnan(unknown).any()) == "expected"
            assert rank.grade(torch.isfinite(unknown).all()) == "expected"
            assert rank.grade(unknown.sum() > 0) == "invented"
        assert rank.read(gradient[torch.isinf(gradient)]) == []


def test_whole_numbers_that_nobody_knows_differ_one_by_one() -> None:
    rank = FakeRank()
    with rank:
        edges = rank.unknown(2, 1000, dtype=torch.int64)
        kept = edges[:, edges[0] != edges[1]]
        halved = edges[:, edges[0] > edges[1]]
        # As do tokens that were generated and the one that pads: an answer fills its row.
        ends = 63 + (edges != 2).sum(1)
        assert rank.read(ends) == [1063, 1063]
        assert rank.grade(ends) == "expected"
        # None is the negative number that marks a label as ignored: no batch is skipped.
        ignored = edges == -100
        assert rank.read(ignored.all()) is False
        assert rank.read(ignored.sum()) == 0
        assert rank.grade(ignored.all()) == "expected"
    assert kept.shape == (2, 1000)
    assert halved.shape == (2, 500)
    assert [size.grade for size in rank.sizes] == ["expected"] * 2


def test_weights_are_taken_to_change_when_they_are_reset() -> None:
    rank = FakeRank()
    with rank:
        weight = rank.unknown(100, 100)
        before = weight.clone()
        weight.normal_()
        assert rank.read(torch.any(weight != before)) is True
        assert rank.grade((weight != before).any()) == "expected"
        # Nor is a number found among them, nor does a check of equality fail.
        assert rank.read((weight != 0.5).any()) is False
        assert rank.read((weight == before).all()) is True


def test_overflow_checks_find_nothing() -> None:
    rank = FakeRank()
    scale = rank.enter(torch.tensor(65536.0))
    found = rank.enter(torch.tensor([0.0]))
    growth = rank.enter(torch.tensor([1999], dtype=torch.int32))
    with rank:
        gradients = [rank.unknown(10, 10), rank.unknown(5)]
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, scale.reciprocal())
        assert rank.read(found) == [0.0]
        assert rank.grade(found) == "invented"
        torch._amp_update_scale_(scale, growth, found, 2.0, 0.5, 2000)
        assert rank.read(scale) == 131072.0
        assert rank.read(growth) == [0]


def test_flags_of_opaque_kernels_stay_down() -> None:
    library = torch.library.Library("trainscout_test", "DEF")
    library.define("scale(Tensor(a!)[] tensors, Tensor(b!) flag, float factor) -> ()")
    library.impl("scale", lambda tensors, flag, factor: None, "Meta")
    rank = FakeRank()
    flag, data = rank.enter(torch.tensor([0], dtype=torch.int32)), rank.enter(torch.ones(4))
    large = rank.unknown(100)
    func = torch.ops.trainscout_test.scale.default
    with rank:
        large.fill_(2)
        rank.values.observe(func, ([data, large], flag, 2.0), {}, None)
        assert rank.read(flag) == [0]
        assert rank.grade(flag) == rank.grade(data) == "invented"
        assert rank.grade(large.sum()) == "invented"
        assert rank.read(large.sum()) == 1.0
