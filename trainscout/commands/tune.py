"""``trainscout tune``: search over the settings of your own script."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.optimizer.options import ExecutorOptions
from trainscout.optimizer.registry import EXECUTORS, SAMPLERS
from trainscout.optimizer.tracking.settings import TrackingSettings
from trainscout.reports.wording import format_seconds
from trainscout.simulators.predictor.io import command_line
from trainscout.simulators.predictor.io.output import make_folder, show_text
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_positive,
    require_whole,
)
from trainscout.simulators.predictor.question.launch import ScriptQuestion
from trainscout.simulators.virtual_cluster.emulation.launch import launcher

STORE = "trials.journal"
HOSTS = ("declared", "traced")
# Ranks are ended before (``LAUNCH_S``); this is for workers, whose launch is tried once more.
_TRIAL_TIMEOUT_S = 2400.0


def _parser() -> argparse.ArgumentParser:
    made = command_line.command_parser(
        "tune",
        "Search over the settings of your own training script. Each launch runs unmodified on "
        "virtual GPUs, as the ranks that stand for the whole job, and is replayed on the cluster."
        "\n\n"
        "{name} among the script's arguments is where a knob goes; the knob file says what it may "
        "be (docs/howto/tune-a-script.md).",
        """
# knobs by argument
trainscout tune --space knobs.yaml --world-size 64 --cluster h100_64 -- \\
    train.py --tp {tp} --pp {pp} --mbs {micro_batch}
# go on where it was interrupted
trainscout tune --resume --space knobs.yaml --world-size 64 \\
    --cluster h100_64 -- train.py --tp {tp} --pp {pp} --mbs {micro_batch}
