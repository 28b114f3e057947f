"""A script run as one emulated rank, its trace cut at the script's own NVTX ranges."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.warm.session import run_python
from trainscout.simulators.virtual_cluster.traces.events import (
    Begin,
    End,
    Event,
    HostGap,
    Site,
    Trace,
)
from trainscout.simulators.virtual_cluster.traces.files import read_trace

ROOT = Path(__file__).parents[4]
SCRIPTS = Path(__file__).with_name("scripts")
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Run:
    """A finished rank: its exit code, what it printed, its trace."""

    code: int
    output: str
    trace: Trace

    def section(self, name: str) -> list[Event]:
        """The events inside a range, ranges inside it included."""
        events = self.trace.events
        start = next(at for at, event in enumerate(events) if event == Begin("user", name))
        depth = 1
        for at in range(start + 1, len(events)):
            if isinstance(events[at], Begin) and events[at].kind == "user":
                depth += 1
            elif events[at] == End("user"):
                depth -= 1
                if not depth:
                    return list(events[start + 1 : at])
        raise AssertionError(f"range {name} never closes")

    def of(self, name: str, kind: type[Kind]) -> list[Kind]:
        """The events of one kind inside a range."""
        return [event for event in self.section(name) if isinstance(event, kind)]

    def timeless(self) -> list[Event]:
        """All events but host time, which no two runs share."""
        return [event for event in self.trace.events if not isinstance(event, HostGap | Site)]


def emulate(
    folder: Path, script: str, *options: Any, check: bool = False, cold: bool = False
) -> Run:
    """Run one of the scripts as a rank, if ``cold`` in new interpreters throughout."""
    trace = folder / f"{Path(script).stem}.trace.gz"
    arguments = [*options, "--trace", trace, *([] if check else ["--no-check"])]
    start = ("-s", "-m") if cold else ("-m",)  # Of a fork it is too late for an option.
    words = map(str, (*start, "trainscout", "run", *arguments, "--", SCRIPTS / script))
    path = {"PYTHONPATH": str(ROOT)}
    done = run_python(*words, cwd=folder, environment={**os.environ, **path})
    assert trace.exists(), done.stdout + done.stderr
    return Run(done.returncode, done.stdout + done.stderr, read_trace(trace))


def emulate_text(folder: Path, name: str, text: str, *options: Any, check: bool = False) -> Run:
    """As ``emulate``, of a script that is first written to ``folder``."""
    (folder / name).write_text(text)
    return emulate(folder, str(folder / name), *options, check=check)
