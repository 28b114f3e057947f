"""``trainscout run``: an unmodified script as ranks of a large job.

Every rank is a process of its own, as under torchrun; ranks never meet. ``rank_process`` is what
they are forked from and what runs in each.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.io.command_line import (
    EMULATOR_GAP,
    FAILURE,
    IMPOSSIBLE_LAUNCHES,
    OK,
    command_parser,
)
from trainscout.simulators.predictor.io.output import (
    check_output,
    leave_no_empty_folder,
    make_folder,
)
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)
from trainscout.simulators.virtual_cluster.emulation.imbalance import Imbalance
from trainscout.simulators.virtual_cluster.emulation.vendor import PACKAGES
from trainscout.simulators.virtual_cluster.emulation.virtual_rank import (
    check_platform,
    check_ranks,
)
from trainscout.simulators.virtual_cluster.traces.collate.probe import (
    choose_ranks,
    further_ranks,
    parse_ranks,
)
from trainscout.simulators.virtual_cluster.traces.events import Group, Trace

from .programs import find_program, torchrun_ranks
from .rank_process import BEFORE, RankOptions, RanksOptions

AUTO = "auto"


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = command_parser(
        "run",
        "Run a training script unmodified as one or several ranks of a job on virtual GPUs, and "
        "write what each rank does as a trace.\n\nLosses and other values that nobody could know "
        "without computing are inventions: they mean nothing.",
        """
# rank 37 of a job of 96 GPUs
trainscout run --world-size 96 --rank 37 --gpu h800 -- \\
    pretrain_gpt.py --tensor-model-parallel-size 8 ...
# the first rank of each of four stages, two at a time, traces into traces/
trainscout run --world-size 96 --rank 0,24,48,72 --jobs 2 -- pretrain.py ...
# the ranks that stand for all others, found by setting two ranks up
trainscout run --world-size 16384 --rank auto -- pretrain_gpt.py ...
# a module
trainscout run --world-size 16 --rank 0 -- -m torchtitan.train ...
""",
        "0 ran; 1 the script failed; 2 wrong input; 3 the script does what virtual GPUs do not; "
        "4 launches that cannot be right: a trace, or several together, break an invariant",
        "--world-size N [options] -- SCRIPT ARGS",
    )
    add = made.add_argument
    add("--world-size", type=int, required=True, metavar="N", help="GPUs of the job")
    ranks = "ranks to run (default 0); 8-11 is a range, auto those that stand for all"
    add("--rank", default="0", metavar="R[,R...]", help=ranks)
    add("--local-world-size", type=int, default=8, metavar="N", help="GPUs of a node (default 8)")
    add("--gpu", default="h800", metavar="NAME", help="a GPU in conf/gpu (default h800)")
    add("--output", type=Path, metavar="DIR", help="folder for the traces (default traces)")
    add("--trace", type=Path, metavar="FILE", help="file for the trace of a single rank")
    add("--steps", type=int, metavar="N", help="end the script after so many optimizer steps")
    add("--jobs", type=int, default=1, metavar="N", help="ranks run at the same time (default 1)")
    add("--no-check", action="store_true", help="accept traces that break an invariant")
    add("--strict", action="store_true", help="exit 4 for what may be wrong, not only for what is")
    payloads = "keep small tensors and objects here, which ranks run later receive as sent"
    add("--payloads", type=Path, metavar="DIR", help=payloads)
    add(
        "--profile",
        type=Path,
        metavar="FILE",
        help="then time every distinct kernel on this machine's GPU, as trainscout measure does",
    )
    add_script(made)
    return made


def add_script(parser: argparse.ArgumentParser) -> None:
    """The options of the script and of what it finds, of every command that runs one."""
    add = parser.add_argument
    add("--memory-gib", type=float, metavar="GIB", help="device memory, if not the GPU's own")
    add(
        "--moe-imbalance",
        default="",
        metavar="TEXT",
        help="how tokens spread over experts, e.g. "
        "num_experts=64,hot_ratio=0.125,hot_weight=0.5 (default: evenly)",
    )
    hidden = "emulated packages the script shall not find: transformer_engine, apex, ..."
    add("--without", type=names, default=(), metavar="NAME[,NAME]", help=hidden)
    shared = "modules to import once, before ranks are forked (transformers, megatron.core)"
    add("--preload", type=names, default=(), metavar="MODULE[,MODULE]", help=shared)
    add("script", nargs=argparse.REMAINDER, metavar="-- SCRIPT ARGS", help="or -- -m MODULE ARGS")


def names(text: str) -> tuple[str, ...]:
    """What stands between the commas of an option."""
    return tuple(filter(None, text.split(",")))


def script_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of ``RankOptions`` from the options of ``add_script``; as ``checked_script``.

    Raises:
        InputError: for those that cannot be.
    """
    if args.memory_gib is not None:
        require_positive("--memory-gib", args.memory_gib)
        if args.memory_gib < 1:
            allowed = "a number >= 1, CUDA's context included"
            raise InputError("--memory-gib", args.memory_gib, "is out of range", allowed)
    for name in args.without:
        require_choice("--without", name, PACKAGES)
    if args.moe_imbalance:
        Imbalance.parse(args.moe_imbalance)
    for name in args.preload:
        check_module("--preload", name)
    return {
        "memory_bytes": None if args.memory_gib is None else int(args.memory_gib * 2**30),
        # Programs of the script may read it elsewhere.
        "moe_imbalance": re.sub(
            "(?<=histogram=)[^,]+", lambda file: os.path.abspath(file[0]), args.moe_imbalance
        ),
        "without": args.without,
        "script": checked_script(args.script),
    }


