"""Which part of a trace is replayed: its last step, with the one before it as a run-up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.events import (
    SETUP,
    Collective,
    Event,
    Phase,
    PointToPoint,
    Trace,
)


@dataclass(frozen=True)
class Window:
    """Events ``start`` to ``stop`` of a trace are played; from ``step_start`` they are the step
    that counts. Equal when there is no run-up."""

    start: int
    step_start: int
    stop: int


def windows(traces: Mapping[int, Trace]) -> dict[int, Window]:
    """The window of each rank's trace: the same steps for all.

    With one step traced it is played from a cold start.

    Raises:
        InputError: when ranks traced different steps, or none.
    """
    starts = {rank: _step_starts(trace.events) for rank, trace in traces.items()}
    numbers = {rank: tuple(sorted(found)) for rank, found in starts.items()}
    if len(set(numbers.values())) > 1:
        shown = {rank: list(steps) for rank, steps in numbers.items()}
        raise InputError("traces.steps", shown, "differ between ranks", "the same steps of all")
    if not all(numbers.values()):
        allowed = "a forward, backward or optimizer phase"
        raise InputError("traces.steps", 0, "none was traced", allowed)
    return {rank: _window(starts[rank], trace.events) for rank, trace in traces.items()}


def _step_starts(events: tuple[Event, ...]) -> dict[int, int]:
    """Where each step begins: its first phase."""
    found: dict[int, int] = {}
    for index, event in enumerate(events):
        if isinstance(event, Phase) and event.phase != SETUP:
            found.setdefault(event.step, index)
    return found


def _window(starts: dict[int, int], events: tuple[Event, ...]) -> Window:
    steps = sorted(starts)
    last = starts[steps[-1]]
    start = starts[steps[-2]] if len(steps) > 1 else last
    return Window(_with_early_transfers(start, events), last, len(events))


def _with_early_transfers(start: int, events: tuple[Event, ...]) -> int:
    """A pipeline's later stages receive before their first forward pass, which begins the step:
    back to the first transfer since the last collective."""
    found = start
    for index in range(start - 1, -1, -1):
        if isinstance(events[index], PointToPoint):
            found = index
        elif isinstance(events[index], Collective):
            break
    return found
