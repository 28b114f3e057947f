"""What storages of a trace hold, and those that take no memory because they only live inside of a
fused kernel."""

from __future__ import annotations

from collections.abc import Iterable

from .events import Alloc, Begin, Collective, End, Event, Free, Op, Resize
from .vocabulary import tensors

FUSED = "fused"
# What the name of a region's backward pass ends in.
BACKWARD = ".backward"
# Its mask is drawn, which nothing computes again.
DROPOUT = "aten.native_dropout.default"


class Held:
    """Bytes by storage as events pass, and all of them together; ``nowhere`` take none."""

    def __init__(self, nowhere: frozenset[int] = frozenset()) -> None:
        self.bytes: dict[int, int] = {}
        self.total_bytes = 0
        self._nowhere = nowhere

    def follow(self, event: Event) -> bool:
        """Pass one event; whether it is about memory that is taken."""
        if not isinstance(event, Alloc | Resize | Free) or event.storage in self._nowhere:
            return False
        self.total_bytes -= self.bytes.pop(event.storage, 0)
        if not isinstance(event, Free):
            self.bytes[event.storage] = event.bytes
            self.total_bytes += event.bytes
        return True


# What no compiler fuses with its neighbours: it reads and writes memory of its own.
_KERNELS = (
    *("aten._fused_", "aten._grouped_mm", "aten._scaled_", "aten.addmm", "aten.baddbmm"),
    *("aten.bmm", "aten.convolution", "aten.mm"),
)


def is_kernel_of_its_own(name: str) -> bool:
    """Whether an operation stays a kernel of its own inside a fused region: a product,
    attention, a vendor's kernel, an operator of one's own."""
    return not name.startswith("aten.") or name.startswith(_KERNELS)


def storages_within_fusions(events: Iterable[Event]) -> frozenset[int]:
    """Storages that fused operations make and only fused ones use, of the same region or of the
    backward pass of one.

    A compiler keeps these in registers, or computes them again in backward, so they take no device
    memory. Regions within regions count as the outermost. What a kernel of its own or a
    communication reads or writes is in memory, even when it is gone again before the region ends,
    and so is what goes from one region to another, or is read again after a kernel of its own that
    used what is made of it: sums of residual streams.
    """
    depth = region = regions = 0
    # The region that made it, negative in backward; and what backward regions computed again.
    made: dict[int | None, int] = {}
    again: set[int | None] = set()
    # What those of forward regions are made of, and what kernels have used something made of.
    made_of: dict[int | None, set[int | None]] = {}
    fed: set[int | None] = set()
    found: set[int] = set()
    for event in events:
        used: tuple[int | None, ...] = ()
        if isinstance(event, Begin) and event.kind == FUSED:
            if not depth:
                regions += 1
                region = -regions if event.name.endswith(BACKWARD) else regions
            depth += 1
        elif isinstance(event, End) and event.kind == FUSED:
            depth = max(depth - 1, 0)
            region = region if depth else 0
        elif isinstance(event, Alloc) and depth:
            made[event.storage] = region
        elif isinstance(event, Op) and made:
            used = tuple(each.storage for each in (*tensors(event.inputs), *event.outputs))
            if depth and not is_kernel_of_its_own(event.name):
                if region > 0:
                    read = {each.storage for each in tensors(event.inputs)}
                    for each in read & fed:
                        made.pop(each, None)
                    whole = read.union(*(made_of.get(each, ()) for each in read)) & made.keys()
                    for output in event.outputs:
                        made_of.setdefault(output.storage, set()).update(whole)
                if region < 0:
                    again.update(each for each in used if made.get(each, 0) > 0)
                used = tuple(
                    each for each in used if each not in again and made.get(each) != region
                )
                if event.name == DROPOUT:
                    used = (*used, event.outputs[1].storage)
            else:
                fed.update(*(made_of.get(each, ()) for each in used))
        elif isinstance(event, Collective) and made:
            used = (*event.inputs, *event.outputs)
        elif isinstance(event, Free):
            by = made.pop(event.storage, 0)
            if by and (by == region or event.storage in again):
                found.add(event.storage)
        for storage in used:
            made.pop(storage, None)
    return frozenset(found)
