"""Fused regions: what a compiler makes of the operations between ``Begin`` and ``End``.

Memory-bound operations between two products become one kernel that reads what comes from outside
and writes what is still there afterwards; products, attention, convolutions and vendors' kernels
stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulators.traces.events import (
    Alloc,
    Begin,
    End,
    Event,
    Free,
    HostGap,
    Op,
    Resize,
    Site,
    TensorSpec,
)
from simulators.traces.fused import FUSED, is_kernel_of_its_own
from simulators.traces.lowering.lowered import FREE, Lowered
from simulators.traces.lowering.rules import lower
from simulators.traces.lowering.tensors import in_place, touched_bytes
from simulators.traces.vocabulary import tensors
from simulators.workload.ir import Streaming

RULE = "fused region"
# Of the classes in a region, the one whose kernel the whole becomes: the slowest per byte first.
_CLASSES = (
    "embedding_bwd",
    "embedding",
    "norm_bwd_plain",
    "norm_fwd_plain",
    "permute",
    "cross_entropy",
    "softmax_bwd",
    "softmax_fwd",
    "reduce",
    "dropout",
    "elementwise",
)


@dataclass
class _Run:
    """Memory-bound operations that become one kernel, and who wrote and read what."""

    operations: list[tuple[int, Op, Lowered]] = field(default_factory=list)
    born: set[int] = field(default_factory=set)
    freed: set[int] = field(default_factory=set)

    @property
    def stream(self) -> int | None:
        return self.operations[-1][1].stream if self.operations else None


def lower_events(
    events: Sequence[Event], start: int = 0, stop: int | None = None
) -> list[Lowered | None]:
    """What every event amounts to on the device; None for events that are no operations.

    A fused kernel stands at the last operation it replaces. Only events from ``start`` to before
    ``stop`` are lowered; earlier ones tell how large storages are.

    Raises:
        InputError: from ``lower``.
    """
    lowered: list[Lowered | None] = [None] * len(events)
    sizes: dict[int, int] = {}
    depth = 0
    run = _Run()
    for event in events[:start]:
        if isinstance(event, Alloc | Resize):
            sizes[event.storage] = event.bytes
    for index, event in enumerate(events[start:stop], start):
        if isinstance(event, Op):
            alone = lower(event)
            lowered[index] = alone
            if depth and alone is not FREE:
                fuses = _fuses(event, alone)
                if not fuses or run.stream not in (None, event.stream):
                    _close(run, lowered, sizes)
                if fuses:
                    run.operations.append((index, event, alone))
        elif isinstance(event, Alloc | Resize):
            sizes[event.storage] = event.bytes
            if depth:
                run.born.add(event.storage)
        elif not depth:
            depth = int(isinstance(event, Begin) and event.kind == FUSED)
        elif isinstance(event, Free):
            run.freed.add(event.storage)
        elif isinstance(event, Begin | End):
            if event.kind == FUSED:
                depth += 1 if isinstance(event, Begin) else -1
            if not depth:
                _close(run, lowered, sizes)
        elif not isinstance(event, HostGap | Site):
            _close(run, lowered, sizes)
    _close(run, lowered, sizes)
    return lowered


def _fuses(op: Op, alone: Lowered) -> bool:
    if is_kernel_of_its_own(op.name) or alone.transfer_bytes or alone.estimated:
        return False
    return all(isinstance(kernel, Streaming) for kernel in alone.kernels)


def _close(run: _Run, lowered: list[Lowered | None], sizes: dict[int, int]) -> None:
    """Turn what was collected into one kernel and start afresh."""
    if len(run.operations) > 1:
        total = _crossing_bytes(run, sizes)
        kinds = {
            kernel.kind
            for _, _, alone in run.operations
            for kernel in alone.kernels
            if isinstance(kernel, Streaming)
        }
        kind = next((each for each in _CLASSES if each in kinds), "elementwise")
        for index, _, _ in run.operations:
            lowered[index] = Lowered((), RULE)
        if total:
            names = [op.name.split(".")[1] for _, op, _ in run.operations]
            kernel = Streaming("fused_" + "_".join(dict.fromkeys(names)), kind, total)
            lowered[run.operations[-1][0]] = Lowered((kernel,), RULE)
    run.operations.clear()
    run.born.clear()
    run.freed.clear()


def _crossing_bytes(run: _Run, sizes: dict[int, int]) -> int:
    """Bytes read from outside a run and written for somebody after it."""
    read: dict[int, int] = {}
    written: dict[int, int] = {}
    made: set[int] = set()
    for _, op, _ in run.operations:
        targets = {spec.storage for spec in op.outputs}
        for spec in tensors(op.inputs):
            if spec.storage is not None and spec.storage not in made:
                _add(read, spec, sizes)
        writes = list(op.outputs)
        if in_place(op) and not writes:
            writes = list(tensors(op.inputs[:1]))
        for spec in writes:
            if spec.storage is not None:
                # A tensor rewritten again and again is written once in the end.
                written[spec.storage] = max(written.get(spec.storage, 0), touched_bytes(spec))
                made.add(spec.storage)
        made |= {storage for storage in targets if storage is not None}
    gone = run.born & run.freed
    out = sum(size for storage, size in written.items() if storage not in gone)
    return sum(read.values()) + out


def _add(read: dict[int, int], spec: TensorSpec, sizes: dict[int, int]) -> None:
    """Count a read; parts of one storage add up, but never beyond the storage."""
    assert spec.storage is not None
    size = touched_bytes(spec)
    total = read.get(spec.storage, 0) + size
    limit = sizes.get(spec.storage)
    # Without knowing the storage's size, reading it again is taken to be the same part.
    read[spec.storage] = min(total, limit) if limit else max(read.get(spec.storage, 0), size)
