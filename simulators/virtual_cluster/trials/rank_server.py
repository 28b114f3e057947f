"""A prepared process that forks itself into one rank after another, of whatever launch.

    python -m trainscout.simulators.virtual_cluster.trials.rank_server OPTIONS

It installs the emulation and imports what all launches need once. Each line on standard input is a
``RankRequest``; each answer a line with the rank's exit code, the first one ``READY``, or why not.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from dataclasses import dataclass
from functools import partial

from trainscout.simulators.predictor.io.command_line import BAD_INPUT, OK
from trainscout.simulators.predictor.io.own_process import end_with_parent, unpacked
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.launch.prepared import fork_rank
from trainscout.simulators.virtual_cluster.emulation.launch.rank_process import (
    RankOptions,
    RanksOptions,
    prepared,
    run_rank,
    set_up,
)
from trainscout.simulators.virtual_cluster.emulation.launch.whole_command import run_training
from trainscout.simulators.virtual_cluster.emulation.report import watch
from trainscout.simulators.virtual_cluster.emulation.sink import FileSink
from trainscout.simulators.virtual_cluster.emulation.virtual_rank import VirtualRank
from trainscout.simulators.virtual_cluster.traces.files import TraceWriter

MODULE = "trainscout.simulators.virtual_cluster.trials.rank_server"
READY = "ready"
# Three minutes: libraries that look for the network try as long before they go on without.
_MOST_WAITS = 3


@dataclass(frozen=True)
class RankRequest:
    """One rank of one launch. ``only_set_up``: up to its first forward pass, for the communicators
    alone. ``output``: file for what the script prints. ``within_s``: when it is ended."""

    rank: RankOptions
    environment: dict[str, str]
    output: str
    within_s: float
    only_set_up: bool = False


def main(arguments: list[str]) -> int:
    """Serve until there are no more requests."""
    end_with_parent()
    options: RanksOptions = unpacked(arguments[0])
    # Whatever modules print while they are imported, or scripts later, goes elsewhere.
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    try:
        virtual = prepared(options)
    except InputError as error:
        print(error, file=answers)
        return BAD_INPUT
    print(READY, file=answers)
    for line in sys.stdin:
        child = fork_rank(partial(_run, unpacked(line), virtual))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers)
    return OK


def _run(request: RankRequest, virtual: VirtualRank) -> int:
    """Be one rank, in a forked process; the script's exit code."""
    # Nobody handles it: it ends the process, whatever that is at.
    signal.setitimer(signal.ITIMER_REAL, request.within_s)
    output = os.open(request.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(request.environment)

    def run(options: RankOptions) -> int:
        random.seed(0)
        watch(options.rank, virtual.state.recorder, most_waits=_MOST_WAITS)
        if request.only_set_up:
            # Of a program that prepared.
            options.trace.unlink(missing_ok=True)
            return set_up(options, virtual)
        return run_rank(options, virtual, FileSink(TraceWriter(options.trace, options.header())))

    def end(options: RankOptions, code: int) -> int:
        if not request.only_set_up:
            virtual.close()
        return code

    return run_training(request.rank, virtual.state.recorder, run, end)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
