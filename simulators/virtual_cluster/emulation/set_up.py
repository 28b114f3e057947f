"""What communicators a script's set-up makes, without training: to choose the ranks to trace.

The script runs as one rank up to its first forward pass, in a process of its own, which then ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trainscout.simulators.virtual_cluster.traces.events import (
    FORWARD,
    Event,
    Group,
    Header,
    Phase,
    Trace,
)
from trainscout.simulators.virtual_cluster.traces.files import write_trace


class UntilForward:
    """A sink that keeps communicators, and ends the process at the first forward pass."""

    def __init__(self, path: Path, header: Header) -> None:
        self._path, self._header = path, header
        self._groups: list[Event] = []

    def emit(self, event: Event) -> None:
        """Keep communicators; at the first forward pass, leave."""
        if isinstance(event, Group):
            self._groups.append(event)
        elif isinstance(event, Phase) and event.phase == FORWARD:
            self.close()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def elapsed_ms(self, start: int, end: int) -> float:
        """Nothing was timed yet; scripts divide by it."""
        return 1.0

    def close(self) -> None:
        """Write what was kept."""
        write_trace(self._path, Trace(self._header, tuple(self._groups)))
