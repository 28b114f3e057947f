"""The processes that scripts run in: one prepared process, forked once for every rank.

    python -m trainscout.simulators.virtual_cluster.live.rank_process OPTIONS

The prepared process installs the emulation, imports what is asked for and forks, so that ranks
share the memory of all that (copy on write) and nothing is imported twice. It then waits for them
and reports, a line each, how they ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io.command_line import FAILURE, OK, explain
from trainscout.simulators.predictor.io.own_process import (
    end_with_parent,
    own_process,
    packed,
    unpacked,
)
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.launch.prepared import (
    fork_rank,
    preload_modules,
)
from trainscout.simulators.virtual_cluster.emulation.launch.rank_process import (
    RankOptions,
    run_steps,
    start,
)
from trainscout.simulators.virtual_cluster.emulation.launch.whole_command import run_training
from trainscout.simulators.virtual_cluster.emulation.report import WAIT_S, swallowed, watch
from trainscout.simulators.virtual_cluster.emulation.sink import ListSink
from trainscout.simulators.virtual_cluster.traces.files import TraceWriter, trace_path
from trainscout.simulators.virtual_cluster.walk.host import HostCost
from trainscout.simulators.virtual_cluster.walk.launches import Launches

from .clock import HostClock
from .messages import Figures, Hello, connect
from .sink import LiveSink
from .timekeeping import RankTime, install_clocks, keep_time

PROCESS = "trainscout.simulators.virtual_cluster.live.rank_process"


@dataclass(frozen=True)
class LiveOptions:
    """What the prepared process is started with: ``ranks`` of the job that ``job`` is a rank of.

    ``address`` of the simulator's socket; ``traces``: folder for trace files, or None;
    ``preload``: modules to import before forking.
    """

    address: str
    job: RankOptions
    ranks: tuple[int, ...]
    cost: HostCost
    traces: Path | None
    preload: tuple[str, ...]


class _LivePost:
    """Small tensors of communication, by way of the simulator."""

    def __init__(self, sink: LiveSink) -> None:
        self._sink = sink

    def send(self, message: Any, known: Any) -> None:
        from trainscout.simulators.virtual_cluster.emulation.values.payloads import written

        text = None if known is None else written(message, known)
        self._sink.publish(_key(message), text or "")

    def collect(self, messages: Sequence[Any], ranks: Sequence[int]) -> list[Any]:
        from trainscout.simulators.virtual_cluster.emulation.values.payloads import read_line

        texts = self._sink.collect([_key(message) for message in messages], ranks)
        return [read_line(text)[1] if text else None for text in texts]


def _key(message: Any) -> str:
    return json.dumps(asdict(message))


def run(options: LiveOptions, virtual: Any, rank: int) -> int:
    """Be one rank, in a forked process; the script's exit code."""
    from trainscout.simulators.virtual_cluster.emulation.distributed.peers import Peers

    connection = connect(options.address, Hello(rank, "events"))
    with connect(options.address, Hello(rank, "output")) as output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    writer = _trace_writer(options, rank)
    clock = HostClock(options.cost, Launches())
    sink = LiveSink(
        connection,
        clock,
        partial(connect, options.address, Hello(rank, "thread")),
        None if writer is None else writer.write,
    )
    sink.wait_for_turn()
    virtual.restart(sink, world_size=options.job.world_size, rank=rank)
    recorder = virtual.state.recorder
    virtual.state.values.send_by(_LivePost(sink))
    virtual.state.peers = Peers(sink, rank, options.ranks)

    def run_script(job: RankOptions) -> int:
        keep_time(RankTime(sink, recorder, options.cost.gap_factor))
        watch(rank, recorder, WAIT_S, lambda: sink.waits)
        return run_steps(job, virtual.state)

    def end(job: RankOptions, code: int) -> int:
        for finding in swallowed(recorder, rank, code):
            print(f"warning: {finding}", file=sys.stderr)
        if code == OK and not recorder.finished_steps:
            ran = "" if job.script == options.job.script else f" in {job.script[0]}"
            print(f"warning: rank {rank} took no optimizer step{ran}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        virtual.close()
        if writer is not None:
            writer.close()
        sink.finish(_figures(virtual.state, code), recorder.unknown_values())
        return code

    return run_training(replace(options.job, rank=rank), recorder, run_script, end)


def _trace_writer(options: LiveOptions, rank: int) -> TraceWriter | None:
    if options.traces is None:
        return None
    header = replace(options.job, rank=rank).header()
    return TraceWriter(trace_path(options.traces, rank), header)


def _figures(state: Any, code: int) -> Figures:
    allocated, reserved = state.memory.peaks()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Figures(
        code=code,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        own_bytes=_own_bytes(),
        violations=state.recorder.violations,
    )


def _own_bytes() -> int:
    """Memory of this process that it shares with none; 0 where it is not known."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    private = ("Private_Clean:", "Private_Dirty:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(private))


def _rank(options: LiveOptions, virtual: Any, rank: int, report: int) -> int:
    os.close(report)
    try:
        return run(options, virtual, rank)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The simulator has gone, and has reported why.
        return FAILURE


def main(arguments: list[str]) -> int:
    """Prepare, fork the ranks and report how each ends: ``RANK CODE`` lines on standard output."""
    options: LiveOptions = unpacked(arguments[0])
    end_with_parent()
    # Whatever modules print while they are imported goes elsewhere.
    report = os.dup(1)
    os.dup2(2, 1)
    try:
        install_clocks()
        virtual = start(options.job, ListSink())
        preload_modules(options.preload)
    except InputError as error:
        return explain(error, debug=False)
    children = {}
    for rank in options.ranks:
        children[fork_rank(partial(_rank, options, virtual, rank, report))] = rank
    while children:
        child, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        os.write(report, f"{children.pop(child)} {code}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


def rank_environment() -> dict[str, str]:
    """Variables of a process that ranks are forked from: one thread to a rank, and sets walked in
    the same order in every run."""
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {
        "PYTHONHASHSEED": "0",
        **dict.fromkeys(threads, "1"),
        "TOKENIZERS_PARALLELISM": "false",
        **os.environ,
    }


def start_ranks(options: LiveOptions) -> subprocess.Popen[str]:
    """The prepared process, in a group of its own."""
    return subprocess.Popen(
        own_process(PROCESS, packed(options)),
        stdout=subprocess.PIPE,
        env=rank_environment(),
        text=True,
        start_new_session=True,
    )


def end_all(process: subprocess.Popen[str]) -> None:
    """End the prepared process and the ranks it forked."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
