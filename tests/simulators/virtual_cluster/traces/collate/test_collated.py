"""A few ranks stand for the whole of a job."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.virtual_cluster.traces.collate.ranks import (
    LAYOUT,
    STAGES,
    TP,
    edited,
    traces_of,
)
from tests.simulators.virtual_cluster.traces.megatron_like import Layout, groups, megatron_trace
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.traces.collate.collated import collate
from trainscout.simulators.virtual_cluster.traces.collate.communication import Communicator
from trainscout.simulators.virtual_cluster.traces.collate.placement import Family, families, tile
from trainscout.simulators.virtual_cluster.traces.collate.probe import choose_ranks


def test_a_rank_of_each_stage_stands_for_the_job(everybody: list[events.Trace]) -> None:
    few = collate([everybody[rank] for rank in STAGES])
    full = collate(everybody)
    assert few.class_of_rank == full.class_of_rank
    assert not few.mismatches
    assert not few.order_problems
    assert not full.mismatches
    for rank in range(LAYOUT.world_size):
        own = {group.description: group.ranks for group in groups(LAYOUT, rank)}
        for name, family in few.group_names(rank).items():
            assert few.group(rank, name) == own[family.description]
            assert full.group(rank, name) == own[family.description]
    first = everybody[0]
    send = next(event for event in first.events if isinstance(event, events.PointToPoint))
    assert few.peer(LAYOUT.rank(1, 2, 0), send) == LAYOUT.rank(1, 2, 1)
    pipeline = next(n for n, family in few.group_names(5).items() if "PIPELINE" in str(family))
    assert [few.class_of_rank[rank] for rank in few.group(5, pipeline)] == list(STAGES)
    assert len(few.ranks_of_class(STAGES[1])) == LAYOUT.tp * LAYOUT.dp


def test_a_pipeline_joined_with_tensor_parallel_needs_no_rank_of_each_place(
    everybody: list[events.Trace],
) -> None:
    def joined(event: events.Event) -> events.Event:
        if isinstance(event, events.Group) and event.description == "MODEL_PARALLEL_GROUP":
            return dataclasses.replace(event, description="TENSOR_PIPELINE_PARALLEL_GROUP")
        return event

    job = collate([edited(everybody[rank], joined) for rank in STAGES])
    assert job.class_of_rank == collate(everybody).class_of_rank


def test_16384_ranks_stand_on_eight_traces() -> None:
    layout = Layout(tp=8, dp=256, pp=8, micro_batches=8, layers=1)
    chosen = choose_ranks(layout.world_size, lambda rank: groups(layout, rank))
    assert chosen.ranks == tuple(range(0, 16384, 2048))
    job = collate(traces_of(layout, chosen.ranks))
    assert not job.mismatches
    assert len(job.class_of_rank) == 16384
    rank = layout.rank(3, 100, 5)
    assert job.class_of_rank[rank] == chosen.ranks[5]
    data_parallel = next(n for n, f in job.group_names(rank).items() if "DATA" in str(f))
    members = tuple(layout.rank(3, d, 5) for d in range(256))
    assert job.group(rank, data_parallel) == members
    assert {job.class_of_rank[member] for member in members} == {chosen.ranks[5]}


def test_ranks_that_others_stand_for_are_matched_too(everybody: list[events.Trace]) -> None:
    # Of two data-parallel replicas that differ, stage 0 comes from one and stage 1 from the other.
    layout = Layout(tp=1, dp=2, pp=2)
    job = collate(traces_of(layout, (layout.rank(0, 0, 0), layout.rank(0, 1, 1))))
    assert not job.mismatches
    more = dataclasses.replace(layout, micro_batches=7)
    bad = [megatron_trace(layout, 0), megatron_trace(more, layout.rank(0, 1, 1))]
    found = collate(bad).mismatches
    assert {one.field for one in found} >= {"the other side of a send"}
    assert any("as rank" in str(one) for one in found)


def test_a_pipeline_of_which_one_stage_was_traced_is_no_sound_job() -> None:
    with pytest.raises(InputError, match="EMBEDDING_GROUP of 2: do not tile"):
        collate([megatron_trace(LAYOUT, 0)])
    with pytest.raises(
        InputError, match=r"no rank of stage 0 of PIPELINE.* was traced; rank 0 is"
    ):
        collate([megatron_trace(LAYOUT, STAGES[1])])
    assert not collate([megatron_trace(Layout(tp=2, dp=4, pp=1), 0)]).mismatches


def test_rings_go_round_for_every_member() -> None:
    group = events.Group("g", "CONTEXT_PARALLEL_GROUP", (0, 2, 4, 6))
    send = events.PointToPoint("send", "g", 2, 0, 8, "bfloat16", 0, 1, batch=0)
    receive = events.PointToPoint("recv", "g", 6, 0, 8, "bfloat16", 0, 2, batch=0)
    ring = events.Trace(events.Header(8, 0, 8, "h800", 1, (), {}), (group, send, receive))
    job = collate([ring])
    assert not job.mismatches
    assert not job.order_problems
    assert [job.peer(rank, send) for rank in range(8)] == [2, 3, 4, 5, 6, 7, 0, 1]
    assert [job.peer(rank, receive) for rank in range(8)] == [6, 7, 0, 1, 2, 3, 4, 5]
    backwards = dataclasses.replace(receive, peer=2)
    both_ways = events.Trace(ring.header, (group, send, backwards))
    fields = {found.field for found in collate([both_ways]).mismatches}
    assert fields == {"the other side of a send", "the other side of a recv"}


def stage_on_the_world(rank: int, tp: int) -> events.Trace:
    """Of two stages of two replicas of ``tp`` ranks, which send to each other on the world's."""
    world, half = 4 * tp, 2 * tp
    stage, block = rank // half, rank - rank % tp
    own = [
        events.Group("world", "default_pg", tuple(range(world))),
        events.Group("tp", "", tuple(range(block, block + tp))),
        events.Group("dp", "", tuple(sorted((rank, rank // half * half + (rank + tp) % half)))),
    ]
    forward = events.Phase(events.FORWARD, 0)
    kind, peer = ("recv", rank - half) if stage else ("send", rank + half)
    passed = events.PointToPoint(kind, "world", peer, 0, 8, "bfloat16", 0, 1, batch=0)
    return events.Trace(events.Header(world, rank, 8, "h800", 1, (), {}), (*own, forward, passed))


@pytest.mark.parametrize("tp", [1, 2])
def test_replicas_tell_of_pipelines_on_the_worlds_group(tp: int) -> None:
    world = 4 * tp
    everyone = [stage_on_the_world(rank, tp) for rank in range(world)]
    job = collate([everyone[0], everyone[world // 2]])
    assert job.class_of_rank == collate(everyone).class_of_rank
    assert job.class_of_rank == (0,) * (world // 2) + (world // 2,) * (world // 2)
    assert not job.mismatches
    sent = everyone[0].events[-1]
    assert isinstance(sent, events.PointToPoint)
    assert [job.peer(rank, sent) for rank in range(world // 2)] == list(range(world // 2, world))
    alone = [
        dataclasses.replace(each, events=(each.events[0], *each.events[3:])) for each in everyone
    ]
    with pytest.raises(InputError, match="do not tell what the others do"):
        collate([alone[0], alone[world // 2]])
    # Nothing is sent: what one rank does beyond the other may be its own affair.
    print_ = events.Op("aten.add.Tensor", (), (), 0, None)
    quiet = [dataclasses.replace(each, events=each.events[:-1]) for each in everyone]
    busy = dataclasses.replace(quiet[0], events=(*quiet[0].events, print_))
    with pytest.raises(InputError, match="do not tell what the others do"):
        collate([busy, quiet[world // 2]])


def test_positions_that_do_not_tell_are_refused(everybody: list[events.Trace]) -> None:
    with pytest.raises(InputError, match="do not tell what the others do; rank 6 is not rank 0"):
        collate([everybody[rank] for rank in STAGES[:3]])
    with pytest.raises(InputError, match="rank twice"):
        collate([everybody[0], everybody[0]])
    with pytest.raises(InputError, match="there are none"):
        collate([])
    with pytest.raises(InputError, match="several jobs"):
        collate([everybody[0], megatron_trace(Layout(dp=1), 0)])


def test_groups_that_do_not_tile_are_refused(everybody: list[events.Trace]) -> None:
    def shifted(event: events.Event) -> events.Event:
        if isinstance(event, events.Group) and event.description == TP:
            return dataclasses.replace(event, ranks=(event.ranks[0], event.ranks[0] + 4))
        return event

    few = [edited(everybody[rank], shifted) for rank in STAGES]
    with pytest.raises(InputError, match="rank 6 has"):
        collate(few)


@given(st.permutations([0, 1, 2]), st.lists(st.integers(1, 4), min_size=3, max_size=3))
def test_groups_of_any_grid_are_found_again_from_one_rank(
    order: list[int], sizes: list[int]
) -> None:
    """Every dimension and pair of dimensions of a grid, in any order of nesting."""
    strides, world = [0, 0, 0], 1
    for axis in order:
        strides[axis] = world
        world *= sizes[axis]
    for axes in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2)):
        offsets = {0}
        for axis in axes:
            offsets = {o + i * strides[axis] for o in offsets for i in range(sizes[axis])}
        family = Family("g", tuple(sorted(offsets)))
        group_of = tile(family, range(world))
        for rank in range(world):
            place = [rank // strides[axis] % sizes[axis] for axis in range(3)]
            lowest = rank - sum(place[axis] * strides[axis] for axis in axes)
            assert group_of[rank] == tuple(lowest + o for o in family.offsets)


def test_communicators_alike_are_told_apart_by_occurrence() -> None:
    made = [Communicator("mesh", (4, 6), 0), Communicator("mesh", (4, 6), 1)]
    assert list(families(made)) == [Family("mesh", (0, 2), 0), Family("mesh", (0, 2), 1)]
