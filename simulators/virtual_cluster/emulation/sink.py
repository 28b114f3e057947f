"""Where an emulated rank's events go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from trainscout.simulators.virtual_cluster.traces.events import Event
from trainscout.simulators.virtual_cluster.traces.files import TraceWriter


class Sink(Protocol):
    """Takes events in the order the host issues them."""

    def emit(self, event: Event) -> None:
        """One event. May block where the host would: synchronisation, reads, blocking waits."""

    def elapsed_ms(self, start: int, end: int) -> float:
        """Milliseconds between the last records of two events, as ``Event.elapsed_time``."""

    def close(self) -> None:
        """No more events follow."""


# Nobody knows device time while recording. Scripts divide by it, so it is not zero.
RECORDED_ELAPSED_MS = 1.0


class ListSink:
    """Keeps events in memory."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.emit = self.events.append

    def elapsed_ms(self, start: int, end: int) -> float:
        """A placeholder: recording knows no device time."""
        return RECORDED_ELAPSED_MS

    def close(self) -> None:
        """Nothing to close."""


class FileSink:
    """Writes a trace file, which appears under its name when closed."""

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self.emit: Callable[[Event], None] = writer.write

    def elapsed_ms(self, start: int, end: int) -> float:
        """A placeholder: recording knows no device time."""
        return RECORDED_ELAPSED_MS

    def close(self) -> None:
        """Finish the file; what is freed later, as the process ends, is in none."""
        self.emit = lambda event: None
        self._writer.close()
