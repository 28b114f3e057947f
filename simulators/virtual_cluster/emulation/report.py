"""What a run tells on the terminal: its figures, why it failed, where a rank waits."""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

# Clocks as they are before live mode replaces them.
from time import monotonic as _monotonic
from time import process_time as _process_time
from time import sleep as _sleep
from typing import TYPE_CHECKING, Any

from trainscout.simulators.predictor.io.command_line import EMULATOR_GAP, FAILURE
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.invariants import Finding

from .gaps import ELSEWHERE, frames, is_gap, operation, reason
from .launch.installation import own_python
from .unknown_values import listed
from .vendor.lost_imports import lost_kernels

if TYPE_CHECKING:
    from .rank_state import RankState
    from .recorder import Recorder

# When a script fails, or went on although the emulator did.

_RUN_TOGETHER = "run their ranks together (trainscout live)"
_ADVICE = "leave it out of this run, or report this line"


def describe_gap(error: BaseException, recorder: Recorder) -> str | None:
    """The line for a failure that is the emulator's: operation, call site, what to do. None for
    one that a device raises too (out of memory, shapes that do not fit) or the script itself."""
    if how := own_python(error):
        return f"gap of the emulator: {error}; {how}"
    inside, where = frames(error)
    if not is_gap(error, inside):
        return _of_what_was_not_received(error, recorder)
    advice = "" if isinstance(error, InputError) else f"; {_ADVICE}"
    return f"gap of the emulator: {operation(inside)} at {where}: {reason(error)}{advice}"


def _of_what_was_not_received(error: BaseException, recorder: Recorder) -> str | None:
    """The line for a script that went on with a message of a rank that does not run: sizes that
    pipeline stages tell each other, or an object that it failed without."""
    if isinstance(error, ELSEWHERE) or type(error).__name__ == "OutOfMemoryError":
        return None
    no_object = isinstance(error, TypeError | AttributeError) and "NoneType" in str(error)
    for (asked, site), read in recorder.inventions.items():
        hint, value = read.hint or "", read.value
        lost = no_object and isinstance(value, list) and any(each is None for each in value)
        if "(recv " in hint or (lost and hint.startswith(f"{asked}: ")):
            what = "a message" if "(recv " in hint else f"what {asked} gives"
            where, why = recorder.sites.text(site), hint.partition(": ")[2]
            return f"gap of the emulator: {what} at {where} {why}, or {_RUN_TOGETHER}"
    return None


def swallowed(recorder: Recorder, rank: int, code: int) -> tuple[Finding, ...]:
    """What is to be said of gaps and lost imports that did not end the script, which ended with
    ``code``."""
    lost = () if code else lost_kernels()
    cause = "where it is installed, the script may run other kernels"
    imports = tuple(
        Finding("imports", rank, place, f"went on without {name}", cause, certain=False)
        for name, place in lost
    )
    devices = sorted(index for index in recorder.devices if index is not None)
    if len(devices) > 1:
        names = ", ".join(f"cuda:{index}" for index in devices)
        problem = f"one process works on {names}: here all of it runs on one GPU, part after part"
        cause = "times and memory are wrong; each GPU needs a process (DistributedDataParallel)"
        whole = "whole script"
        imports = (*imports, Finding("one GPU", rank, whole, problem, cause, certain=False))
    if not recorder.gaps or code == EMULATOR_GAP:
        return imports
    site, first = next(iter(recorder.gaps))
    problem = f"{recorder.gaps.total()} gaps of the emulator were swallowed, the first: {first}"
    cause = "the script caught the exception and went on: what it asked for did not run"
    where = recorder.sites.text(site)
    return (*imports, Finding("swallowed gaps", rank, where, problem, cause, certain=False))


# What a rank's run amounted to, in a few lines on the terminal.


