"""Where an emulated rank's events go."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.traces.files import TraceWriter, write_trace


class Sink(Protocol):
    """Takes events in the order the host issues them."""

    def emit(self, event: events.Event) -> None:
        """One event. May block where the host would: synchronisation, reads, blocking waits."""

    def elapsed_ms(self, start: int, end: int) -> float:
        """Milliseconds between the last records of two events, as ``Event.elapsed_time``."""

    def close(self) -> None:
        """No more events follow."""


class Untimed:
    """A sink that knows no device time. Scripts divide by it, so it is not zero."""

    def elapsed_ms(self, start: int, end: int) -> float:
        """A placeholder."""
        return 1.0

    def close(self) -> None:
        """Nothing to close."""


class ListSink(Untimed):
    """Keeps events in memory."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []
        self.emit = self.events.append


class FileSink(Untimed):
    """Writes a trace file, which appears under its name when closed."""

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self.emit: Callable[[events.Event], None] = writer.write

    def close(self) -> None:
        """Finish the file; what is freed later, as the process ends, is in none."""
        self.emit = lambda event: None
        self._writer.close()


class UntilForward(Untimed):
    """A sink that keeps communicators, and ends the process at the first forward pass."""

    def __init__(self, path: Path, header: events.Header) -> None:
        self._path, self._header = path, header
        self._groups: list[events.Event] = []

    def emit(self, event: events.Event) -> None:
        """Keep communicators; at the first forward pass, leave."""
        if isinstance(event, events.Group):
            self._groups.append(event)
        elif isinstance(event, events.Phase) and event.phase == events.FORWARD:
            self.close()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def close(self) -> None:
        """Write what was kept."""
        write_trace(self._path, events.Trace(self._header, tuple(self._groups)))
