"""Ranks of a job are matched, sorted into classes, and stand for the whole of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.errors import InputError
from simulators.traces.collate import (
    Classes,
    Communicator,
    Mismatch,
    check_order,
    choose_ranks,
    classes,
    collate,
    communication,
    content,
    match,
    told_ranks,
)
from simulators.traces.collate.families import Family, families, tile
from simulators.traces.events import (
    Collective,
    Event,
    Group,
    Header,
    Op,
    Phase,
    PointToPoint,
    Site,
    TensorSpec,
    Trace,
)
from tests.simulators.traces.megatron_like import Layout, groups, megatron_trace

LAYOUT = Layout()
STAGES = tuple(LAYOUT.rank(0, 0, stage) for stage in range(LAYOUT.pp))
TP = "TENSOR_MODEL_PARALLEL_GROUP"


def traces_of(layout: Layout, ranks: Iterable[int]) -> list[Trace]:
    return [megatron_trace(layout, rank) for rank in ranks]


@pytest.fixture(scope="module")
def everybody() -> list[Trace]:
    return traces_of(LAYOUT, range(LAYOUT.world_size))


def edited(trace: Trace, edit: Callable[[Event], Event | None]) -> Trace:
    events = [changed for event in trace.events if (changed := edit(event)) is not None]
    return Trace(trace.header, tuple(events))


def nth_collective(trace: Trace, description: str, sequence: int, **changes: object) -> Trace:
    """The trace with one collective changed."""
    name = next(
        event.name
        for event in trace.events
        if isinstance(event, Group) and event.description == description
    )

    def edit(event: Event) -> Event:
        if isinstance(event, Collective) and (event.group, event.sequence) == (name, sequence):
            return dataclasses.replace(event, **changes)  # type: ignore[arg-type]
        return event

    return edited(trace, edit)


def mismatches(traces: Sequence[Trace]) -> tuple[Mismatch, ...]:
    return match([communication(trace) for trace in traces]).mismatches


# Matching


def test_a_sound_job_matches_launch_by_launch(everybody: list[Trace]) -> None:
    matching = match([communication(trace) for trace in everybody])
    assert not matching.mismatches
    for meeting in matching.collectives:
        assert tuple(one.rank for one in meeting.launches) == meeting.communicator.ranks
    # Forward and backward transfers between each pair of neighbouring stages.
    pairs = LAYOUT.tp * LAYOUT.dp * (LAYOUT.pp - 1)
    assert len(matching.transfers) == pairs * 2 * LAYOUT.micro_batches
    for meeting in matching.transfers:
        send, receive = (one.event for one in meeting.launches)
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


def test_everything_after_the_first_mismatch_is_counted_not_listed(
    everybody: list[Trace],
) -> None:
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
    assert {one.field for one in found} == {
        "the other side of a send",
        "the other side of a recv",
    }
    assert f"no such receive of rank {STAGES[1]}" in str(found[0])


GROUP = Group("g", "EXPERT_MODEL_PARALLEL_GROUP", (0, 1))


def rank_with(rank: int, *events: Event, world_size: int = 2) -> Trace:
    return Trace(Header(world_size, rank, 8, "h800", 1, (), {}), (GROUP, *events))


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


# Order


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


# Content and classes


def test_ranks_of_a_stage_are_one_class_but_for_the_optimizer(everybody: list[Trace]) -> None:
    found = classes([content(trace) for trace in everybody])
    stage_of = {rank: STAGES[LAYOUT.place(rank)[2]] for rank in range(LAYOUT.world_size)}
    assert found.first_of == stage_of
    assert {one.phase for one in found.tolerated} == {"optimizer"}
    assert len(found.separating) == LAYOUT.pp - 1
    assert "forward" in str(found.separating[0]) or "backward" in str(found.separating[0])


def test_numbers_sites_and_gaps_are_no_content(everybody: list[Trace]) -> None:
    layout = dataclasses.replace(LAYOUT, tp=1)
    one, other = megatron_trace(layout, 0), megatron_trace(layout, 1)
    assert one.events != other.events
    for a, b in zip(content(one).phases, content(other).phases, strict=True):
        assert (a.phase, a.digest == b.digest) in {(a.phase, True), ("optimizer", False)}


def test_another_shape_is_another_class(everybody: list[Trace]) -> None:
    def wider(event: Event) -> Event:
        if isinstance(event, Op) and event.name == "aten.mm.default":
            output = dataclasses.replace(event.outputs[0], shape=(1, 2))
            return dataclasses.replace(event, outputs=(output,))
        return event

    found = classes([content(everybody[0]), content(edited(everybody[1], wider))])
    assert found.first_of == {0: 0, 1: 1}
    assert found.separating[0].phase in ("forward", "backward")


def test_differences_in_the_optimizer_are_tolerated_within_the_bound(
    everybody: list[Trace],
) -> None:
    (difference,) = classes([content(everybody[rank]) for rank in (0, 1)]).tolerated
    assert difference.phase == "optimizer"
    assert difference.operations == ()
    assert 0 < difference.work < 0.001
    assert difference.communicated == 0

    def with_shard(times: float) -> Trace:
        def edit(event: Event) -> Event:
            if isinstance(event, Op) and "adamw" in event.name:
                (shard,) = {argument for argument in event.inputs if argument}
                assert isinstance(shard, tuple)
                first, second = shard
                assert isinstance(second, TensorSpec)
                larger = dataclasses.replace(second, shape=(int(second.shape[0] * times),))
                return dataclasses.replace(event, inputs=((first, larger),) * 4)
            return event

        return edited(everybody[1], edit)

    def first_of(times: float, **tolerance: float) -> dict[int, int]:
        contents = [content(everybody[0]), content(with_shard(times))]
        return classes(contents, **tolerance).first_of

    assert first_of(1.01) == {0: 0, 1: 0}
    assert first_of(1.5) == {0: 0, 1: 1}
    assert first_of(1.5, tolerance=0.5) == {0: 0, 1: 0}


def test_within_the_schedule_sizes_may_differ_a_little_and_launches_not(
    everybody: list[Trace],
) -> None:
    def resized(tokens: int) -> Trace:
        def edit(event: Event) -> Event:
            if isinstance(event, Op) and event.name == "aten.mm.default":
                larger = dataclasses.replace(event.outputs[0], shape=(tokens, 1024))
                return dataclasses.replace(event, outputs=(larger,))
            return event

        return edited(everybody[0], edit)

    def compared(one: Trace, other: Trace) -> Classes:
        renamed = dataclasses.replace(other.header, rank=1)
        other = Trace(renamed, other.events)
        return classes([content(one), content(other, communication(one))])

    little = compared(resized(512), resized(514))
    assert little.first_of == {0: 0, 1: 0}
    assert {one.phase for one in little.tolerated} == {"forward", "backward"}
    assert all(one.same_schedule for one in little.tolerated)
    assert "other sizes" in str(little.tolerated[0])
    assert compared(resized(512), resized(2048)).first_of == {0: 0, 1: 1}

    def one_more(event: Event) -> bool:
        return isinstance(event, Phase) and event.phase == "forward"

    place = next(i for i, event in enumerate(everybody[0].events) if one_more(event))
    events = list(everybody[0].events)
    events.insert(place + 1, Op("aten.mul.Tensor", (), (), 0))
    longer = compared(everybody[0], Trace(everybody[0].header, tuple(events)))
    assert longer.first_of == {0: 0, 1: 1}
    assert longer.separating[0].operations == (("aten.mul.Tensor", 0, 1),)


def test_a_phase_that_is_hardly_any_work_may_differ(everybody: list[Trace]) -> None:
    small = TensorSpec("float32", (1,), 1)
    printing = Phase("other", 0), Op("aten._local_scalar_dense.default", (small,), (), 0)
    prints = Trace(everybody[1].header, (*everybody[1].events, *printing))
    found = classes([content(everybody[0]), content(prints)])
    assert found.first_of == {0: 0, 1: 0}
    (difference,) = [one for one in found.tolerated if one.phase == "other"]
    assert difference.work == 1
    assert difference.of_step < 1e-6
    assert difference.operations == (("aten._local_scalar_dense.default", 0, 1),)


def test_numbers_and_the_device_of_a_rank_are_no_content() -> None:
    tensor = TensorSpec("int64", (8,), 1)

    def digest(*arguments: object) -> str:
        op = Op("aten.lt.Scalar", (tensor, *arguments), (tensor,), 0)  # type: ignore[arg-type]
        (phase,) = content(rank_with(0, Phase("forward", 0), op)).phases
        return phase.digest

    assert digest(100, ("device", "cuda:0")) == digest(200, ("device", "cuda:5"))
    assert digest(100, ("device", "cuda:0")) != digest(True, ("device", "cuda:0"))
    assert digest("bfloat16") != digest("float32")


# The whole job


def test_a_rank_of_each_stage_stands_for_the_job(everybody: list[Trace]) -> None:
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
    send = next(event for event in first.events if isinstance(event, PointToPoint))
    assert few.peer(LAYOUT.rank(1, 2, 0), send) == LAYOUT.rank(1, 2, 1)
    pipeline = next(n for n, family in few.group_names(5).items() if "PIPELINE" in str(family))
    assert few.members_by_class(5, pipeline) == dict.fromkeys(STAGES, 1)
    assert len(few.ranks_of_class(STAGES[1])) == LAYOUT.tp * LAYOUT.dp


def test_a_pipeline_joined_with_tensor_parallel_needs_no_rank_of_each_place(
    everybody: list[Trace],
) -> None:
    def joined(event: Event) -> Event:
        if isinstance(event, Group) and event.description == "MODEL_PARALLEL_GROUP":
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
    assert job.members_by_class(rank, data_parallel) == {chosen.ranks[5]: 256}


def test_ranks_that_others_stand_for_are_matched_too(everybody: list[Trace]) -> None:
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
    group = Group("g", "CONTEXT_PARALLEL_GROUP", (0, 2, 4, 6))
    send = PointToPoint("send", "g", 2, 0, 8, "bfloat16", 0, 1, batch=0)
    receive = PointToPoint("recv", "g", 6, 0, 8, "bfloat16", 0, 2, batch=0)
    ring = Trace(Header(8, 0, 8, "h800", 1, (), {}), (group, send, receive))
    job = collate([ring])
    assert not job.mismatches
    assert not job.order_problems
    assert [job.peer(rank, send) for rank in range(8)] == [2, 3, 4, 5, 6, 7, 0, 1]
    assert [job.peer(rank, receive) for rank in range(8)] == [6, 7, 0, 1, 2, 3, 4, 5]
    backwards = dataclasses.replace(receive, peer=2)
    both_ways = Trace(ring.header, (group, send, backwards))
    fields = {found.field for found in collate([both_ways]).mismatches}
    assert fields == {"the other side of a send", "the other side of a recv"}


def test_positions_that_do_not_tell_are_refused(everybody: list[Trace]) -> None:
    with pytest.raises(InputError, match="do not tell what the others do; rank 6 is not rank 0"):
        collate([everybody[rank] for rank in STAGES[:3]])
    with pytest.raises(InputError, match="rank twice"):
        collate([everybody[0], everybody[0]])
    with pytest.raises(InputError, match="there are none"):
        collate([])
    with pytest.raises(InputError, match="several jobs"):
        collate([everybody[0], megatron_trace(Layout(dp=1), 0)])


def test_groups_that_do_not_tile_are_refused(everybody: list[Trace]) -> None:
    def shifted(event: Event) -> Event:
        if isinstance(event, Group) and event.description == TP:
            return dataclasses.replace(event, ranks=(event.ranks[0], event.ranks[0] + 4))
        return event

    few = [edited(everybody[rank], shifted) for rank in STAGES]
    with pytest.raises(InputError, match="rank 6 has"):
        collate(few)


@given(st.permutations([0, 1, 2]), st.lists(st.integers(1, 4), min_size=3, max_size=3))
@settings(max_examples=60, deadline=None)
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


# Choosing ranks


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


def test_told_ranks() -> None:
    assert told_ranks("--unique-ranks", "0, 24,2-4,3", 96) == (0, 2, 3, 4, 24)
    for text in ("", "a", "5-2", "96", "1--2", "-1"):
        with pytest.raises(InputError, match="unique-ranks"):
            told_ranks("--unique-ranks", text, 96)


def test_setup_of_a_rank_says_nothing_of_its_phases() -> None:
    phases = content(megatron_trace(LAYOUT, 0)).phases
    assert phases[0].phase == "setup"
    assert sum(phase.phase == "backward" for phase in phases) == LAYOUT.micro_batches
    assert isinstance(megatron_trace(LAYOUT, 0).events[1], Phase)
