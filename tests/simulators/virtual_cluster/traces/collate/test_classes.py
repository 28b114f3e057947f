"""Ranks that do the same are one class."""

from __future__ import annotations

import dataclasses

from tests.simulators.virtual_cluster.traces.collate.ranks import LAYOUT, STAGES, edited, rank_with
from tests.simulators.virtual_cluster.traces.megatron_like import megatron_trace
from trainscout.simulators.virtual_cluster.traces.collate.classes import Classes, classes
from trainscout.simulators.virtual_cluster.traces.collate.communication import communication
from trainscout.simulators.virtual_cluster.traces.collate.content import content
from trainscout.simulators.virtual_cluster.traces.events import Event, Op, Phase, TensorSpec, Trace


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


def test_setup_of_a_rank_says_nothing_of_its_phases() -> None:
    phases = content(megatron_trace(LAYOUT, 0)).phases
    assert phases[0].phase == "setup"
    assert sum(phase.phase == "backward" for phase in phases) == LAYOUT.micro_batches
    assert isinstance(megatron_trace(LAYOUT, 0).events[1], Phase)
