"""What storages of a trace hold, and those that take no memory because they only live inside of a
fused kernel."""

from __future__ import annotations

from collections.abc import Iterable

from .events import Alloc, Begin, Collective, End, Event, Free, Op, Resize
from .vocabulary import tensors

FUSED = "fused"


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
    *("aten.bmm", "aten.convolution", "aten.mm", "emulated.", "fsdp.", "higher_order."),
)


def is_kernel_of_its_own(name: str) -> bool:
    """Whether an operation stays a kernel of its own inside a fused region: a product,
    attention, a vendor's kernel."""
    return name.startswith(_KERNELS)


def storages_within_fusions(events: Iterable[Event]) -> frozenset[int]:
    """Storages that only pass between operations fused with each other, within one region.

    A compiler keeps these in registers, so they take no device memory. Regions within regions
    count as the outermost. What a kernel of its own or a communication reads or writes is in
    memory, even when it is gone again before the region ends.
    """
    depth = region = 0
    allocated: dict[int | None, int] = {}
    found: set[int] = set()
    for event in events:
        if isinstance(event, Begin) and event.kind == FUSED:
            region += depth == 0
            depth += 1
        elif isinstance(event, End) and event.kind == FUSED:
            depth = max(depth - 1, 0)
        elif isinstance(event, Alloc) and depth:
            allocated[event.storage] = region
        elif isinstance(event, Op) and depth and is_kernel_of_its_own(event.name):
            for tensor in (*tensors(event.inputs), *event.outputs):
                allocated.pop(tensor.storage, None)
        elif isinstance(event, Collective) and depth:
            for storage in (*event.inputs, *event.outputs):
                allocated.pop(storage, None)
        elif isinstance(event, Free) and depth and allocated.get(event.storage) == region:
            found.add(event.storage)
    return frozenset(found)