def show_summary(
    state: RankState, trace: Path, wall_s: float, cpu_s: float, findings: Sequence[Any]
) -> None:
    """Print the figures, values that were invented and what is wrong with the trace."""
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=True, highlight=False)
    recorder = state.recorder
    allocated, reserved, most = (
        each / 2**30 for each in (*state.memory.peaks(), state.capacity_bytes)
    )
    table = Table(title=f"rank {state.rank} of {state.world_size}, {state.gpu.name}", box=None)
    table.add_column("", style="bold")
    table.add_column("")
    rows = {
        "steps": str(recorder.finished_steps),
        "operations": f"{recorder.operations:,}",
        "communications": f"{recorder.collectives:,}",
        "peak memory": f"{allocated:.2f} GiB allocated, {reserved:.2f} GiB reserved of {most:.2f}",
        "invented values": f"{sum(read.times for read in recorder.inventions.values()):,}",
        "violations": f"{recorder.violations:,}",
        "time": f"{wall_s:.1f} s, {cpu_s:.1f} CPU s",
        "trace": str(trace),
    }
    for name, text in rows.items():
        table.add_row(name, text)
    # What a script prints last is often a bar of progress, whose line is not ended.
    console.print()
    console.print(table)
    if lines := listed(recorder.unknown_values()):
        console.print("invented (nobody knows them without computing; do not read results):")
        for line in lines:
            console.print(f"  {line}", soft_wrap=True)
    shown = {finding.invariant for finding in findings}
    for kind, message, where in recorder.violation_texts[:12]:
        if kind not in shown:
            console.print(
                f"violation: {kind}: {message} ({where})", style="yellow", soft_wrap=True
            )
    for finding in findings:
        kind, style = ("broken invariant", "red") if finding.certain else ("warning", "yellow")
        console.print(f"{kind}: {finding}", style=style, soft_wrap=True)
    if findings:
        for site, made_of in recorder.empty_loaders.items():
            where = recorder.sites.text(site)
            console.print(f"the data loader at {where} gave no batch: {made_of}", soft_wrap=True)


# A watchdog that says where a rank waits: on its own it would wait for ever without a word.

WAIT_S = 60.0
# A rank that waits spends less than this share of the time on its processor.
_IDLE_SHARE = 0.01


def watch(
    rank: int,
    recorder: Recorder,
    wait_s: float = WAIT_S,
    accounted: Callable[[], bool] = lambda: False,
    most_waits: float = math.inf,
) -> Callable[[], None]:
    """From now on, print where the main thread stands whenever it has waited for ``wait_s``, and
    with what it read of values that nobody knows when a step has taken as much of its processor.

    ``accounted``: whether others say what it waits for now. The process ends, as one that failed,
    when it was said ``most_waits`` times in a row and no process that it started worked either.

    Returns:
        What ends that.
    """
    ended: list[bool] = []
    main = threading.main_thread().ident
    assert main is not None
    # No ``threading.Thread``: those of the script's process use the emulated device.
    _thread.start_new_thread(_watch, (rank, recorder, wait_s, accounted, most_waits, main, ended))
    return lambda: ended.append(True)


def _watch(
    rank: int,
    recorder: Recorder,
    wait_s: float,
    accounted: Callable[[], bool],
    most_waits: float,
    main: int,
    ended: list[bool],
) -> None:
    since_s, cpu_s = _monotonic(), _process_time()
    step, began_s, patience_s = 0, cpu_s, wait_s
    waits, started_s = 0, 0.0
    while not ended:
        _sleep(wait_s / 12)
        now_s, now_cpu_s = _monotonic(), _process_time()
        if recorder.finished_steps != step:
            step, began_s, patience_s = recorder.finished_steps, now_cpu_s, wait_s
        elif now_cpu_s - began_s > patience_s:
            most = listed(recorder.unknown_values())[:4]
            loop = "A loop that waits for data may not end; read most often of what nobody knows:"
            lines = [loop, *(f"  {line}" for line in most)] if most else []
            worked = f"rank {rank} has worked for {now_cpu_s - began_s:.0f} CPU s on step {step}: "
            sys.stderr.write("\n".join([worked + _place(main), *lines, ""]))
            patience_s *= 2
        if accounted() or now_cpu_s - cpu_s > _IDLE_SHARE * wait_s:
            since_s, cpu_s, waits = now_s, now_cpu_s, 0
        elif now_s - since_s >= wait_s:
            before_s, started_s = started_s, _started_cpu_s()
            # A compiler that it started, say, works where it waits.
            waits = 1 + (waits if started_s - before_s <= _IDLE_SHARE * wait_s else 0)
            waited_s = waits * (now_s - since_s)
            sys.stderr.write(f"rank {rank} has waited for {waited_s:.0f} s: {_place(main)}\n")
            since_s, cpu_s = now_s, _process_time()
            if waits >= most_waits:
                sys.stderr.flush()
                os._exit(FAILURE)


def _started_cpu_s() -> float:
    """CPU seconds so far of all that this process started, those that ended included (Linux)."""
    parent_of, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            process = int(stat.parent.name)
            parent_of[process], ticks[process] = int(fields[1]), list(map(int, fields[11:15]))
    started = [os.getpid()]
    for one in started:
        started += [process for process, parent in parent_of.items() if parent == one]
    _, _, *ended = ticks.get(started[0], [0, 0])
    spent = sum(ended) + sum(sum(ticks[process]) for process in started[1:])
    return spent / os.sysconf("SC_CLK_TCK")


def _place(thread: int) -> str:
    """Where a thread stands, innermost first."""
    stack = traceback.extract_stack(sys._current_frames().get(thread))
    return " <- ".join(
        f"{each.filename}:{each.lineno} in {each.name}" for each in reversed(stack[-4:])
    )
