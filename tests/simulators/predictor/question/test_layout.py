"""Splitting layers over stages and chunks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.layout import (
    Split,
    fields_of,
    format_layout,
    parse_layout,
    split_by_compute,
    split_layers,
)


def test_llama_405b_counts_both_ends_as_layers() -> None:
    # 126 layers + 2 over 8 stages of 8 chunks: two layers a chunk, one in the first and last.
    chunks = split_layers(126, 8, 8, embedding_as_layer=True, loss_as_layer=True)
    assert chunks[0] == (1, 2, 2, 2, 2, 2, 2, 2)
    assert chunks[-1] == (2, 2, 2, 2, 2, 2, 2, 1)
    assert set(chunks[1:-1]) == {(2,) * 8}


def test_bloom_176b_on_twelve_stages() -> None:
    split = split_layers(70, 12, 1, embedding_as_layer=True, loss_as_layer=True)
    assert [sum(chunks) for chunks in split] == [5, *[6] * 10, 5]


@pytest.mark.parametrize(
    ("stages", "chunks", "first", "last"),
    [(16, 1, 4, 1), (2, 8, 4, 1), (8, 1, 8, 5), (4, 1, 16, 13)],
)
def test_deepseek_v3_leaves_places_for_the_loss_and_the_extra_prediction(
    stages: int, chunks: int, first: int, last: int
) -> None:
    # Megatron-Bridge's layouts: Et*4|(t*4|)*14tmL and alike (deepseek_v3.py).
    split = split_layers(61, stages, chunks, loss_as_layer=True, mtp_layers=1, deal_out=True)
    flat = [split[stage][chunk] for chunk in range(chunks) for stage in range(stages)]
    assert flat == [first] * (stages * chunks - 1) + [last]


@pytest.mark.parametrize(
    ("layers", "places"),
    [
        # Llama-3.1 405B, Qwen3-235B-A22B, and the BLOOM search: (PP, VPP) that were published.
        (126, [(8, 8), (8, 4), (16, 1), (16, 4), (16, 8)]),
        (94, [(4, 1), (4, 12), (8, 1), (8, 3), (8, 4), (32, 3), (12, 1)]),
        (30, [(4, 8)]),
        (70, [(12, 1)]),
        (100, [(6, 1)]),
    ],
)
def test_published_splits_come_out_with_both_ends_as_layers(
    layers: int, places: list[tuple[int, int]]
) -> None:
    for stages, chunks in places:
        with pytest.raises(InputError, match="with embedding_as_layer=true loss_as_layer=true"):
            split_layers(layers, stages, chunks)
        split = split_layers(layers, stages, chunks, embedding_as_layer=True, loss_as_layer=True)
        assert sum(map(sum, split)) == layers


# Megatron-Bridge's for DeepSeek-V3 and Kimi-K2, the ModelZoo's style, and ends that stand alone.
LAYOUTS = [
    ("Et*4|(t*4|)*14tmL", 61, 1, (4, 4, 1)),
    ("Et*4|(t*4|)*14tL", 61, 0, (4, 4, 1)),
    ("Ettt|(tt|)*29|L", 61, 0, (3, 2, 0)),
    ("E|t*6|t*6|L", 12, 0, (0, 6, 0)),
    ("Et|t|tt|L", 4, 0, (1, 1, 0)),
]


@pytest.mark.parametrize(("text", "layers", "mtp", "ends"), LAYOUTS)
def test_a_layout_says_what_each_chunk_holds(
    text: str, layers: int, mtp: int, ends: tuple[int, ...]
) -> None:
    parts = len(parse_layout(text))
    stages, chunks = parts // 2, 2
    split = split_layers(layers, stages, chunks, mtp_layers=mtp, layout=text)
    flat = [count for stage in zip(*split, strict=True) for count in stage]
    assert (flat[0], flat[1], flat[-1]) == ends
    written = format_layout(split, mtp)
    assert split_layers(layers, stages, chunks, mtp_layers=mtp, layout=written) == split
    assert made_of(fields_of(split, mtp), layers, stages, chunks, mtp) == split


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        ("Ett|tt|tL", "has 3 parts"),
        ("Ett|tt|tt|ttL", "holds 8 layers"),
        ("ttE|tt|tt|tL", "is no E"),
        ("Ett|tt|tt|t", "is no E"),
        ("Ett|tt|tt|tmL", "is no E"),
        ("Ettt*99999999999|L", "repeats too much"),
        ("first", "is no layout"),
        ("", "is no layout"),
    ],
)
def test_layouts_that_no_launcher_takes(layout: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        split_layers(7, 4, 1, layout=layout)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"loss_as_layer": True, "layout": "Ett|tt|tt|tL"}, "loss_as_layer"),
        ({"first_stage": 1, "layout": "balanced"}, "pipeline_layout"),
        ({"first_stage": 1, "loss_as_layer": True}, "loss_as_layer"),
    ],
)
def test_layouts_fixed_ends_and_counted_ends_exclude_each_other(
    fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        split_layers(7, 4, 1, **fields)


def test_balanced_deals_out_what_is_left() -> None:
    # Moye's 64 stages of 96 layers.
    split = split_layers(96, 64, 1, layout="balanced")
    assert split == ((2,),) * 32 + ((1,),) * 32
    assert fields_of(split, 0)["pipeline_layout"] == "balanced"


@given(
    counts=st.lists(st.integers(1, 6), min_size=4, max_size=4),
    mtp=st.integers(0, 1),
    stages=st.sampled_from([2, 4]),
)
def test_every_split_has_fields_that_make_it(counts: list[int], mtp: int, stages: int) -> None:
    split = tuple(tuple(counts[stage::stages]) for stage in range(stages))
    fields = fields_of(split, mtp)
    assert made_of(fields, sum(counts), stages, 4 // stages, mtp) == split
    written = fields["pipeline_layout"]
    assert written in (None, "balanced") or "E" in written


def made_of(fields: dict[str, Any], layers: int, stages: int, chunks: int, mtp: int) -> Split:
    return split_layers(
        layers,
        stages,
        chunks,
        first_stage=fields["first_stage_layers"],
        last_stage=fields["last_stage_layers"],
        embedding_as_layer=fields["embedding_as_layer"],
        loss_as_layer=fields["loss_as_layer"],
        mtp_layers=mtp,
        layout=fields["pipeline_layout"],
    )


def test_ends_that_fill_more_than_the_last_chunk() -> None:
    split = split_layers(61, 8, 4, loss_as_layer=True, mtp_layers=1, deal_out=True)
    flat = [split[stage][chunk] for chunk in range(4) for stage in range(8)]
    assert flat == [2] * 30 + [1, 0]


def test_leftover_layers_are_dealt_out_only_when_allowed() -> None:
    assert split_layers(61, 8, 1, deal_out=True) == ((8,),) * 5 + ((7,),) * 3
    with pytest.raises(InputError, match="pp=8 does not divide the 61 layers"):
        split_layers(61, 8, 1)


@given(
    layers=st.integers(1, 200),
    stages=st.integers(1, 16),
    chunks=st.integers(1, 8),
    embedding=st.booleans(),
    loss=st.booleans(),
)
def test_every_layer_is_somewhere_and_chunks_are_nearly_equal(
    layers: int, stages: int, chunks: int, embedding: bool, loss: bool
) -> None:
    try:
        split = split_layers(
            layers,
            stages,
            chunks,
            embedding_as_layer=embedding,
            loss_as_layer=loss,
            deal_out=True,
        )
    except InputError:
        assert layers + embedding + loss < stages * chunks + 2
        return
    flat = [count for stage in split for count in stage]
    assert sum(flat) == layers
    assert len(flat) == stages * chunks
    assert max(flat) - min(flat) <= 2


@given(
    layers=st.integers(1, 200), stages=st.integers(1, 32), head=st.floats(0, 8, allow_nan=False)
)
def test_stages_are_filled_until_they_pass_their_share_of_the_compute(
    layers: int, stages: int, head: float
) -> None:
    counts = [count for (count,) in split_by_compute(layers, stages, head)]
    assert sum(counts) == layers
    share = (layers + head) / stages
    done = 0
    for stage, count in enumerate(counts[:-1], start=1):
        done += count
        # One more than passes it, and one is placed wherever the share before has been passed.
        assert done == layers or share * stage < done <= max(share * stage + 1, stage)


@pytest.mark.parametrize(
    ("stages", "split"),
    [
        (2, [16, 12]),
        (4, [8, 8, 8, 4]),
        (8, [4] * 7 + [0]),
        (16, [2] * 14 + [0, 0]),
    ],
)
def test_stages_of_nanotron(stages: int, split: list[int]) -> None:
    # Its 3.57 B model: a head worth 3.6 of its 28 layers.
    assert [count for (count,) in split_by_compute(28, stages, 3.56)] == split


def test_a_chunk_between_the_ends_holds_a_layer() -> None:
    assert split_layers(2, 4, 1, embedding_as_layer=True, loss_as_layer=True) == (
        (0,),
        (1,),
        (1,),
        (0,),
    )
    with pytest.raises(InputError, match="more places than the 3 layers"):
        split_layers(3, 4, 2, deal_out=True)
