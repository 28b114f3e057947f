"""Who used which part of a storage last, and whether the next user is ordered after them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainscout.simulators.virtual_cluster.emulation.stream_order import StreamKey, StreamOrder

# The part of a storage a tensor covers: first byte, and the one after the last.
Extent = tuple[int, int]


def extent_of(tensor: Any) -> Extent:
    """The bytes of its storage between a tensor's first and last element."""
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    if tensor.is_contiguous():
        return (start, start + tensor.numel() * size)
    span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return (start, start + span * size)


class StreamUses:
    """Last reads and writes of a storage's parts, by stream."""

    __slots__ = ("_last", "_streams")

    def __init__(self) -> None:
        # Last read and last write (0: none) of each part, by stream.
        self._last: dict[Extent, dict[StreamKey, tuple[int, int]]] = {}
        self._streams: set[StreamKey] = set()

    def conflicts(
        self, order: StreamOrder, stream: StreamKey, extent: Extent, *, writes: bool
    ) -> Iterator[tuple[StreamKey, str]]:
        """Streams that use the same bytes and that a launch on ``stream`` would race with."""
        if not self._streams or self._streams == {stream}:
            return
        for (start, end), uses in self._last.items():
            if start >= extent[1] or end <= extent[0]:
                continue
            for other, (read, written) in uses.items():
                if other == stream:
                    continue
                if written and not order.ordered(stream, other, written):
                    yield other, "written"
                elif writes and read and not order.ordered(stream, other, read):
                    yield other, "read"

    def note(self, stream: StreamKey, number: int, extent: Extent, *, writes: bool) -> None:
        """Launch ``number`` of ``stream`` used these bytes."""
        self._streams.add(stream)
        uses = self._last.get(extent)
        if uses is None:
            self._last[extent] = {stream: (0, number) if writes else (number, 0)}
        elif writes:
            # Later uses need only be ordered after this one, which is after all before.
            self._last[extent] = {stream: (0, number)}
        else:
            uses[stream] = (number, uses.get(stream, (0, 0))[1])

    def last(self) -> dict[StreamKey, int]:
        """Each stream's last use of any part."""
        found: dict[StreamKey, int] = {}
        for uses in self._last.values():
            for stream, (read, written) in uses.items():
                found[stream] = max(read, written, found.get(stream, 0))
        return found

    def clear(self) -> None:
        """The memory is new."""
        self._last.clear()
        self._streams.clear()
