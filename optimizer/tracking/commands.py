"""``trainscout tracking``: log what waits to be tracked, and look up what is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from trainscout.optimizer.tracking.best import FORMATS, best_recipes, best_text
from trainscout.optimizer.tracking.runs import log_spooled, open_store, root_cause
from trainscout.optimizer.tracking.settings import TrackingSettings
from trainscout.optimizer.tracking.spool import SPOOL, read_spool
from trainscout.simulators.predictor.io.command_line import FAILURE, OK, command_parser
from trainscout.simulators.predictor.io.output import show_text
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.redaction import redacted_text


def flush(arguments: Sequence[str]) -> int:
    """``trainscout tracking flush``."""
    parser = command_parser(
        "tracking flush",
        "Log every search and study below directories whose tracking store could not be reached "
        "when it ended, to that store or to another. Run again, it goes on with what is left.",
        "trainscout tracking flush outputs\n"
        "trainscout tracking flush outputs studies --uri sqlite:///mlflow.db",
        "0 done; 1 something still waits, or an internal failure; 2 wrong input",
    )
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--uri", help="log them here instead")
    given = parser.parse_args(arguments)
    return flush_directories(given.directories, given.uri)


def best(arguments: Sequence[str]) -> int:
    """``trainscout tracking best``."""
    parser = command_parser(
        "tracking best",
        "Show the best tracked recipe of each model on each cluster, by size and batch.",
        "trainscout tracking best\n"
        "trainscout tracking best --where \"tags.version = '0.1.0'\" --format csv",
        "0 done; 1 nothing was found, the store failed, or an internal failure; 2 wrong input",
    )
    parser.add_argument("--uri", default=TrackingSettings.uri, help="default: %(default)s")
    parser.add_argument(
        "--experiment", default=TrackingSettings.experiment, help="default: %(default)s"
    )
    parser.add_argument("--where", help="of these runs only: \"tags.version = '0.1.0'\"")
    parser.add_argument("--format", choices=FORMATS, default="table")
    given = parser.parse_args(arguments)
    settings = TrackingSettings(uri=given.uri, experiment=given.experiment)
    return show_best(settings, given.where, given.format)


def flush_directories(directories: list[Path], uri: str | None) -> int:
    """Log every search that waits below ``directories``; the exit code.

    Raises:
        InputError: for a directory that is not there, or a bad ``uri``.
    """
    if uri is not None:
        TrackingSettings(uri=uri).check()
    for directory in directories:
        if not directory.is_dir():
            raise InputError("directory", directory, "is not a directory")
    failed = 0
    paths = sorted({path for directory in directories for path in directory.rglob(SPOOL)})
    for path in paths:
        try:
            waiting = read_spool(path)
        except (ValueError, OSError) as error:
            failed += 1
            print(f"warning: {error}", file=sys.stderr)
            continue
        try:
            target = uri or waiting.uri
            run_id = log_spooled(*open_store(target, waiting.experiment), path, again=True)
            print(f"Tracked: {path.parent} in {redacted_text(target)}, run {run_id}")
        except Exception as error:  # one search that cannot be logged must not stop the others
            failed += 1
            print(f"warning: {path} waits: {root_cause(error)}", file=sys.stderr)
    if not paths:
        print("No search waits to be tracked.")
    return FAILURE if failed else OK


def show_best(settings: TrackingSettings, where: str | None, form: str) -> int:
    """Print the best tracked recipes; the exit code.

    Raises:
        InputError: for a store or experiment that is not there, or a bad ``where``.
    """
    settings.check()
    try:
        rows = best_recipes(settings, where)
    except InputError:
        raise
    except Exception as error:  # whatever the store says
        print(f"error: {redacted_text(settings.uri)}: {root_cause(error)}", file=sys.stderr)
        return FAILURE
    if not rows:
        print("No recipe is tracked there.", file=sys.stderr)
        return FAILURE
    show_text(best_text(rows, form))
    return OK
