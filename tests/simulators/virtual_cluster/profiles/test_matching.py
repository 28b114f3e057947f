"""Products and attention are matched by shape and sequence, in parts where they are split."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.predictor.workload.ir import Attention, Gemm
from trainscout.simulators.virtual_cluster.profiles.matching import Anchor, Match, align, lane_of


def forward(n: int, k: int = 64, m: int = 128) -> Gemm:
    return Gemm("", m, n, k, "bf16")


def pairs(measured: list[Anchor], predicted: list[Anchor]) -> list[Match]:
    return align(measured, predicted)


def test_equal_shapes_are_told_apart_by_their_sequence() -> None:
    layer = [forward(64), forward(64), forward(256), forward(64, 256)]
    found = pairs(list(layer * 3), list(layer * 3))
    assert found == [Match((at,), (at,)) for at in range(12)]


def test_one_product_is_the_several_that_it_is_split_into_both_ways() -> None:
    apart: list[Anchor] = [forward(64), forward(16), forward(16), forward(64)]
    fused: list[Anchor] = [forward(96), forward(64)]
    assert pairs(apart, fused) == [Match((0, 1, 2), (0,)), Match((3,), (1,))]
    assert pairs(fused, apart) == [Match((0,), (0, 1, 2)), Match((1,), (3,))]


def test_gradients_of_split_products_add_up_along_what_is_split() -> None:
    inputs = [Gemm("", 128, 64, n, "bf16", layout="NN") for n in (16, 16, 64)]
    weights = [Gemm("", n, 64, 128, "bf16", layout="NT") for n in (16, 16, 64)]
    assert pairs([*inputs], [Gemm("", 128, 64, 96, "bf16", layout="NN")]) == [
        Match((0, 1, 2), (0,))
    ]
    assert pairs([*weights], [Gemm("", 96, 64, 128, "bf16", layout="NT")]) == [
        Match((0, 1, 2), (0,))
    ]
    transposed = Gemm("", 64, 96, 128, "bf16", layout="NT")
    assert pairs([transposed], [Gemm("", 96, 64, 128, "bf16", layout="NT")]) == [Match((0,), (0,))]


def test_what_one_side_lacks_is_passed_over() -> None:
    known = [forward(64), forward(256), forward(64, 256)]
    extra = forward(7777)
    found = pairs([extra, known[0], known[1], extra, known[2]], [*known, forward(64), *known])
    assert [match.measured for match in found] == [(1,), (2,), (4,)]
    assert [match.predicted for match in found] == [(0,), (1,), (2,)]


def test_keys_written_out_for_every_head_are_the_same_attention() -> None:
    ours = Attention("", 1, 32, 32, 64, 64, 128, 128, True, "fwd", "bf16", "flash2")
    theirs = Attention("", 1, 32, 8, 64, 64, 128, 128, True, "fwd", "bf16")
    assert pairs([ours], [theirs]) == [Match((0,), (0,))]
    assert lane_of(ours, layouts=True) == lane_of(theirs, layouts=False) == "attention fwd"


sizes = st.lists(st.sampled_from([16, 32, 48, 64]), max_size=30)


@given(sizes, sizes)
def test_matches_keep_order_and_sizes(ours: list[int], theirs: list[int]) -> None:
    found = align([forward(n) for n in ours], [forward(n) for n in theirs])
    for match in found:
        assert sum(ours[at] for at in match.measured) == sum(theirs[at] for at in match.predicted)
        assert min(len(match.measured), len(match.predicted)) == 1
    for before, after in itertools.pairwise(found):
        assert before.measured[-1] < after.measured[0]
        assert before.predicted[-1] < after.predicted[0]


@pytest.mark.parametrize("count", [0, 1, 200])
def test_a_sequence_matches_itself(count: int) -> None:
    shapes = [forward(16 + at % 7) for at in range(count)]
    assert len(align(shapes, shapes)) == count
