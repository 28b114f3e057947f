"""Which ranks to trace is found from what they set up."""

from __future__ import annotations

import dataclasses

import pytest

from tests.simulators.virtual_cluster.traces.megatron_like import Layout, groups
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.collate.probe import choose_ranks, parse_ranks
from trainscout.simulators.virtual_cluster.traces.events import Group


def test_without_a_pipeline_rank_0_will_do() -> None:
    layout = Layout(tp=2, dp=8, pp=1)
    probed = []

    def set_up(rank: int) -> list[Group]:
        probed.append(rank)
        return groups(layout, rank)

    assert choose_ranks(16, set_up).ranks == (0,)
    assert probed == [0, 15]


def test_pipelines_that_are_not_shifted_must_be_told() -> None:
    def set_up(rank: int) -> list[Group]:
        ranks = (0, 1) if rank < 2 else (2, 4)
        return [Group("p", "PIPELINE_MODEL_PARALLEL_GROUP", ranks)]

    with pytest.raises(InputError, match="unlike pipelines"):
        choose_ranks(5, set_up)
    with pytest.raises(InputError, match="do not tile"):
        choose_ranks(3, lambda rank: [Group("p", "pp", (0, 2))] if rank != 1 else [])


def test_a_pipeline_joined_with_something_else_is_not_taken_for_one() -> None:
    layout = Layout(tp=2, dp=2, pp=3)

    def set_up(rank: int) -> list[Group]:
        made = groups(layout, rank)
        (joined,) = [group for group in made if group.description == "MODEL_PARALLEL_GROUP"]
        return [dataclasses.replace(joined, name="j", description="TENSOR_PIPELINE_GROUP"), *made]

    chosen = choose_ranks(layout.world_size, set_up)
    assert chosen.ranks == (0, 4, 8)
    assert "PIPELINE_MODEL_PARALLEL_GROUP" in chosen.why

    def crossing(rank: int) -> list[Group]:
        return [Group("a", "pp", (rank // 2 * 2, rank // 2 * 2 + 1)), Group("b", "pp", (rank,)),
                Group("c", "pp", (rank % 2, rank % 2 + 2))]  # fmt: skip

    with pytest.raises(InputError, match="in several pipelines"):
        choose_ranks(4, crossing)


def test_ranks_are_parsed() -> None:
    assert parse_ranks("--unique-ranks", "0, 24,2-4,3", 96) == (0, 2, 3, 4, 24)
    for text in ("", "a", "5-2", "96", "1--2", "-1"):
        with pytest.raises(InputError, match="unique-ranks"):
            parse_ranks("--unique-ranks", text, 96)
