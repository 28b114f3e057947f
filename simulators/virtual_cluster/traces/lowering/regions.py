"""Fused regions: what a compiler makes of the operations between ``Begin`` and ``End``.

Memory-bound operations that share tensors become one kernel, which reads what comes from outside
and writes what is still there afterwards (``fusion``); products, attention, convolutions and
vendors' kernels stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.traces.fused import FUSED, is_kernel_of_its_own
from trainscout.simulators.virtual_cluster.traces.vocabulary import tensors

from .rules import lower
from .tensors import FREE, Lowered, in_place, touched_bytes

# Which memory-bound operations of a fused region become one kernel, and what it moves.
#
# Operations that share tensors fuse, also across a product that none of them feeds: what a product
# reads has to be written before it, the others may wait for their consumers.

RULE = "fused region"
# Of the classes in a kernel, the one that the whole is priced as: the slowest per byte first.
_CLASSES = (
    "embedding_bwd", "embedding", "norm_bwd_plain", "norm_fwd_plain", "permute", "token_permute",
    "cross_entropy",
    "softmax_bwd", "softmax_fwd", "reduce", "dropout", "activation", "elementwise",
)  # fmt: skip


@dataclass(frozen=True)
class Member:
    """An operation at its place in the trace, and the storages it reads and writes."""

    index: int
    op: events.Op
    alone: Lowered
    reads: frozenset[int]
    writes: frozenset[int]

    @property
    def storages(self) -> frozenset[int]:
        return self.reads | self.writes


class Fusion:
    """Operations of a region that wait for each other.

    ``born`` and ``freed`` are the storages that came and went since the first of them; ``sizes``
    the bytes of storages, which it shares with whoever keeps them.
    """

    def __init__(self, sizes: dict[int, int]) -> None:
        self._sizes = sizes
        self._members: list[Member] = []
        self.born: set[int] = set()
        self.freed: set[int] = set()

    @property
    def stream(self) -> int | None:
        """The stream of the operations, None when there is none."""
        return self._members[-1].op.stream if self._members else None

    def add(self, index: int, op: events.Op, alone: Lowered) -> None:
        self._members.append(Member(index, op, alone, _read(op), _written(op)))

    def before(self, op: events.Op) -> dict[int, Lowered]:
        """Kernels that have to run before an operation that is no part of them."""
        wanted, changed = set(_read(op)) | _written(op), set(_written(op))
        needed: list[Member] = []
        for member in reversed(self._members):
            if member.writes & wanted or member.reads & changed:
                needed.append(member)
                wanted |= member.storages
                changed |= member.writes
        return self._close(needed[::-1])

    def rest(self) -> dict[int, Lowered]:
        """Kernels of everything that has waited so far."""
        return self._close(list(self._members))

    def _close(self, members: list[Member]) -> dict[int, Lowered]:
        """What the operations of ``members`` are now, by index: nothing but for the last of each
        kernel. Operations that fuse with no other are left out."""
        taken = {member.index for member in members}
        self._members = [each for each in self._members if each.index not in taken]
        awaited = {storage for each in self._members for storage in each.reads}
        gone = (self.born & self.freed) - awaited
        lowered: dict[int, Lowered] = {}
        for group in _sharing(members):
            if len(group) > 1:
                lowered |= dict.fromkeys([each.index for each in group], Lowered((), RULE))
                lowered[group[-1].index] = self._kernel(group, gone)
        if not self._members:
            self.born.clear()
            self.freed.clear()
        return lowered

    def _kernel(self, group: list[Member], gone: set[int]) -> Lowered:
        kinds = {
            kernel.kind
            for member in group
            for kernel in member.alone.kernels
            if isinstance(kernel, Streaming)
        }
        kind = next((each for each in _CLASSES if each in kinds), "elementwise")
        names = dict.fromkeys(member.op.name.split(".")[1] for member in group)
        total = self._crossing_bytes(group, gone)
        if not total:
            return Lowered((), RULE)
        return Lowered((Streaming("fused_" + "_".join(names), kind, total),), RULE)

    def _crossing_bytes(self, group: list[Member], gone: set[int]) -> int:
        """Bytes read from outside a kernel and written for somebody after it."""
        read: dict[int, int] = {}
        written: dict[int, int] = {}
        for member in group:
            for spec in tensors(member.op.inputs):
                if spec.storage is not None and spec.storage not in written:
                    self._add(read, spec, spec.storage)
            for spec in _targets(member.op):
                if spec.storage is not None:
                    # A tensor rewritten again and again is written once in the end.
                    size = max(written.get(spec.storage, 0), touched_bytes(spec))
                    written[spec.storage] = size
        out = sum(size for storage, size in written.items() if storage not in gone)
        return sum(read.values()) + out

    def _add(self, read: dict[int, int], spec: events.TensorSpec, storage: int) -> None:
        """Count a read; parts of one storage add up, but never beyond the storage."""
        size = touched_bytes(spec)
        limit = self._sizes.get(storage)
        so_far = read.get(storage, 0)
        # Without knowing the storage's size, reading it again is taken to be the same part.
        read[storage] = min(so_far + size, limit) if limit else max(so_far, size)


def _targets(op: events.Op) -> list[events.TensorSpec]:
    if op.outputs or not in_place(op):
        return list(op.outputs)
    return list(tensors(op.inputs[:1]))


def _read(op: events.Op) -> frozenset[int]:
    return frozenset(spec.storage for spec in tensors(op.inputs) if spec.storage is not None)


def _written(op: events.Op) -> frozenset[int]:
    return frozenset(spec.storage for spec in _targets(op) if spec.storage is not None)


def _sharing(members: list[Member]) -> list[list[Member]]:
    """Members in groups that share storages, each in order."""
    groups: list[tuple[set[int], list[Member]]] = []
    for member in members:
        storages = set(member.storages)
        joined = [member]
        apart = []
        for group in groups:
            if group[0] & storages:
                storages |= group[0]
                joined = group[1] + joined
            else:
                apart.append(group)
        groups = [*apart, (storages, joined)]
    return [sorted(group, key=lambda member: member.index) for _, group in groups]


def lower_events(
    stretch: Sequence[events.Event],
    start: int = 0,
    stop: int | None = None,
    sizes: dict[int, int] | None = None,
) -> list[Lowered | None]:
    """What every event amounts to on the device; None for events that are no operations.

    A fused kernel stands at the last operation it replaces. Only events from ``start`` to before
    ``stop`` are lowered; earlier ones, and ``sizes``, tell how large storages are.
    """
    lowered: list[Lowered | None] = [None] * len(stretch)
    sizes = {} if sizes is None else sizes
    fusion = Fusion(sizes)
    depth = 0
    for event in stretch[:start]:
        if isinstance(event, events.Alloc | events.Resize):
            sizes[event.storage] = event.bytes
    for index, event in enumerate(stretch[start:stop], start):
        closed: dict[int, Lowered] = {}
        if isinstance(event, events.Op):
            alone = lower(event)
            lowered[index] = alone
            if depth and alone is not FREE:
                if fusion.stream not in (None, event.stream):
                    closed = fusion.rest()
                if _fuses(event, alone):
                    fusion.add(index, event, alone)
                else:
                    closed |= fusion.before(event)
        elif isinstance(event, events.Alloc | events.Resize):
            sizes[event.storage] = event.bytes
            if depth:
                fusion.born.add(event.storage)
        elif not depth:
            depth = int(isinstance(event, events.Begin) and event.kind == FUSED)
        elif isinstance(event, events.Free):
            fusion.freed.add(event.storage)
        elif isinstance(event, events.Begin | events.End):
            if event.kind == FUSED:
                depth += 1 if isinstance(event, events.Begin) else -1
            if not depth:
                closed = fusion.rest()
        elif not isinstance(event, events.HostGap | events.Site):
            closed = fusion.rest()
        for place, what in closed.items():
            lowered[place] = what
    for place, what in fusion.rest().items():
        lowered[place] = what
    return lowered


def _fuses(op: events.Op, alone: Lowered) -> bool:
    if is_kernel_of_its_own(op.name) or alone.transfer_bytes or alone.estimated:
        return False
    return all(isinstance(kernel, Streaming) for kernel in alone.kernels)
