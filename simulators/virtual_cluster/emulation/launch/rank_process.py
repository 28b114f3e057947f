"""Emulated ranks: installs the virtual GPU, runs the script, checks and sums up the trace.

One process forks itself into one rank after another.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.io.command_line import (
    EMULATOR_GAP,
    FAILURE,
    IMPOSSIBLE_LAUNCHES,
    OK,
    explain,
)
from trainscout.simulators.predictor.io.output import remove_unfinished
from trainscout.simulators.predictor.io.own_process import (
    end_with_parent,
    own_process,
    packed,
    unpacked,
)
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.imbalance import Imbalance
from trainscout.simulators.virtual_cluster.emulation.report import (
    describe_gap,
    show_summary,
    swallowed,
    watch,
)
from trainscout.simulators.virtual_cluster.emulation.sink import (
    FileSink,
    ListSink,
    Sink,
    UntilForward,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.lost_imports import lost_imports
from trainscout.simulators.virtual_cluster.emulation.virtual_rank import VirtualRank, emulate
from trainscout.simulators.virtual_cluster.traces.events import Header
from trainscout.simulators.virtual_cluster.traces.files import TraceWriter, read_trace
from trainscout.simulators.virtual_cluster.traces.invariants import check_trace

from .installation import how_to_install
from .missing_data import how_to_bring
from .prepared import ended_with, fork_rank, preload_modules
from .programs import STARTUP, Programs, put_first, run_main, waits_for_program
from .ranks_before import RanksBefore

if TYPE_CHECKING:
    from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
    from trainscout.simulators.virtual_cluster.emulation.recorder import Recorder

RANK_PROCESS = "trainscout.simulators.virtual_cluster.emulation.launch.rank_process"
_RANK = "TRAINSCOUT_RANK_OF_CHILDREN"
_MOST_LOST = 8
# How lines begin that follow what the script failed by.
BEFORE = "before that,"
# In tracebacks of scripts that name a GPU their node lacks, DataParallel's among them.
_NO_SUCH_GPU = ("in _get_stream", "invalid device ordinal", "Invalid device id")


def become_host() -> None:
    """Install the emulation in this interpreter, a new one of ``multiprocessing``'s that has not
    imported torch: it imports the script again, which may look for a device or a vendor's package.
    Then, as in a forked process, it is a host without a device."""
    options, may_train = unpacked(os.environ[_RANK])
    virtual = start(options, ListSink())
    from .script_processes import enter_host, install_forks

    if may_train:
        virtual.state.be_rank = partial(_trace_child, options, virtual)
    install_forks(virtual.state)
    enter_host(virtual.state)


_PACKAGES = (
    *("torch", "megatron-core", "transformer-engine", "transformers"),
    *("torchtitan", "deepspeed", "accelerate"),
)


@dataclass(frozen=True)
class RankOptions:
    """What a rank's process is started with; see the launcher's options."""

    world_size: int
    rank: int
    local_world_size: int
    gpu: str
    script: tuple[str, ...]
    trace: Path = Path(os.devnull)
    memory_bytes: int | None = None
    check: bool = False
    moe_imbalance: str = ""
    payloads: Path | None = None
    without: tuple[str, ...] = ()
    steps: int | None = None
    """After which the script is ended; None: it ends by itself."""
    strict: bool = False
    """Whether what may be wrong fails the run, too."""
    host_times: bool = True
    """Whether the trace says what the script computes between events."""
    child: bool = False
    """Whether this is a program that the script started: the rank if it trains."""

    def header(self) -> Header:
        """Of the rank's trace."""
        return Header(
            world_size=self.world_size,
            rank=self.rank,
            local_world_size=min(self.local_world_size, self.world_size),
            gpu=self.gpu,
            memory_bytes=int(self.memory_bytes or load_catalogue().gpus[self.gpu].memory_bytes),
            command=self.script,
            versions=_versions(),
        )


