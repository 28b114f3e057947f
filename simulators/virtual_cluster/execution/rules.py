"""Dependency rules of the user's own, added to what traces say (``replay.rules``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainscout.simulators.predictor.replay.rules import FIELD as SETTING
from trainscout.simulators.predictor.replay.rules import Operation, Rules, pairs_of
from trainscout.simulators.virtual_cluster.traces import events

from .issue import NO_TASK, Issued
from .program import Program

FIELD = f"--{SETTING}"


def add_rules(
    rules: Rules,
    traces: Mapping[int, events.Trace],
    issued: Mapping[int, Issued],
    program: Program,
) -> int:
    """Add the edges that rules yield to a program; how many.

    Raises:
        InputError: for what is no pair of operations, or when the rules fail.
    """
    operations = [
        each for rank, trace in traces.items() for each in _operations(trace, rank, issued[rank])
    ]
    count = 0
    for before, after in pairs_of(rules, operations, FIELD):
        program.edge(*(issued[each.rank].device[each.event] for each in (before, after)))
        count += 1
    return count


def _operations(trace: events.Trace, rank: int, issued: Issued) -> Iterator[Operation]:
    """What runs of a rank's trace, in the order the host issued it."""
    phase, number = events.SETUP, 0
    counts: dict[tuple[int, str], int] = {}
    for index, event in enumerate(trace.events):
        step = int(index >= issued.step_start)
        if isinstance(event, events.Phase):
            phase = event.phase
            number = counts[step, phase] = counts.get((step, phase), -1) + 1
        if issued.device[index] == NO_TASK:
            continue
        kind, name, peer, sequence = _described(event)
        if kind is not None:
            yield Operation(rank, index, kind, name, step, phase, number, peer, sequence)


def _described(event: events.Event) -> tuple[str | None, str, int | None, int | None]:
    """Kind, name, peer and sequence of what runs; no kind where the host only waits."""
    if isinstance(event, events.Op):
        return "kernel", event.name, None, None
    if isinstance(event, events.Collective):
        return event.kind, event.group, None, event.sequence
    if isinstance(event, events.PointToPoint):
        return event.kind, event.group, event.peer, event.sequence
    return None, "", None, None
