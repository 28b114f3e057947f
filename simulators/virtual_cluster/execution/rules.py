"""Dependency rules of the user's own, added to what traces say (Moye, section 4.2).

A rule file is Python with a function ``edges(operations)``: it is given what the played ranks run
and yields pairs of these, of which the second begins when the first has ended.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.execution.issue import NO_TASK, Issued
from trainscout.simulators.virtual_cluster.execution.program import Program
from trainscout.simulators.virtual_cluster.traces.events import (
    SETUP,
    Collective,
    Event,
    Op,
    Phase,
    PointToPoint,
    Trace,
)

_FUNCTION = "edges"


@dataclass(frozen=True)
class Operation:
    """What a rank runs for one event of its trace.

    ``kind``: "kernel", or the collective's ("all_reduce", ...), "send", "recv". ``name``: of the
    kernel as in the trace, of the communicator else. ``step``: 0 of the run-up (where there is
    one), then 1. ``phase``: "forward", "backward", "optimizer", "other"; ``number``: which of them
    in the step. ``peer`` of a message; ``sequence`` as in the trace, of a message or collective.
    """

    rank: int
    event: int
    kind: str
    name: str
    step: int
    phase: str
    number: int
    peer: int | None = None
    sequence: int | None = None


Rules = Callable[[Sequence[Operation]], Iterable[tuple[Operation, Operation]]]


def read_rules(path: Path) -> Rules:
    """The ``edges`` of a rule file, which is run for that.

    Raises:
        InputError: for a file that cannot be run, or has no such function.
    """
    if not path.is_file():
        raise InputError("--rules", path, "is no file", "a Python file with a function edges")
    try:
        found = runpy.run_path(str(path)).get(_FUNCTION)
    except Exception as error:  # whatever a file of the user's raises
        raise InputError("--rules", path, f"{type(error).__name__}: {error}") from error
    if not callable(found):
        raise InputError("--rules", path, "has no function edges", "def edges(operations): ...")
    rules: Rules = found
    return rules


def add_rules(
    rules: Rules, traces: Mapping[int, Trace], issued: Mapping[int, Issued], program: Program
) -> int:
    """Add the edges that rules yield to a program; how many.

    Raises:
        InputError: for what is no pair of operations, or when the rules fail.
    """
    operations = [
        each for rank, trace in traces.items() for each in _operations(trace, rank, issued[rank])
    ]
    known = set(operations)
    count = 0
    try:
        for pair in rules(operations):
            before, after = _checked(pair, known)
            tasks = (issued[each.rank].device[each.event] for each in (before, after))
            program.edge(*tasks)
            count += 1
    except InputError:
        raise
    except Exception as error:  # whatever a function of the user's raises
        raise InputError("--rules", _FUNCTION, f"{type(error).__name__}: {error}") from error
    return count


def _checked(pair: Any, known: set[Operation]) -> tuple[Operation, Operation]:
    allowed = "pairs (before, after) of the operations it is given"
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InputError("--rules", pair, "is no pair", allowed)
    for each in pair:
        if not isinstance(each, Operation) or each not in known:
            raise InputError("--rules", each, "is no operation that runs", allowed)
    before, after = pair
    if before == after:
        raise InputError("--rules", before, "would wait for itself", allowed)
    return before, after


def _operations(trace: Trace, rank: int, issued: Issued) -> Iterator[Operation]:
    """What runs of a rank's trace, in the order the host issued it."""
    phase, number = SETUP, 0
    counts: dict[tuple[int, str], int] = {}
    for index, event in enumerate(trace.events):
        step = int(index >= issued.step_start)
        if isinstance(event, Phase):
            phase = event.phase
            number = counts[step, phase] = counts.get((step, phase), -1) + 1
        if issued.device[index] == NO_TASK:
            continue
        kind, name, peer, sequence = _described(event)
        if kind is not None:
            yield Operation(rank, index, kind, name, step, phase, number, peer, sequence)


def _described(event: Event) -> tuple[str | None, str, int | None, int | None]:
    """Kind, name, peer and sequence of what runs; no kind where the host only waits."""
    if isinstance(event, Op):
        return "kernel", event.name, None, None
    if isinstance(event, Collective):
        return event.kind, event.group, None, event.sequence
    if isinstance(event, PointToPoint):
        return event.kind, event.group, event.peer, event.sequence
    return None, "", None, None
