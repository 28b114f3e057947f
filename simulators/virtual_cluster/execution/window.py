"""Which part of a trace is replayed: its last step that updates, with the one before as a run-up.

Where updates repeat a pattern (text sampled before every fourth, weights averaged across nodes
after every second), the whole pattern is replayed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.traces.vocabulary import tensors

# Two that launch so nearly as much do the same: what is logged now and then is no pattern.
_ALIKE, _FEW_ELEMENTS = 0.1, 65_536


@dataclass(frozen=True)
class Window:
    """Events ``start`` to ``stop`` of a trace are played; from ``step_start`` they are the step
    that counts. Equal when there is no run-up.

    ``last``: the step. ``updates``: of parameters in what counts. ``steps``: what counts is so
    many steps, whose mean is stated. ``by_turns``: what it updates no step before did, which
    updated others.
    """

    start: int
    step_start: int
    stop: int
    last: int
    updates: int
    steps: int
    by_turns: bool


def windows(traces: Mapping[int, events.Trace]) -> dict[int, Window]:
    """The window of each rank's trace: the same steps for all, up to the last that updates.

    With one step traced it is played from a cold start. An evaluation that ends a script is none.
    Where optimizers of unlike parameters step by turns (a GAN's), all that comes between two
    updates of the same ones counts; where steps repeat a pattern, all of it (``_pattern``).

    Raises:
        InputError: when ranks traced different steps, or none.
    """
    starts = {rank: _step_starts(trace) for rank, trace in traces.items()}
    numbers = {rank: tuple(sorted(found)) for rank, found in starts.items()}
    if len(set(numbers.values())) > 1:
        shown = {rank: list(steps) for rank, steps in numbers.items()}
        raise InputError("traces.steps", shown, "differ between ranks", "the same steps of all")
    if not all(numbers.values()):
        allowed = "a forward, backward or optimizer phase"
        raise InputError("traces.steps", 0, "none was traced", allowed)
    steps = next(iter(numbers.values()))
    updates = {rank: _updated(trace) for rank, trace in traces.items()}
    # Without any update all steps count.
    last = max((step for found in updates.values() for step in found), default=steps[-1])
    before = min(_before(last, found) for found in updates.values())
    others = [
        set().union(*(found[step] for step in found if step < last)) for found in updates.values()
    ]
    by_turns = all(
        seen and found.get(last) and not seen & found[last]
        for seen, found in zip(others, updates.values(), strict=True)
    )
    work = [launched(trace, last) for trace in traces.values()]
    period, several = _pattern(work), 1
    if period > last - before:
        before = last - period
        # Optimizers that step by turns make a step together.
        turn = max(
            step - _before(step, found)
            for found in updates.values()
            for step in range(before + 1, last + 1)
        )
        one = turn > 1 or any(
            _feeds(trace, each, period) for trace, each in zip(traces.values(), work, strict=True)
        )
        several = 1 if one else period
    return {
        rank: _window(starts[rank], before, last, traces[rank], several, by_turns)
        for rank in traces
    }


def _step_starts(trace: events.Trace) -> dict[int, int]:
    """Where each step begins: its first phase."""
    found: dict[int, int] = {}
    for index, event in enumerate(trace.events):
        if isinstance(event, events.Phase) and event.phase != events.SETUP:
            found.setdefault(event.step, index)
    return found


def _updated(trace: events.Trace) -> dict[int, set[int]]:
    """Storages that optimizers read or wrote, by step; not of scalars, which they may share."""
    found: dict[int, set[int]] = {}
    now: set[int] | None = None
    for event in trace.events:
        if isinstance(event, events.Phase):
            updates = event.phase == events.OPTIMIZER
            now = found.setdefault(event.step, set()) if updates else None
        elif now is not None and isinstance(event, events.Op):
            now.update(
                each.storage
                for each in tensors(event.inputs)
                if each.storage is not None and math.prod(each.shape) > 1
            )
    return found


def _before(last: int, updated: Mapping[int, set[int]]) -> int:
    """The step that updated what ``last`` does; if none did, that before it."""
    of_last = updated.get(last, set())
    alike = (step for step in updated if step < last and updated[step] & of_last)
    return max(alike, default=last - 1)


@dataclass(slots=True)
class Work:
    """What a rank launches from the end of one update to that of the next.

    ``forward``: operations of forward passes, which write so many elements as ``written``, more
    with more tokens or pixels; ``others``: the rest, by name, and the ``elements``
    that those read and write.
    """

    forward: int = 0
    written: int = 0
    others: Counter[str] = field(default_factory=Counter)
    elements: Counter[str] = field(default_factory=Counter)
    communications: int = 0


def launched(trace: events.Trace, last: int) -> list[Work]:
    """By step, up to ``last``."""
    found = [Work() for _ in range(last + 1)]
    phase, now, updated = events.SETUP, 0, -1
    for event in trace.events:
        if isinstance(event, events.Phase):
            phase = event.phase
            if phase == events.OPTIMIZER:
                updated = event.step
            # What follows an update belongs to the next.
            now = event.step + (event.step == updated and phase != events.OPTIMIZER)
            if now > last:
                break
        elif phase == events.SETUP:
            continue
        elif isinstance(event, events.Op):
            if phase == events.FORWARD:
                found[now].forward += 1
                found[now].written += sum(math.prod(each.shape) for each in event.outputs)
            else:
                found[now].others[event.name] += 1
                found[now].elements[event.name] += sum(
                    math.prod(each.shape) for each in tensors((event.inputs, event.outputs))
                )
        elif isinstance(event, events.Collective | events.PointToPoint):
            found[now].communications += 1
    return found


def _pattern(ranks: Sequence[Sequence[Work]]) -> int:
    """After how many steps all ranks do the same again; 1 where none was seen twice.

    What the first step and its update do once, such as make what later ones have, is not asked:
    of the first step only forward passes count, of the second communication, too.
    """
    count = min(map(len, ranks))
    for period in range(1, count // 2 + 1):
        if all(_repeats(work, period) for work in ranks):
            return period
    return 1


def _repeats(work: Sequence[Work], period: int) -> bool:
    if len(work) == 2 * period and _alike(work[0].forward, work[1].forward):
        return False
    pairs = [(work[at - period], work[at]) for at in range(period, len(work))]
    # An evaluation after every so many updates is none before the first.
    fewer = len(work) > 2 * period and work[0].forward < work[period].forward
    return (
        all(_alike(one.forward, other.forward) for one, other in pairs[fewer:])
        and all(_alike(one.communications, other.communications) for one, other in pairs[1:])
        and not any(unlike(one, other) for one, other in pairs[2:])
    )


def _alike(one: int, other: int) -> bool:
    return abs(one - other) <= _ALIKE * max(one, other)


def unlike(one: Work, other: Work) -> list[str]:
    """Operations outside forward passes that one of two runs so many times, the other does not."""
    names = one.others.keys() | other.others.keys()
    return sorted(
        name
        for name in names
        if not _alike(one.others[name], other.others[name])
        and abs(one.elements[name] - other.elements[name]) > _FEW_ELEMENTS
    )


def _feeds(trace: events.Trace, work: Sequence[Work], period: int) -> bool:
    """Whether a pattern's longest forward passes make what its last update still reads: text is
    sampled for all of them. An evaluation is read by none."""
    last = len(work) - 1
    longest = max(
        range(last - 2 * period + 2, last - period + 2), key=lambda step: work[step].forward
    )
    seen: set[int | None] = {None}
    made: set[int | None] = set()
    phase, step = events.SETUP, 0
    for event in trace.events:
        if isinstance(event, events.Phase):
            phase, step = event.phase, event.step
        elif isinstance(event, events.Op):
            forward = phase == events.FORWARD
            if forward and step == longest + period - 1:
                if any(each.storage in made for each in tensors(event.inputs)):
                    return True
            elif step <= longest:
                new = {each.storage for each in tensors((event.inputs, event.outputs))}
                new -= seen
                seen |= new
                if forward and step == longest:
                    made |= new
    return False


def _window(
    starts: Mapping[int, int],
    before: int,
    last: int,
    trace: events.Trace,
    several: int,
    by_turns: bool,
) -> Window:
    stop = min((starts[step] for step in starts if step > last), default=len(trace.events))
    start = min(starts[step] for step in starts if step >= before)
    counts = min(starts[step] for step in starts if step > before)
    start = _with_early_transfers(start, trace)
    return Window(start, counts, stop, last, last - before, several, by_turns)


def _with_early_transfers(start: int, trace: events.Trace) -> int:
    """A pipeline's later stages receive before their first forward pass, which begins the step:
    back to the first transfer since the last collective or optimizer's step."""
    found = start
    for index in range(start - 1, -1, -1):
        event = trace.events[index]
        if isinstance(event, events.PointToPoint):
            found = index
        elif isinstance(event, events.Collective) or (
            isinstance(event, events.Phase) and event.phase == events.OPTIMIZER
        ):
            break
    return found
