"""What runs before what on the device: the order streams, events and waits establish.

Each stream counts its launches. A stream knows, of each other, up to which launch it is ordered
after; an event carries what the stream knew when it was recorded. A read or write on a stream that
is not ordered after the last conflicting use elsewhere is a race on a real device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any

# How often a script is told that something is not over: DeepSpeed asks for an event three times
# and then waits for it; who asks in a loop waits, too.
_ASKED_IN_VAIN = 10
# A communicator's own stream is named by its group.
StreamKey = int | str
Knowledge = dict[StreamKey, int]


class StreamOrder:
    """Vector clocks of the device's streams and of the host."""

    def __init__(self) -> None:
        self._launched: Knowledge = {}
        self._seen: dict[StreamKey, Knowledge] = {}
        self._recorded: dict[int, Knowledge] = {}
        self._host: Knowledge = {}
        self._asked: Counter[Hashable] = Counter()

    def restart(self) -> None:
        """Forget everything: a new trace begins."""
        for table in (self._launched, self._seen, self._recorded, self._host, self._asked):
            table.clear()

    def launch(self, stream: StreamKey) -> int:
        """The number of a new launch on this stream."""
        number = self._launched.get(stream, 0) + 1
        self._launched[stream] = number
        return number

    def ordered(self, stream: StreamKey, other: StreamKey, number: int) -> bool:
        """Whether what ``stream`` launches now runs after launch ``number`` of ``other``."""
        if stream == other or self._host.get(other, 0) >= number:
            return True
        seen = self._seen.get(stream)
        return seen is not None and seen.get(other, 0) >= number

    def point(self, stream: StreamKey) -> Knowledge:
        """Everything that is done once the stream's launches so far are."""
        known = dict(self._seen.get(stream, {}))
        known[stream] = self._launched.get(stream, 0)
        return known

    def wait_point(self, stream: StreamKey, point: Knowledge) -> None:
        """Order the stream's later launches after a point."""
        _merge(self._seen.setdefault(stream, {}), point)

    def record(self, event: int, stream: StreamKey) -> None:
        """An event is recorded on a stream."""
        self._recorded[event] = self.point(stream)
        self._asked.pop(("event", event), None)

    def recorded(self, event: int) -> bool:
        """Whether the event was ever recorded."""
        return event in self._recorded

    def wait(self, event: int, stream: StreamKey) -> None:
        """A stream waits for an event's last record (none: it does not wait)."""
        self.wait_point(stream, self._recorded.get(event, {}))

    def host_wait_event(self, event: int) -> None:
        """The host waits for an event."""
        _merge(self._host, self._recorded.get(event, {}))

    def host_waited(self, point: Knowledge) -> bool:
        """Whether all that a point stands for is over, as the host knows."""
        return all(self._host.get(stream, 0) >= number for stream, number in point.items())

    def event_point(self, event: int) -> Knowledge:
        """What an event stands for."""
        return self._recorded.get(event, {})

    def asked_in_vain(self, name: Hashable) -> bool:
        """Whether a script that asks for what ``name`` stands for is told that it is not over.

        Nobody knows without device time, so not until the host has waited for it, which it has to
        where a script asks on and on. One that holds its host back waits then, and so does it
        where it is replayed."""
        self._asked[name] += 1
        if self._asked[name] <= _ASKED_IN_VAIN:
            return True
        del self._asked[name]
        return False

    def host_wait_stream(self, stream: StreamKey) -> None:
        """The host waits for a stream."""
        _merge(self._host, self.point(stream))

    def host_wait_point(self, point: Knowledge) -> None:
        """The host waits for a point."""
        _merge(self._host, point)

    def host_wait_device(self) -> None:
        """The host waits for everything launched so far."""
        _merge(self._host, self._launched)

    def forget(self, event: int) -> None:
        """An event is destroyed."""
        self._recorded.pop(event, None)


def _merge(into: Knowledge, other: Knowledge) -> None:
    for stream, number in other.items():
        if into.get(stream, 0) < number:
            into[stream] = number


# Who used which part of a storage last, and whether the next user is ordered after them.

# The part of a storage a tensor covers: first byte, and the one after the last.
Extent = tuple[int, int]


def extent_of(tensor: Any, contiguous: bool | None = None) -> Extent:
    """The bytes of its storage between a tensor's first and last element."""
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    if tensor.is_contiguous() if contiguous is None else contiguous:
        return (start, start + tensor.numel() * size)
    span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return (start, start + span * size)


class StreamUses:
    """Last reads and writes of a storage's parts, by stream."""

    __slots__ = ("_alone", "_last")

    def __init__(self) -> None:
        # Last read and last write (0: none) of each part, by stream.
        self._last: dict[Extent, dict[StreamKey, tuple[int, int]]] = {}
        # The only stream so far, as it mostly is; None before the first and from the second on.
        self._alone: StreamKey | None = None

    def conflicts(
        self, order: StreamOrder, stream: StreamKey, extent: Extent, *, writes: bool
    ) -> Iterator[tuple[StreamKey, str]]:
        """Streams that use the same bytes and that a launch on ``stream`` would race with."""
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

    def only_by(self, stream: StreamKey) -> bool:
        """Whether no other stream has used any part: nothing can race."""
        return self._alone == stream or not self._last

    def note(self, stream: StreamKey, number: int, extent: Extent, *, writes: bool) -> None:
        """Launch ``number`` of ``stream`` used these bytes."""
        if self._alone != stream:
            self._alone = None if self._last else stream
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
        self._alone = None
