"""Fused regions: what a compiler makes of the operations between ``Begin`` and ``End``.

Memory-bound operations that share tensors become one kernel, which reads what comes from outside
and writes what is still there afterwards (``fusion``); products, attention, convolutions and
vendors' kernels stay as they are. What a region keeps in no memory its backward computes again, of
what it was made of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.traces.fused import ASIDE, FUSED, is_kernel_of_its_own
from trainscout.simulators.virtual_cluster.traces.vocabulary import tensors

from .rules import lower
from .tensors import FREE, Lowered, in_place, touched_bytes

# Which memory-bound operations of a fused region become one kernel, and what it moves.
#
# Operations that share tensors fuse, also across a product that none of them feeds: what a product
# reads has to be written before it, the others may wait for their consumers.

RULE = "fused region"
# Of the classes in a kernel, each goes over the bytes that it would alone, the slowest per byte
# first; what is left streams.
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


# An operation, how many events came before it, and what it amounts to on the device.
Known = tuple[int, events.Op, Lowered]


class Fusion:
    """Takes a rank's events in order; operations of a region wait in it for each other.

    ``sizes``: the bytes of storages.
    """

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self._members: list[Member] = []
        self._taken = 0
        self._depth = 0
        self._aside = False
        # Counts regions.
        self._region = 0
        # Freed in the region that is open, whose kernels are still to be told what they were.
        self._gone: list[int] = []
        # What kernels of a region made that had no memory then: the region, the bytes that were
        # not written, and those that were read for it, by storage.
        self._unwritten: dict[int, tuple[int, int, dict[int, int]]] = {}

    def take(self, event: events.Event) -> list[Known]:
        """What is known of operations now that ``event`` has come, in the order that they run:
        outside a region of each at once, inside of those that nothing more can join."""
        place = self._taken
        self._taken += 1
        if isinstance(event, events.Op):
            return self._operation(place, event)
        if isinstance(event, events.Alloc | events.Resize):
            self.sizes[event.storage] = event.bytes
        elif isinstance(event, events.Free):
            self._gone.append(event.storage)
            if not self._depth:
                self._forget()
        elif isinstance(event, events.Begin | events.End):
            return self._border(event)
        elif self._depth and not isinstance(event, events.HostGap | events.Site):
            return self.rest()
        return []

    def rest(self) -> list[Known]:
        """Of everything that has waited so far."""
        return self._close(list(self._members))

    def _operation(self, place: int, op: events.Op) -> list[Known]:
        alone = lower(op)
        if not self._depth or alone is FREE:
            return [(place, op, alone)]
        moved = self._members and self._members[-1].op.stream != op.stream
        known = self.rest() if moved else []
        if not self._aside and _fuses(op, alone):
            self._members.append(Member(place, op, alone, _read(op), _written(op)))
            return known
        return [*known, *self._before(op), (place, op, alone)]

    def _border(self, event: events.Begin | events.End) -> list[Known]:
        begins = isinstance(event, events.Begin)
        if event.kind == ASIDE:
            self._aside = begins and self._depth > 0
        elif event.kind == FUSED and (begins or self._depth):
            self._region += begins and not self._depth
            self._depth += 1 if begins else -1
            if not self._depth:
                known = self.rest()
                self._forget()
                return known
        return []

    def _forget(self) -> None:
        """Nothing reads any more what is gone."""
        for storage in self._gone:
            self.sizes.pop(storage, None)
            self._unwritten.pop(storage, None)
        self._gone.clear()

    def _before(self, op: events.Op) -> list[Known]:
        """Of what has to run before an operation that is no part of it."""
        wanted, changed = set(_read(op)) | _written(op), set(_written(op))
        needed: list[Member] = []
        for member in reversed(self._members):
            if member.writes & wanted or member.reads & changed:
                needed.append(member)
                wanted |= member.storages
                changed |= member.writes
        return self._close(needed[::-1])

    def _close(self, members: list[Member]) -> list[Known]:
        """What the operations of ``members`` are now: nothing but for the last of each kernel."""
        taken = {member.index for member in members}
        self._members = [each for each in self._members if each.index not in taken]
        known: list[Known] = []
        for group in _sharing(members):
            *others, last = group
            what = last.alone
            # One that reads or writes what has no memory moves less than alone.
            if others or any(self.sizes.get(each) == 0 for each in last.storages):
                what = self._kernel(group)
            known += [(each.index, each.op, Lowered((), RULE)) for each in others]
            known.append((last.index, last.op, what))
        return sorted(known, key=lambda each: each[0])

    def _kernel(self, group: list[Member]) -> Lowered:
        alone: dict[str, int] = defaultdict(int)
        for member in group:
            for kernel in member.alone.kernels:
                if isinstance(kernel, Streaming):
                    alone[kernel.kind] += kernel.bytes
        name = "fused_" + "_".join(dict.fromkeys(each.op.name.split(".")[1] for each in group))
        left = self._crossing_bytes(group)
        kernels: list[Streaming] = []
        for kind in _CLASSES:
            share = left if kind == "elementwise" else min(left, alone[kind])
            if share:
                kernels.append(Streaming(name, kind, share, launches=int(not kernels)))
                left -= share
        return Lowered(tuple(kernels), RULE)

    def _crossing_bytes(self, group: list[Member]) -> int:
        """Bytes read from outside a kernel and written for somebody after it."""
        read: dict[int, int] = {}
        written: dict[int, int] = {}
        # What each of its results is computed of.
        made_of: dict[int, dict[int, int]] = {}
        for member in group:
            sources: dict[int, int] = {}
            for spec in tensors(member.op.inputs):
                if spec.storage in written:
                    sources |= made_of[spec.storage]
                elif spec.storage is not None:
                    sources |= self._read_outside(read, spec.storage, touched_bytes(spec))
            for spec in _targets(member.op):
                if spec.storage is not None:
                    # A tensor rewritten again and again is written once in the end.
                    size = max(written.get(spec.storage, 0), touched_bytes(spec))
                    written[spec.storage] = size
                    made_of[spec.storage] = made_of.get(spec.storage, {}) | sources
        out = 0
        for storage, size in written.items():
            if self.sizes.get(storage) == 0:
                self._unwritten[storage] = self._region, size, made_of[storage]
            else:
                out += size
        return sum(read.values()) + out

    def _read_outside(self, read: dict[int, int], storage: int, size: int) -> dict[int, int]:
        """Add what a kernel reads for a tensor to ``read``: parts of one storage add up, but
        never beyond the storage. Returns the storages that it comes from."""
        if storage in self._unwritten:
            region, unwritten, made_of = self._unwritten[storage]
            if region != self._region and not self.sizes.get(storage):
                for source, needed in made_of.items():
                    read[source] = max(read.get(source, 0), needed)
                return made_of
            # Another kernel of its region reads it: it was written after all.
            del self._unwritten[storage]
            read[~storage] = unwritten
        limit = self.sizes.get(storage)
        so_far = read.get(storage, 0)
        # Without knowing the storage's size, reading it again is taken to be the same part.
        read[storage] = min(so_far + size, limit) if limit else max(so_far, size)
        return {storage: size}


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
    stretch: Sequence[events.Event], start: int = 0, stop: int | None = None
) -> list[Lowered | None]:
    """What every event amounts to on the device; None for events that are no operations.

    A fused kernel stands at the last operation it replaces. Only events from ``start`` to before
    ``stop`` are lowered; earlier ones tell what storages are.
    """
    lowered: list[Lowered | None] = [None] * len(stretch)
    fusion = Fusion()
    for event in stretch[:start]:
        if isinstance(event, events.Alloc | events.Resize):
            fusion.sizes[event.storage] = event.bytes
    known = [each for event in stretch[start:stop] for each in fusion.take(event)]
    for place, _, what in (*known, *fusion.rest()):
        lowered[start + place] = what
    return lowered


def _fuses(op: events.Op, alone: Lowered) -> bool:
    if is_kernel_of_its_own(op.name) or alone.transfer_bytes or alone.estimated:
        return False
    return all(isinstance(kernel, Streaming) for kernel in alone.kernels)
