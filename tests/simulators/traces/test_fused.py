"""What only lives inside a fused region takes no memory."""

from __future__ import annotations

from simulators.traces.events import Alloc, Begin, End, Event, Free
from simulators.traces.fused import storages_within_fusions

FUSED, CLOSED = Begin("fused", "gelu"), End("fused")


def test_storages_must_come_and_go_within_one_region() -> None:
    events: list[Event] = [
        *(Alloc(1, 8, 0), FUSED, Alloc(2, 8, 0), Alloc(3, 8, 0), Free(1), Free(2), CLOSED),
        *(FUSED, Free(3), Alloc(4, 8, 0), FUSED, Alloc(5, 8, 0), CLOSED, Free(5), CLOSED),
        *(Free(4), Begin("user", "step"), Alloc(6, 8, 0), Free(6), End("user")),
    ]
    assert storages_within_fusions(events) == {2, 5}
