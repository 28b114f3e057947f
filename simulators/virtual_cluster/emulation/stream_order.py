"""What runs before what on the device: the order streams, events and waits establish.

Each stream counts its launches. A stream knows, of each other, up to which launch it is ordered
after; an event carries what the stream knew when it was recorded. A read or write on a stream that
is not ordered after the last conflicting use elsewhere is a race on a real device.
"""

from __future__ import annotations

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

    def restart(self) -> None:
        """Forget everything: a new trace begins."""
        for table in (self._launched, self._seen, self._recorded, self._host):
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

    def recorded(self, event: int) -> bool:
        """Whether the event was ever recorded."""
        return event in self._recorded

    def wait(self, event: int, stream: StreamKey) -> None:
        """A stream waits for an event's last record (none: it does not wait)."""
        self.wait_point(stream, self._recorded.get(event, {}))

    def host_wait_event(self, event: int) -> None:
        """The host waits for an event."""
        _merge(self._host, self._recorded.get(event, {}))

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