""",
        "0 done; 1 no launch runs and fits; 2 wrong input; 5 the answer was shown, but not all of "
        "it could be written",
        "--space FILE --world-size N --cluster NAME [options] \\\n    -- SCRIPT ARGS {knob}",
    )
    add = made.add_argument
    add("--space", type=Path, required=True, metavar="FILE", help="knobs and what they may be")
    add("--world-size", type=int, required=True, metavar="N", help="GPUs of the job")
    clusters = "one of conf/cluster, 8xA100-80GB, or a YAML file"
    add("--cluster", required=True, metavar="NAME", help=clusters)
    add("--gpu", metavar="NAME", help="one of conf/gpu instead of the cluster's")
    told = "one of conf/framework: its host times, allocator (default: times of whose code runs)"
    add("--framework", metavar="NAME", help=told)
    add("--host", choices=HOSTS, default="declared", help="host times (default declared)")
    add("--rank", default="auto", metavar="R[,R...]", help="ranks to run (default: found)")
    add("--steps", type=int, default=2, metavar="N", help="optimizer steps to run (default 2)")
    shared = "modules to import once, before ranks are forked"
    add("--preload", type=launcher.names, default=(), metavar="MODULE[,MODULE]", help=shared)
    add("--search", default="cmaes", choices=[*SAMPLERS], help="sampler (default cmaes)")
    add("--trials", type=int, metavar="N", help="launches at most (default: any)")
    add(
        "--patience",
        type=int,
        default=20,
        metavar="N",
        help="end when the five best stay for so many launches that fit (default 20; 0: never)",
    )
    add("--seed", type=int, default=0, metavar="N", help="same seed, same answer (default 0)")
    add("--executor", default="loky", choices=[*EXECUTORS], help="(default loky)")
    add("--jobs", type=int, default=-1, metavar="N", help="launches at a time (default: cores)")
    add("--output", type=Path, default=Path("tune"), metavar="DIR", help="results (default tune)")
    add("--resume", action="store_true", help="go on with the search in --output")
    add("--tracking", metavar="URI", help="an MLflow store, or none (default sqlite:///mlflow.db)")
    add("--json", action="store_true", help="show the best launches as JSON")
    add("script", nargs=argparse.REMAINDER, metavar="-- SCRIPT ARGS", help="or -- -m MODULE ARGS")
    return made


def main(arguments: Sequence[str]) -> int:
    """Search, show, and leave the results in a folder; the exit code."""
    args = _parser().parse_args(arguments)
    _check(args)
    words = launcher.checked_script(args.script)
    launcher.note_other_world("tune", args.world_size, words)
    # These load Optuna, numba and what prices are made of.
    from trainscout.optimizer.scripts.search import (
        EARLY_STOP,
        prepare_script_search,
        run_script_search,
    )
    from trainscout.optimizer.scripts.space import compile_script_space
    from trainscout.optimizer.tracking.tracker import Tracker, record_or_warn
    from trainscout.optimizer.trial import Progress
    from trainscout.reports.script_search import report, save_script_search, to_json, tracked
    from trainscout.reports.script_search_page import script_search_page
    from trainscout.reports.search_page.page import PAGE
    from trainscout.simulators.predictor.io.terminal import as_text, show

    spec: Any = read_yaml(args.space, "--space")
    if not isinstance(spec, dict):
        raise InputError("--space", args.space, "is no mapping", "knobs: {name: {choices: []}}")
    question = _question(args, spec)
    space = compile_script_space(spec, words, question, args.space.parent)
    options = dataclasses.replace(
        EARLY_STOP, sampler=args.search, n_trials=args.trials, patience=args.patience or None
    )
    search = prepare_script_search(space, spec, options, args.seed)
    executor = ExecutorOptions(
        name=args.executor,
        n_jobs=args.jobs,
        trial_timeout_s=_TRIAL_TIMEOUT_S,
        pin_cores=args.executor == "loky",
    )
    executor.check()
    tracking = _tracking(args.tracking)
    store = args.output / STORE
    if args.resume and not store.is_file():
        raise InputError("--resume", args.output, "holds no search", "a folder of --output")
    if not args.resume and store.exists():
        raise InputError("--output", args.output, "holds a search", "--resume, or another folder")
    make_folder("--output", args.output)

    def progress(now: Progress) -> None:
        best = "" if now.best is None or now.best.values is None else _value(now.best.values[0])
        counts = ", ".join(f"{count} {status}" for status, count in now.counts.items() if count)
        print(f"tune: {now.considered} launches ({counts}){best}", file=sys.stderr, flush=True)

    def _value(value: float) -> str:
        works = search.objective.names == ("tokens_per_s",)
        best = f"{value:,.0f} of work a second" if works else format_seconds(value)
        return f", best {best}"

    tracker = Tracker(tracking)
    result = run_script_search(
        search, executor, str(store), resume=args.resume, on_progress=progress
    )
    shown = report(result, question)
    if args.json:
        show_text(to_json(result))
    else:
        show(shown)
    per_node = question.quantities["gpus_per_node"]
    script = words[1] if words[0] == "-m" else words[0]
    page = script_search_page(result, question, script)
    settings = {
        "script": script,
        "words": " ".join(words),
        "space": search.space.name,
        "sampler": args.search,
        "seed": args.seed,
    }
    try:
        files = save_script_search(
            args.output, result, as_text(shown), page, question.world_size, per_node
        )
        print(f"tune: look at {args.output / PAGE}", file=sys.stderr)
        record_or_warn(tracker, tracked(result, question, settings, args.output, files))
    except OSError as error:
        return command_line.unwritten(error)
    if result.unstored is not None:
        return command_line.unwritten(result.unstored)
    if result.stopped == "interrupted":
        return command_line.INTERRUPTED
    return command_line.OK if result.best else command_line.NOTHING_FITS


def _check(args: argparse.Namespace) -> None:
    require_whole("--world-size", args.world_size)
    require_positive("--steps", args.steps)
    require_positive("--patience", args.patience, allow_zero=True)
    if args.trials is not None:
        require_positive("--trials", args.trials)
    for name in args.preload:
        launcher.check_module("--preload", name)
    if args.seed < 0:
        raise InputError("--seed", args.seed, "is negative", "0 or more")
    from trainscout.simulators.virtual_cluster.emulation.virtual_rank import check_platform

    check_platform()


def _question(args: argparse.Namespace, spec: dict[str, Any]) -> ScriptQuestion:
    from trainscout.simulators.virtual_cluster.execution.step import used_part
    from trainscout.simulators.virtual_cluster.traces.collate.probe import parse_ranks

    catalogue = load_catalogue()
    cluster, gpu = catalogue.machines(args.cluster, args.gpu, prefix="--")
    try:
        used_part(cluster, args.world_size)
    except InputError as error:
        raise InputError("--world-size", args.world_size, error.problem) from None
    numbers = spec.get("given") or {}
    if not isinstance(numbers, dict):
        raise InputError("given", numbers, "is not a mapping", "name: whole number pairs")
    for name, value in numbers.items():
        if type(value) is not int:
            raise InputError(f"given.{name}", value, "is no whole number", "a whole number")
        if not str(name).isidentifier():
            raise InputError("given", name, "is no name", "letters, digits and _")
    ranks = None
    if args.rank != "auto":
        ranks = parse_ranks("--rank", args.rank, args.world_size)
    return ScriptQuestion(
        cluster=cluster,
        gpu=gpu,
        framework=catalogue.framework_of_script(args.framework),
        world_size=args.world_size,
        given=numbers,
        host=args.host,
        ranks=ranks,
        steps=args.steps,
        preload=args.preload,
    )


def _tracking(uri: str | None) -> TrackingSettings:
    settings = TrackingSettings()
    if uri == "none":
        settings = TrackingSettings(name="none")
    elif uri is not None:
        settings = TrackingSettings(uri=uri)
    settings.check()
    return settings