def note_other_world(command: str, world_size: int, script: Sequence[str]) -> None:
    """Say that torchrun before a script would start another number of ranks than are simulated."""
    started = torchrun_ranks(script)
    if started not in (None, world_size):
        note = f"torchrun says {started} ranks; --world-size {world_size} is what runs"
        print(f"{command}: {note}", file=sys.stderr)


def check_module(option: str, module: str, *folders: str) -> None:
    """Refuse a module that is not installed, nor in one of the folders."""
    top = module.partition(".")[0]
    with contextlib.suppress(ImportError, ValueError):
        if importlib.util.find_spec(top) or PathFinder.find_spec(top, folders):
            return
    raise InputError(option, module, "is not installed", "modules of the script")


def checked_script(words: Sequence[str]) -> tuple[str, ...]:
    """What follows ``--`` on a command line.

    Raises:
        InputError: for what is no script and no module.
    """
    script = tuple(words[1:] if words[:1] == ["--"] else words)
    file, module = "-- SCRIPT ARGS", "-- -m MODULE ARGS"
    if not script:
        raise InputError("script", "", "is missing", f"{file} or {module}")
    if script == ("-m",):
        raise InputError("script", "-m", "names no module", module)
    if script[0] == "-m":
        check_module("-m", script[1], os.getcwd())
        return script
    found = find_program(script[0])
    if found is None:
        raise InputError("script", script[0], "is no file and no program", f"{file} or {module}")
    return (found, *script[1:])


def main(arguments: Sequence[str]) -> int:
    """Run the ranks and check what they do together; the first exit code that is not 0."""
    args = parser().parse_args(arguments)
    check_platform()
    auto = args.rank == AUTO
    if not auto:
        check_ranks(args.world_size, 0, 1)
    ranks = (0,) if auto else parse_ranks("--rank", args.rank, args.world_size)
    with tempfile.TemporaryDirectory() as sent:
        if auto and args.payloads is None:
            # Ranks are told what those before them sent.
            args.payloads = Path(sent)
        options = [_options(args, rank) for rank in ranks]
        _check(args, options)
        note_other_world("run", args.world_size, options[0].script)
        note = "times that the script prints are this machine's, no predictions (trainscout live)"
        print(f"run: {note}", file=sys.stderr)
        failed = _run(args, options)
        read: list[Trace] = []
        if auto and not failed:
            failed, options, read = _run_others(args, options[0])
    if not failed and not args.no_check and len(options) > 1:
        failed = _check_together([one.trace for one in options], read, args.strict)
    if failed:
        return failed
    traces = shlex.quote(str(args.trace or options[0].trace.parent))
    print(f"run: step time: trainscout trace replay {traces} --cluster NAME", file=sys.stderr)
    return _time_kernels([one.trace for one in options], args.profile) if args.profile else OK


