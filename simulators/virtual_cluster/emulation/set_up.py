"""What communicators a script's set-up makes, without training: to choose the ranks to trace.

The script runs as one rank up to its first forward pass, in a process of its own, which then ends.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from trainscout.simulators.predictor.io.command_line import EMULATOR_GAP, FAILURE
from trainscout.simulators.predictor.io.own_process import own_process
from trainscout.simulators.virtual_cluster.emulation.rank_process import (
    RankOptions,
    run_script,
    start,
)
from trainscout.simulators.virtual_cluster.traces.events import (
    FORWARD,
    Event,
    Group,
    Header,
    Phase,
    Trace,
)
from trainscout.simulators.virtual_cluster.traces.files import read_trace, write_trace

MODULE = "trainscout.simulators.virtual_cluster.emulation.set_up"


class SetUpError(RuntimeError):
    """A script that could not be set up; ``code`` is what the command exits with."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def groups_of(options: RankOptions) -> list[Group]:
    """The communicators of ``options.rank`` once it is set up.

    Raises:
        SetUpError: when the script ends before, with an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "set_up.trace.gz"
        changed = dataclasses.replace(options, trace=path)
        done = subprocess.run(
            own_process(MODULE, changed.to_json()),
            env=changed.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode or not path.exists():
            lines = done.stdout.decode(errors="replace").strip().splitlines()
            problem = f"rank {options.rank} fails while it is set up: {' '.join(lines[-1:])}"
            gap = done.returncode == EMULATOR_GAP
            raise SetUpError(problem, EMULATOR_GAP if gap else FAILURE)
        return [event for event in read_trace(path).events if isinstance(event, Group)]


class UntilForward:
    """A sink that keeps communicators, and ends the process at the first forward pass."""

    def __init__(self, options: RankOptions) -> None:
        self._options = options
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
        options = self._options
        header = Header(options.world_size, options.rank, 1, options.gpu, 0, options.script, {})
        write_trace(options.trace, Trace(header, tuple(self._groups)))


def main(arguments: list[str]) -> int:
    """Set one rank up; the script's exit code."""
    options = RankOptions.from_json(arguments[0])
    sink = UntilForward(options)
    virtual = start(options, sink)
    code = run_script(options.script, virtual.state)
    if code == 0:
        # A script without a forward pass has shown all of its communicators.
        sink.close()
    return code


if __name__ == "__main__":
    _code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_code)
