"""An example script as one emulated rank: its output and its trace."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.warm.session import ROOT, environment, run_python
from trainscout.simulators.virtual_cluster.traces.events import (
    PHASES,
    Collective,
    Op,
    Phase,
    Trace,
)
from trainscout.simulators.virtual_cluster.traces.files import read_trace, trace_path

EXAMPLES = ROOT / "examples"
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Run:
    """What one rank printed and did."""

    output: str
    trace: Trace

    def events(self, kind: type[Kind], step: int | None = None, phase: str = "") -> list[Kind]:
        """Events of a kind, of one step and phase if named."""
        found, now = [], (PHASES[0], 0)
        for event in self.trace.events:
            if isinstance(event, Phase):
                now = event.phase, event.step
            elif isinstance(event, kind) and step in (None, now[1]) and phase in ("", now[0]):
                found.append(event)
        return found

    def collectives(self, kind: str, step: int | None = None, phase: str = "") -> list[Collective]:
        """Collectives of a kind, of one step and phase if named."""
        return [event for event in self.events(Collective, step, phase) if event.kind == kind]

    def operations(self, *names: str) -> list[Op]:
        """Operations by dispatcher name."""
        return [event for event in self.events(Op) if event.name in names]


def emulate(
    folder: Path,
    script: Iterable[str],
    world_size: int,
    rank: int = 0,
    gpu: str = "h100",
) -> Run:
    """Run a script with its arguments (``-m module`` too) as one rank, in ``folder``."""
    options = ["--world-size", world_size, "--rank", rank, "--gpu", gpu, "--output", folder]
    words = map(str, ("-m", "trainscout", "run", *options, "--", *script))
    path = os.pathsep.join([str(ROOT), *sys.path])
    found = run_python(*words, cwd=folder, environment=environment() | {"PYTHONPATH": path})
    assert found.returncode == 0, found.stdout + found.stderr
    return Run(found.stdout + found.stderr, read_trace(trace_path(folder, rank)))
