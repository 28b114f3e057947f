"""What a rank does in each phase, in a form that equal ranks share.

Ranks that do the same work still differ in numbers (storages, works, events, streams, sites), in
CPU time and in whom they talk to. So each phase of each step is digested with those numbers
counted anew from its start, without sites, CPU time, values read, the roots of broadcasts, and
numbers and devices among the arguments of operations, and with communicators named by their role.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from trainscout.simulators.virtual_cluster.traces import events

from .communication import Communication, communication

USER_RANGE = "user"
DEVICE_PREFIX = "cuda:"


@dataclass(frozen=True)
class PhaseContent:
    """One phase of one step: its digest, and what it amounts to.

    ``schedule`` is a digest without the shapes and storages that operations work on, and without
    memory: launches, communicated bytes and waits in order.
    ``operations`` counts launches by name, communications as ``kind role``; ``elements`` are those
    of all tensors that operations read and write; ``communicated_bytes`` those that communications
    read and write.
    """

    phase: str
    step: int
    digest: str
    schedule: str
    operations: Counter[str]
    elements: int
    communicated_bytes: int


@dataclass(frozen=True)
class Content:
    """All phases of a rank, in order; a phase that is entered again (micro-batches) is new."""

    rank: int
    phases: tuple[PhaseContent, ...]


def content(trace: events.Trace, ranks_communication: Communication | None = None) -> Content:
    """Digest a trace phase by phase.

    Raises:
        InputError: as ``communication``, which is made of the trace unless given.
    """
    roles = _roles(ranks_communication or communication(trace))
    phases = []
    current, gathered = events.Phase(events.SETUP, 0), _Gathering(roles)
    for event in trace.events:
        if type(event) is events.Phase:
            if gathered.operations or gathered.lines:
                phases.append(gathered.content(current))
            current, gathered = event, _Gathering(roles)
        else:
            gathered.add(event)
    if gathered.operations or gathered.lines:
        phases.append(gathered.content(current))
    return Content(trace.header.rank, tuple(phases))


def _roles(ranks_communication: Communication) -> dict[str, _Role]:
    """What each communicator is to its member: description, size, which of several alike."""
    seen: Counter[tuple[str, int]] = Counter()
    roles = {}
    for name, communicator in ranks_communication.communicators.items():
        alike = (communicator.description, len(communicator.ranks))
        text = f"{communicator.description}/{len(communicator.ranks)}/{seen[alike]}"
        seen[alike] += 1
        position = communicator.ranks.index(ranks_communication.rank)
        roles[name] = _Role(text, communicator.ranks, position)
    return roles


@dataclass(frozen=True)
class _Role:
    text: str
    ranks: tuple[int, ...]
    position: int

    def offset(self, peer: int) -> int:
        """How many members further the peer is, round the communicator."""
        return (self.ranks.index(peer) - self.position) % len(self.ranks)


# What a line says of the schedule (launches and waits; nothing for memory), and the sizes and
# storages that it is about.
_Line = tuple[str, str]


class _Gathering:
    """Collects one phase."""

    def __init__(self, roles: dict[str, _Role]) -> None:
        self.lines: list[_Line] = []
        self.operations: Counter[str] = Counter()
        self._roles = roles
        self._elements = 0
        self._communicated_bytes = 0
        self._numbers: dict[str, dict[int, int]] = defaultdict(dict)

    def content(self, phase: events.Phase) -> PhaseContent:
        return PhaseContent(
            phase.phase,
            phase.step,
            _digest([f"{launched} {sizes}" for launched, sizes in self.lines]),
            _digest([launched for launched, _ in self.lines if launched]),
            self.operations,
            self._elements,
            self._communicated_bytes,
        )

    def add(self, event: events.Event) -> None:
        write = _WRITERS.get(type(event))
        line = None if write is None else write(self, event)
        if line is not None:
            self.lines.append(line)

    def number(self, kind: str, number: int | None) -> int | None:
        """The number anew: in order of first appearance within the phase."""
        if number is None:
            return None
        numbers = self._numbers[kind]
        return numbers.setdefault(number, len(numbers))

    def storage(self, number: int | None) -> int | None:
        return self.number("storage", number)

    def stream(self, number: int | None) -> int | None:
        return self.number("stream", number)

    def argument(self, argument: events.Argument) -> object:
        if type(argument) is events.TensorSpec:
            self._elements += prod(argument.shape)
            storage = self.storage(argument.storage)
            return (argument.dtype, argument.shape, argument.strides, storage)
        if type(argument) is tuple:
            return tuple([self.argument(item) for item in argument])
        # Where a rank's part of the vocabulary begins, a learning rate: what numbers change about
        # the work shows in shapes. Neither does it matter which of a node's GPUs a rank has.
        if type(argument) in (int, float):
            return "number"
        if type(argument) is str and argument.startswith(DEVICE_PREFIX):
            return DEVICE_PREFIX
        return argument

    def op(self, op: events.Op) -> _Line:
        self.operations[op.name] += 1
        inputs = [self.argument(argument) for argument in op.inputs]
        outputs = [self.argument(tensor) for tensor in op.outputs]
        return f"op {op.name} {self.stream(op.stream)}", f"{inputs} {outputs}"

    def collective(self, event: events.Collective) -> _Line:
        role = self._roles[event.group]
        self.operations[f"{event.kind} {role.text}"] += 1
        self._communicated_bytes += event.bytes_in + event.bytes_out
        storages = [self.storage(number) for number in (*event.inputs, *event.outputs)]
        return (
            f"{event.kind} {role.text} {event.bytes_in} {event.bytes_out} {event.dtype} "
            f"{self.stream(event.stream)} {self.number('work', event.work)} {event.splits_in} "
            f"{event.splits_out}",
            str(storages),
        )

    def point_to_point(self, event: events.PointToPoint) -> _Line:
        role = self._roles[event.group]
        self.operations[f"{event.kind} {role.text}"] += 1
        self._communicated_bytes += event.bytes
        return (
            f"{event.kind} {role.text} {role.offset(event.peer)} {event.bytes} {event.dtype} "
            f"{self.stream(event.stream)} {self.number('work', event.work)} "
            f"{self.number('batch', event.batch)}",
            str(self.storage(event.storage)),
        )

    def begin(self, event: events.Begin) -> _Line | None:
        # What users write into ranges may name the rank.
        return None if event.kind == USER_RANGE else (f"begin {event.kind} {event.name}", "")

    def end(self, event: events.End) -> _Line | None:
        return None if event.kind == USER_RANGE else (f"end {event.kind}", "")


def _digest(lines: list[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


# Events without an entry (sites, gaps, communicators' making, violations) are no content.
_WRITERS: dict[type, Callable[[_Gathering, Any], _Line | None]] = {
    events.Op: _Gathering.op,
    events.Collective: _Gathering.collective,
    events.PointToPoint: _Gathering.point_to_point,
    events.Begin: _Gathering.begin,
    events.End: _Gathering.end,
    events.Synchronise: lambda g, e: (f"synchronise {e.scope} {g.number(e.scope, e.number)}", ""),
    events.WorkWait: lambda g, e: (
        f"work_wait {g.number('work', e.work)} {g.stream(e.stream)} {e.blocks_host}",
        "",
    ),
    events.EventRecord: lambda g, e: (
        f"event_record {g.number('event', e.event)} {g.stream(e.stream)} {e.timing}",
        "",
    ),
    events.EventWait: lambda g, e: (
        f"event_wait {g.number('event', e.event)} {g.stream(e.stream)}",
        "",
    ),
    # What a value was may differ (a rank that knows it, one that invents it); reading it counts.
    events.ValueRead: lambda g, e: (f"value_read {e.operation} {g.stream(e.stream)}", ""),
    events.Alloc: lambda g, e: (
        "",
        f"alloc {g.storage(e.storage)} {e.bytes} {g.stream(e.stream)}",
    ),
    events.Free: lambda g, e: ("", f"free {g.storage(e.storage)}"),
    events.Resize: lambda g, e: ("", f"resize {g.storage(e.storage)} {e.bytes}"),
    events.RecordStream: lambda g, e: (
        "",
        f"record_stream {g.storage(e.storage)} {g.stream(e.stream)}",
    ),
    events.EmptyCache: lambda g, e: ("", "empty_cache"),
}
