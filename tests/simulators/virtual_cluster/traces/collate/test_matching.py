"""What ranks of a job launch is matched, and must come in one order."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.simulators.virtual_cluster.traces.collate.ranks import (
    GROUP,
    LAYOUT,
    STAGES,
    TP,
    edited,
    mismatches,
    nth_collective,
    rank_with,
)
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.collate.communication import (
    Communication,
    Communicator,
    communication,
)
from trainscout.simulators.virtual_cluster.traces.collate.matching import check_order, match
from trainscout.simulators.virtual_cluster.traces.events import (
    Collective,
    Event,
    Group,
    Op,
    PointToPoint,
    Site,
    Trace,
    WorkWait,
)


def test_a_sound_job_matches_launch_by_launch(everybody: list[Trace]) -> None:
    matching = match([communication(trace) for trace in everybody])
    assert not matching.mismatches
    for rendezvous in matching.collectives:
        assert tuple(one.rank for one in rendezvous.launches) == rendezvous.communicator.ranks
    # Forward and backward transfers between each pair of neighbouring stages.
    pairs = LAYOUT.tp * LAYOUT.dp * (LAYOUT.pp - 1)
    assert len(matching.transfers) == pairs * 2 * LAYOUT.micro_batches
    for rendezvous in matching.transfers:
        send, receive = (one.event for one in rendezvous.launches)
        assert (send.kind, receive.kind) == ("send", "recv")
    assert not check_order([communication(trace) for trace in everybody])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"kind": "all_reduce"},
            "kind differs: reduce_scatter of rank 0 at train.py:10 in step; ",
        ),
        ({"bytes_in": 7}, "bytes_in differs: "),
        ({"dtype": "float32"}, "dtype differs: bfloat16 of rank 0 at train.py:10 in step"),
    ],
)
def test_what_does_not_fit_is_named_with_both_call_sites(
    everybody: list[Trace], changes: dict[str, object], problem: str
) -> None:
    bad = nth_collective(everybody[1], TP, 4, **changes)
    (found,) = mismatches([everybody[0], bad, *everybody[2:]])
    assert found.sequence == 4
    assert found.communicator == Communicator(TP, (0, 1))
    assert problem in str(found)
    assert "rank 1 at train.py:11 in step" in str(found)


def test_a_collective_too_few_is_a_mismatch(everybody: list[Trace]) -> None:
    last = max(
        event.sequence
        for event in everybody[1].events
        if isinstance(event, Collective) and event.group.startswith(TP)
    )
    fewer = edited(
        everybody[1],
        lambda event: (
            None
            if isinstance(event, Collective)
            and event.group.startswith(TP)
            and event.sequence == last
            else event
        ),
    )
    (found,) = mismatches([everybody[0], fewer])
    assert found.field == "number of collectives"
    assert f"{last + 1} of rank 0 at train.py:10" in str(found)
    assert f"{last} of rank 1 at train.py:11" in str(found)


def test_everything_after_the_first_mismatch_is_counted_not_listed(everybody: list[Trace]) -> None:
    bad = edited(
        everybody[1],
        lambda event: (
            dataclasses.replace(event, dtype="float32")
            if isinstance(event, Collective) and event.group.startswith(TP)
            else event
        ),
    )
    (found,) = mismatches([everybody[0], bad])
    launches = sum(
        isinstance(event, Collective) and event.group.startswith(TP)
        for event in everybody[0].events
    )
    assert (found.sequence, found.further) == (0, launches - 1)


def test_a_member_without_the_communicator_is_a_mismatch(everybody: list[Trace]) -> None:
    def without(event: Event) -> Event | None:
        here = getattr(event, "group", getattr(event, "description", ""))
        return None if str(here).startswith(TP) and not isinstance(event, Op) else event

    (found,) = mismatches([everybody[0], edited(everybody[1], without)])
    assert found.field == "membership"
    assert "rank 1 never made this communicator" in str(found)


def test_a_send_of_other_size_and_one_that_nobody_receives(everybody: list[Trace]) -> None:
    first, second = everybody[STAGES[0]], everybody[STAGES[1]]
    larger = edited(
        first,
        lambda event: (
            dataclasses.replace(event, bytes=9) if isinstance(event, PointToPoint) else event
        ),
    )
    assert {found.field for found in mismatches([larger, second])} == {"bytes"}
    silent = edited(second, lambda event: None if isinstance(event, PointToPoint) else event)
    found = mismatches([first, silent])
    assert {one.field for one in found} == {"the other side of a send", "the other side of a recv"}
    assert f"no such receive of rank {STAGES[1]}" in str(found[0])


def all_to_all(splits_in: tuple[int, ...], splits_out: tuple[int, ...]) -> Collective:
    sizes = 8 * sum(splits_in), 8 * sum(splits_out)
    return Collective(
        "all_to_all", "g", 0, *sizes, "bfloat16", 0, 1, splits_in=splits_in, splits_out=splits_out
    )


def test_what_one_sends_in_an_all_to_all_the_other_receives() -> None:
    fits = rank_with(0, all_to_all((1, 3), (1, 2))), rank_with(1, all_to_all((2, 5), (3, 5)))
    assert not mismatches(fits)
    wrong = rank_with(0, all_to_all((1, 3), (1, 2))), rank_with(1, all_to_all((2, 5), (4, 5)))
    (found,) = mismatches(wrong)
    assert found.field == "bytes from 0 to 1"


def test_roots_may_have_other_buffers_but_must_agree_on_who_it_is() -> None:
    def broadcast(bytes_in: int, bytes_out: int, root: int) -> Collective:
        return Collective("broadcast", "g", 0, bytes_in, bytes_out, "int64", 0, 1, root=root)

    assert not mismatches([rank_with(0, broadcast(8, 0, 0)), rank_with(1, broadcast(0, 8, 0))])
    (found,) = mismatches([rank_with(0, broadcast(8, 8, 0)), rank_with(1, broadcast(8, 8, 1))])
    assert found.field == "root"


def test_traces_that_contradict_themselves_are_refused() -> None:
    launch = Collective("all_reduce", "g", 0, 8, 8, "float32", 0, 1)
    for events, problem in [
        ([dataclasses.replace(launch, group="h")], "never made"),
        ([dataclasses.replace(launch, sequence=1)], "number 1 follows -1"),
        ([Group("g", GROUP.description, (0, 1, 2))], "makes g twice"),
    ]:
        with pytest.raises(InputError, match=problem):
            communication(rank_with(0, *events))


def test_sends_that_wait_for_each_other_hang() -> None:
    def transfer(kind: str, peer: int, batch: int | None) -> PointToPoint:
        return PointToPoint(kind, "g", peer, 0, 8, "bfloat16", 0, 1, batch)

    def both(rank: int, batch: int | None) -> Trace:
        peer = 1 - rank
        return rank_with(rank, transfer("send", peer, batch), transfer("recv", peer, batch))

    alone = [communication(both(rank, None)) for rank in (0, 1)]
    (problem,) = check_order(alone)
    assert problem.hangs
    assert len(problem.launches) == 2
    assert "send with 1 #0" in problem.launches[0]
    grouped = [communication(both(rank, 7)) for rank in (0, 1)]
    assert not check_order(grouped)
    answers = rank_with(1, transfer("recv", 0, None), transfer("send", 0, None))
    assert not check_order([alone[0], communication(answers)])


def test_two_communicators_that_wait_for_each_other_hang() -> None:
    other = Group("h", "DATA_PARALLEL_GROUP", (0, 1))
    first = Collective("all_reduce", "g", 0, 8, 8, "float32", 0, 1, site=1)
    second = dataclasses.replace(first, group="h", work=2)
    site = Site(1, "a.py", 5, "f")

    def in_order(rank: int, *launches: Collective, stream: int = 0) -> Communication:
        waited = [each for one in launches for each in (one, WorkWait(one.work, stream))]
        return communication(rank_with(rank, other, site, *waited))

    ranks = [in_order(0, first, second), in_order(1, second, first)]
    hangs = next(each for each in check_order(ranks) if each.hangs)
    assert [text.count("a.py:5 in f") for text in hangs.launches] == [1, 1]
    # Another stream waits: both are under way.
    loose = [in_order(0, first, second, stream=7), in_order(1, second, first, stream=7)]
    assert not any(each.hangs for each in check_order(loose))


def test_a_communicator_keeps_the_hosts_order_whatever_the_streams() -> None:
    def launched(rank: int, streams: tuple[int, int]) -> Communication:
        events = [
            Collective("all_reduce", "g", number, 8, 8, "float32", stream, number)
            for number, stream in enumerate(streams)
        ]
        return communication(rank_with(rank, *events))

    for streams in ((0, 1), (1, 0)):
        assert not check_order([launched(0, streams), launched(1, (0, 0))])


def test_a_ring_that_receives_first_hangs() -> None:
    def ring(rank: int, kinds: tuple[str, str]) -> Communication:
        events: list[Any] = [Group("r", "RING", (0, 1, 2))]
        for work, kind in enumerate(kinds):
            peer = (rank + (1 if kind == "send" else -1)) % 3
            events += [PointToPoint(kind, "r", peer, 0, 8, "bfloat16", 0, work), WorkWait(work, 0)]
        return communication(rank_with(rank, *events))

    (problem,) = check_order([ring(rank, ("recv", "send")) for rank in range(3)])
    assert problem.hangs
    assert all(text.startswith("recv") for text in problem.launches)
    started = [ring(0, ("send", "recv")), *(ring(rank, ("recv", "send")) for rank in (1, 2))]
    assert not check_order(started)


def test_two_communicators_in_two_orders_are_flagged() -> None:
    other = Group("h", "DATA_PARALLEL_GROUP", (0, 1))
    on_g = Collective("all_reduce", "g", 0, 8, 8, "float32", 0, 1, site=1)
    on_h = dataclasses.replace(on_g, group="h")
    here = rank_with(0, other, Site(1, "a.py", 5, "f"), on_g, on_h)
    there = rank_with(1, other, on_h, on_g)
    (problem,) = check_order([communication(here), communication(there)])
    assert not problem.hangs
    assert "a.py:5 in f" in str(problem)
    assert not check_order([communication(here), communication(rank_with(1, other, on_g, on_h))])
