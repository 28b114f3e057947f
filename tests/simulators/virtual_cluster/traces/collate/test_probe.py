"""Which ranks to trace is found from what they set up."""

from __future__ import annotations

import dataclasses

import pytest

from tests.simulators.virtual_cluster.execution.scripts import Script
from tests.simulators.virtual_cluster.traces.megatron_like import Layout, groups
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.collate.collated import collate
from trainscout.simulators.virtual_cluster.traces.collate.probe import (
    choose_ranks,
    further_ranks,
    parse_ranks,
    untraced_peers,
)
from trainscout.simulators.virtual_cluster.traces.events import Group, Trace


def test_without_a_pipeline_rank_0_will_do() -> None:
    layout = Layout(tp=2, dp=8, pp=1)
    probed = []

    def set_up(rank: int) -> list[Group]:
        probed.append(rank)
        return groups(layout, rank)

    assert choose_ranks(16, set_up).ranks == (0,)
    assert probed == [0]


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

    crossed = choose_ranks(4, crossing)
    assert crossed.ranks == (0,)  # Whom it sends to tells.
    assert "in several pipelines" in crossed.why


def sending(rank: int, members: tuple[int, ...], blocks: int = 0, **peers: list[int]) -> Trace:
    script = Script(rank, max(8, len(members)))
    script.group("of no name", *members)
    for _ in range(blocks):
        script.gemm(64)
    for kind, ranks in peers.items():
        for peer in ranks:
            script.transfer(kind, "of no name", peer, 1)
    return script.trace()


def test_whom_ranks_send_to_must_be_traced_too_but_not_round_a_ring() -> None:
    whole = tuple(range(8))
    first = sending(0, whole, send=[2], recv=[2])
    inner = sending(2, whole, send=[4, 0], recv=[0, 4])
    last = sending(4, whole, send=[2], recv=[2])
    assert untraced_peers([first]) == (2,)
    assert untraced_peers([first, inner]) == (4,)
    assert untraced_peers([first, inner, last]) == ()
    assert untraced_peers([sending(0, (0, 4), send=[4], recv=[4])]) == (4,)
    assert untraced_peers([sending(0, (0, 2, 4, 6), send=[2], recv=[6])]) == ()
    assert untraced_peers([sending(0, (0, 2, 4), send=[2, 4], recv=[4, 2])]) == ()


@pytest.mark.parametrize("causal", [False, True])
def test_a_ring_whose_last_rank_does_more_than_the_first_is_traced_whole(causal: bool) -> None:
    def round_the_ring(rank: int) -> Trace:
        blocks = 1 + rank if causal else 1
        ahead, behind = (rank + 1) % 8, (rank - 1) % 8
        return sending(rank, tuple(range(8)), blocks, send=[ahead], recv=[behind])

    traces = [round_the_ring(0)]
    assert further_ranks(traces).ranks == (7,)
    traces.append(round_the_ring(7))
    assert further_ranks(traces).ranks == ((1, 2, 3, 4, 5, 6) if causal else ())
    traces += [round_the_ring(rank) for rank in range(1, 7)]
    assert further_ranks(traces).ranks == ()


def test_of_many_ranks_the_first_may_do_what_no_other_does() -> None:
    everybody = tuple(range(16))
    first, second, last = (sending(rank, everybody, 3 if rank == 0 else 1) for rank in (0, 1, 15))
    assert further_ranks([first, last]).ranks == (1,)
    assert further_ranks([first, last, second]).ranks == ()
    assert collate([first, second, last]).class_of_rank == (0, *[1] * 15)
    with pytest.raises(InputError, match="do not tell"):
        collate([first, last])


def test_ranks_are_parsed() -> None:
    assert parse_ranks("--unique-ranks", "0, 24,2-4,3", 96) == (0, 2, 3, 4, 24)
    for text in ("", "a", "5-2", "96", "1--2", "-1"):
        with pytest.raises(InputError, match="unique-ranks"):
            parse_ranks("--unique-ranks", text, 96)
