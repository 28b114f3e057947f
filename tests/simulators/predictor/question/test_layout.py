"""Splitting layers over stages and chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.layout import split_by_compute, split_layers


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


def test_ends_that_fill_more_than_the_last_chunk() -> None:
    split = split_layers(61, 8, 4, loss_as_layer=True, mtp_layers=1, deal_out=True)
    flat = [split[stage][chunk] for chunk in range(4) for stage in range(8)]
    assert flat == [2] * 30 + [1, 0]


def test_leftover_layers_are_dealt_out_only_when_allowed() -> None:
    assert split_layers(61, 8, 1, deal_out=True) == ((8,),) * 5 + ((7,),) * 3
    with pytest.raises(InputError, match="pp=8 does not divide the 61 layers"):
        split_layers(61, 8, 1)


def test_fixed_ends_and_counted_ends_exclude_each_other() -> None:
    with pytest.raises(InputError, match="loss_as_layer"):
        split_layers(62, 4, 1, first_stage=14, loss_as_layer=True)


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
    layers=st.integers(1, 200), stages=st.integers(1, 16), head=st.floats(0, 8, allow_nan=False)
)
def test_stages_end_nearest_to_equal_shares_of_the_compute(
    layers: int, stages: int, head: float
) -> None:
    try:
        split = split_by_compute(layers, stages, head)
    except InputError:
        assert layers + head < 2 * stages + head * stages
        return
    share = (layers + head) / stages
    done = 0
    for stage, (count,) in enumerate(split[:-1], start=1):
        done += count
        assert abs(done - share * stage) <= 0.5 or done == layers
    assert done + split[-1][0] == layers


def test_a_costly_head_takes_layers_from_the_last_stage() -> None:
    # Nanotron's 3.57 B model: a head worth 3.6 of its 28 layers.
    assert split_by_compute(28, 2, 3.56) == ((16,), (12,))


def test_a_chunk_between_the_ends_holds_a_layer() -> None:
    assert split_layers(2, 4, 1, embedding_as_layer=True, loss_as_layer=True) == (
        (0,),
        (1,),
        (1,),
        (0,),
    )
    with pytest.raises(InputError, match="more places than the 3 layers"):
        split_layers(3, 4, 2, deal_out=True)