@dataclass(frozen=True)
class RanksOptions:
    """What the process of several ranks is started with: ``jobs`` of them run at the same time.

    ``preload``: modules to import before it forks. ``only_set_up``: up to the first forward pass,
    for the communicators alone.
    """

    ranks: tuple[RankOptions, ...]
    jobs: int = 1
    preload: tuple[str, ...] = ()
    only_set_up: bool = False

    def run(self, **streams: Any) -> subprocess.CompletedProcess[bytes]:
        """The process, once all ranks have ended."""
        command = own_process(RANK_PROCESS, packed(self))
        # Sets are walked in the same order in every run.
        environment = {"PYTHONHASHSEED": "0", **os.environ}
        return subprocess.run(command, env=environment, check=False, **streams)


def start(options: RankOptions, sink: Any) -> VirtualRank:
    """Make this process the rank ``options`` describe.

    Raises:
        InputError: for options that cannot be, or when the native part cannot be had.
    """
    from trainscout.simulators.virtual_cluster.emulation.native import load

    gpu = load_catalogue().gpus[options.gpu]
    load()
    from trainscout.simulators.virtual_cluster.emulation.values import Values
    from trainscout.simulators.virtual_cluster.emulation.vendor import install_vendor
    from trainscout.simulators.virtual_cluster.emulation.vendor.lost_imports import LostImports

    values = Values(
        imbalance=Imbalance.parse(options.moe_imbalance) if options.moe_imbalance else None
    )
    virtual = emulate(
        sink,
        world_size=options.world_size,
        rank=options.rank,
        gpu=gpu,
        local_world_size=options.local_world_size,
        memory_bytes=options.memory_bytes,
        values=values,
    )
    install_vendor(without=options.without)
    sys.meta_path.append(LostImports(options.without))
    return virtual


def prepared(options: RanksOptions) -> VirtualRank:
    """As ``start``, with what the ranks share imported: ready to be forked."""
    virtual = start(options.ranks[0], ListSink())
    preload_modules(options.preload)
    return virtual


def run_script(options: RankOptions, state: RankState) -> int:
    """Run a script as ``run_main`` does: 0, 1 when it fails, 3 where it does what the emulator
    does not. Processes that it starts are hosts without a device."""
    from .script_processes import install_forks

    install_forks(state)
    os.environ[_RANK] = packed((options, state.be_rank is not None))
    put_first("PYTHONPATH", STARTUP)
    try:
        run_main(options.script)
    except SystemExit as leaving:
        if not leaving.code:
            return OK
        reason = f"exit code {leaving.code}" if isinstance(leaving.code, int) else leaving.code
        _say(f"the script ended: {reason}")
        _say_lost(leaving)
        return FAILURE
    except BaseException as error:
        # The launcher's own frames are nothing the script's author can use.
        own = error.__traceback__
        while own is not None and own.tb_frame.f_code.co_filename.startswith(
            (str(Path(__file__).parents[1]), "<frozen runpy>")
        ):
            own = own.tb_next
        _say(told := "".join(traceback.format_exception(type(error), error, own)).rstrip())
        gap = describe_gap(error, state.recorder)
        if gap is None:
            if any(words in told for words in _NO_SUCH_GPU):
                _say("the script asks for a GPU that its node lacks: --world-size N gives it N")
            if advice := how_to_bring(error):
                _say(advice)
                return FAILURE
            if advice := how_to_install(error):
                _say(advice)
            _say_lost(error)
            return FAILURE
        _say(gap)
        return EMULATOR_GAP
    return OK


def _say(line: str) -> None:
    # Many scripts put a ``print`` of their own, silent on all ranks but the first, in its place.
    sys.stderr.write(f"{line}\n")


