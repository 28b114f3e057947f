"""Ranks of a small job, sound and with something changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from tests.simulators.virtual_cluster.traces.megatron_like import Layout, megatron_trace
from trainscout.simulators.virtual_cluster.traces.collate.communication import communication
from trainscout.simulators.virtual_cluster.traces.collate.matching import Mismatch, match
from trainscout.simulators.virtual_cluster.traces.events import (
    Collective,
    Event,
    Group,
    Header,
    Trace,
)

LAYOUT = Layout()
STAGES = tuple(LAYOUT.rank(0, 0, stage) for stage in range(LAYOUT.pp))
TP = "TENSOR_MODEL_PARALLEL_GROUP"


def traces_of(layout: Layout, ranks: Iterable[int]) -> list[Trace]:
    return [megatron_trace(layout, rank) for rank in ranks]


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


GROUP = Group("g", "EXPERT_MODEL_PARALLEL_GROUP", (0, 1))


def rank_with(rank: int, *events: Event, world_size: int = 2) -> Trace:
    return Trace(Header(world_size, rank, 8, "h800", 1, (), {}), (GROUP, *events))