def _run_others(
    args: argparse.Namespace, first: RankOptions
) -> tuple[int, list[RankOptions], list[Trace]]:
    """Run those that stand for the job beside rank 0; the first code that is not 0, all, and the
    traces of as many as were looked at."""
    from trainscout.simulators.virtual_cluster.traces.files import read_trace

    traces = [read_trace(first.trace)]
    groups = [event for event in traces[0].events if isinstance(event, Group)]
    stages = choose_ranks(
        args.world_size, lambda rank: _groups_of(_options(args, rank)) if rank else groups
    )
    options, failed = [first], OK
    further = replace(stages, ranks=stages.ranks[1:])
    while not failed and (further.ranks or len(stages.ranks) == 1):
        traces += [read_trace(one.trace) for one in options[len(traces) :]]
        if not further.ranks and not (further := further_ranks(traces)).ranks:
            break
        print(f"ranks {', '.join(map(str, further.ranks))}: {further.why}", file=sys.stderr)
        more = [_options(args, rank) for rank in further.ranks]
        _check(args, options := options + more)
        failed = _run(args, more)
        further = replace(further, ranks=())
    return failed, options, traces


def _time_kernels(traces: Sequence[Path], output: Path) -> int:
    """Have the laboratory measure what was traced: a command of its own, for a real GPU."""
    words = [word for path in traces for word in ("--traces", str(path))]
    command = [sys.executable, "-m", "trainscout", "measure", *words, "--output", str(output)]
    return subprocess.run(command).returncode


def _check_together(paths: Sequence[Path], read: Sequence[Trace], strict: bool) -> int:
    from trainscout.simulators.virtual_cluster.traces.files import read_trace
    from trainscout.simulators.virtual_cluster.traces.invariants import check_together

    findings = check_together([*read, *map(read_trace, paths[len(read) :])])
    for finding in findings:
        print(f"{'' if finding.certain else 'warning: '}{finding}", file=sys.stderr)
    wrong = any(finding.certain or strict for finding in findings)
    return IMPOSSIBLE_LAUNCHES if wrong else OK


def _run(args: argparse.Namespace, options: Sequence[RankOptions]) -> int:
    """Trace the ranks; the first code that is not 0."""
    try:
        code = RanksOptions(tuple(options), args.jobs, args.preload).run().returncode
    finally:
        for one in options:
            leave_no_empty_folder(one.trace)
    return FAILURE if code < 0 else code


def _groups_of(options: RankOptions) -> list[Group]:
    """The communicators of ``options.rank`` once it is set up.

    Raises:
        SystemExit: when the script ends before, with an error.
    """
    from trainscout.simulators.virtual_cluster.traces.files import read_trace

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "set_up.trace.gz"
        ranks = RanksOptions((replace(options, trace=path),), only_set_up=True)
        done = ranks.run(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode or not path.exists():
            lines = done.stdout.decode(errors="replace").strip().splitlines()
            error = [line for line in lines if not line.startswith(BEFORE)][-1:]
            problem = f"rank {options.rank} fails while it is set up: {' '.join(error)}"
            gap = done.returncode == EMULATOR_GAP
            print(problem, file=sys.stderr)
            raise SystemExit(EMULATOR_GAP if gap else FAILURE)
        return [event for event in read_trace(path).events if isinstance(event, Group)]


def _options(args: argparse.Namespace, rank: int) -> RankOptions:
    from trainscout.simulators.virtual_cluster.traces.files import trace_path

    folder = args.output or Path("traces")
    return RankOptions(
        world_size=args.world_size,
        rank=rank,
        local_world_size=args.local_world_size,
        gpu=args.gpu,
        trace=args.trace or trace_path(folder, rank),
        check=not args.no_check,
        payloads=args.payloads,
        steps=args.steps,
        strict=args.strict,
        **script_fields(args),
    )


def _check(args: argparse.Namespace, options: list[RankOptions]) -> None:
    for one in options:
        check_ranks(one.world_size, one.rank, one.local_world_size)
    require_choice("--gpu", args.gpu, load_catalogue().gpus)
    world, node = args.world_size, args.local_world_size
    if world > node and world % node:
        fits = max(each for each in range(1, node) if world % each == 0)
        problem = f"does not divide {world} ranks"
        raise InputError("--local-world-size", node, problem, f"{fits}, {world}")
    require_positive("--jobs", args.jobs)
    check_output("--profile", args.profile)
    if args.steps is not None:
        require_positive("--steps", args.steps)
    if args.trace is not None and len(options) > 1:
        raise InputError("--trace", args.trace, "names one file for several ranks", "--output DIR")
    if args.payloads is not None:
        make_folder("--payloads", args.payloads)
    for one in options:
        make_folder("--output", one.trace.parent)