def _say_lost(error: BaseException) -> None:
    # One that was not guarded has told so itself.
    told = error.name if isinstance(error, ImportError) else None
    # ``from package import name`` is named by its package.
    lost = [each for each in lost_imports() if told not in (each[0], each[0].rpartition(".")[0])]
    for name, place in lost[:_MOST_LOST]:
        _say(f"{BEFORE} the script went on without {name}, which it imports at {place}")


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """What is printed leads nowhere: timers of scripts print tracebacks of what ends them."""
    # Far from the numbers of files that the script goes on to close, some of them twice.
    most = os.sysconf("SC_OPEN_MAX")
    far = min(256, most // 2) if most > 0 else 256
    kept = [
        (stream, fcntl.fcntl(to, fcntl.F_DUPFD_CLOEXEC, far), to)
        for stream, to in ((sys.stdout, 1), (sys.stderr, 2))
    ]
    with open(os.devnull, "wb") as nowhere:
        for stream, _, to in kept:
            stream.flush()
            os.dup2(nowhere.fileno(), to)
    try:
        yield
    finally:
        for stream, was, to in kept:
            stream.flush()
            os.dup2(was, to)
            os.close(was)


def run_steps(options: RankOptions, state: RankState) -> int:
    """Run the script as ``run_script``, until it begins a step that ``options`` do not ask for."""
    recorder = state.recorder
    recorder.most_steps = options.steps
    with contextlib.ExitStack() as ending:
        recorder.when_enough = lambda: ending.enter_context(_unheard())
        code = run_script(options, state)
    # Whatever the script made of being ended.
    return OK if recorder.has_enough else code


def run_rank(options: RankOptions, virtual: VirtualRank, sink: Sink) -> int:
    """Run the script as one rank whose events go into ``sink``, as ``run_steps``."""
    virtual.restart(sink, world_size=options.world_size, rank=options.rank)
    if not options.host_times:
        virtual.state.recorder.shortest_gap_ns = math.inf
    if options.payloads is not None:
        from trainscout.simulators.virtual_cluster.emulation.distributed.peers import Folder, Peers
        from trainscout.simulators.virtual_cluster.emulation.values import Payloads

        rank, folder = options.rank, options.payloads
        virtual.state.values.send_by(Payloads(folder, rank))
        virtual.state.peers = Peers(Folder(folder, rank), rank, (rank,), beside=False)
    return run_steps(options, virtual.state)


def set_up(options: RankOptions, virtual: VirtualRank) -> int:
    """Run up to the first forward pass; the script's exit code."""
    sink = UntilForward(options.trace, options.header())
    code = run_rank(options, virtual, sink)
    if virtual.state.values.lacked_sender:
        # Sizes of a batch that its tensor-parallel leader, which did not run, sends: it has been.
        code = OK
    if code == OK and not options.child and not options.trace.exists():
        # A script without a forward pass has shown all of its communicators.
        sink.close()
    return code


def _end_processes(recorder: Recorder) -> None:
    """End what an ended script's processes wait for: nobody will tell them to stop, and Python
    waits for them when it ends. After what the script itself does then."""
    if recorder.has_enough:
        for child in multiprocessing.active_children():
            child.terminate()


def trace_rank(
    before: RanksBefore, programs: Programs, options: RankOptions, virtual: VirtualRank
) -> int:
    """Trace one rank after others: 0, 1, 3 as ``run_script``, 4 for a broken invariant.

    Raises:
        InputError: for a trace that cannot be written, or what the emulator refuses.
    """
    writer, ended = _begin_trace(before, programs, options, virtual)
    atexit.register(_end_processes, virtual.state.recorder)
    virtual.state.be_rank = partial(_trace_child, options, virtual)
    try:
        code = run_rank(options, virtual, FileSink(writer))
    except InputError:
        writer.abandon()
        raise
    # What the script left to be done when Python ends: it may use the device.
    atexit._run_exitfuncs()
    return ended(code)


def _trace_child(
    options: RankOptions, virtual: VirtualRank, tell_parent: Callable[[], None]
) -> Callable[[int], int]:
    """A process of ``multiprocessing``'s that the script started is the rank, if it trains.

    Returns:
        What ends its trace, given the process's exit code.
    """
    recorder = virtual.state.recorder
    programs = Programs(child=True)
    writer, ended = _begin_trace(RanksBefore(), programs, options, virtual)
    recorder.restart(FileSink(writer))
    recorder.most_steps = options.steps

    def end(code: int) -> int:
        gap = code and recorder.gaps
        code = ended(EMULATOR_GAP if gap else code and FAILURE)
        if recorder.has_enough and not programs.claimed:
            # Its end may end the run before the rank's trace is whole.
            programs.wait_for_rank()
        elif gap or recorder.has_enough:
            tell_parent()
        return code

    # What a process does at its end may wait for others.
    recorder.when_enough = lambda: os._exit(end(OK))
    return end


def _begin_trace(
    before: RanksBefore, programs: Programs, options: RankOptions, virtual: VirtualRank
) -> tuple[TraceWriter, Callable[[int], int]]:
    """Begin a rank's trace in this process: its writer, and what ends it after the script did."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    writer = TraceWriter(options.trace, options.header())
    state = virtual.state
    if not waits_for_program(options.script):
        watch(options.rank, state.recorder)
    read = before.watch(options.payloads)

    def ended(code: int) -> int:
        gap = code == EMULATOR_GAP
        if not programs.have_trace(gap or state.recorder.finished_steps > 0):
            state.recorder.sink = ListSink()
            writer.abandon()
            virtual.close()
            for finding in swallowed(state.recorder, options.rank, code):
                _say(f"warning: {finding}")
            return programs.ended_elsewhere(code, enough=options.steps is not None)
        virtual.close()
        findings: tuple[Any, ...] = ()
        if options.check and code == 0:
            findings = check_trace(read_trace(options.trace))
            findings += before.ended(options.rank, state.recorder.finished_steps, read)
        findings += swallowed(state.recorder, options.rank, code)
        spent = time.perf_counter() - began_s, time.process_time() - cpu_s
        show_summary(state, options.trace, *spent, findings)
        wrong = any(finding.certain or options.strict for finding in findings)
        code = code if code or not wrong else IMPOSSIBLE_LAUNCHES
        return programs.ended(code)

    return writer, ended


def _be_rank(
    before: RanksBefore, options: RanksOptions, rank: RankOptions, virtual: VirtualRank
) -> int:
    # The script may start programs elsewhere.
    payloads = rank.payloads and rank.payloads.absolute()
    program = replace(rank, trace=rank.trace.absolute(), payloads=payloads)
    _, *command = own_process(RANK_PROCESS, packed(replace(options, ranks=(program,))))
    local_rank = rank.rank % min(rank.local_world_size, rank.world_size)
    programs = Programs(child=rank.child)
    programs.follow(command, local_rank)
    if options.only_set_up:
        return set_up(rank, virtual)
    return trace_rank(before, programs, rank, virtual)


def main(arguments: list[str]) -> int:
    """Prepare, fork the ranks and wait for them; the first code, by rank, that is not 0."""
    options: RanksOptions = unpacked(arguments[0])
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if len(arguments) > 1:
        # A program of a script's own, which began anew.
        _, parent, role, *words = arguments
        if os.getppid() != int(parent):
            return FAILURE
        rank = replace(options.ranks[0], script=tuple(words), child=role == "child")
        options = replace(options, ranks=(rank,))
        if not rank.child:
            # What this process was before it left its trace unfinished.
            remove_unfinished(rank.trace)
    run = partial(_be_rank, RanksBefore(), options)
    waiting = list(enumerate(options.ranks))
    try:
        virtual = prepared(options)
    except InputError as error:
        return explain(error, debug=False)
    running: dict[int, int] = {}
    codes: dict[int, int] = {}
    while waiting or running:
        if waiting and len(running) < options.jobs:
            at, rank = waiting.pop(0)
            running[fork_rank(partial(run, rank, virtual))] = at
            continue
        child, status = os.wait()
        at = running.pop(child)
        codes[at] = ended_with(status, options.ranks[at].rank)
    return next((codes[at] for at in sorted(codes) if codes[at]), OK)


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


if __name__ == "__main__":
    _code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Libraries complain of what is left at a regular end.
    os._exit(_code)
