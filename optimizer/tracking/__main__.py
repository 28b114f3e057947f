"""Log what waits to be tracked, and look up what is.

  trainscout tracking flush DIRECTORY... [--uri URI]
      logs every search and study below the directories whose tracking store could not be reached
      when it ended, to that store or to another. Run again, it goes on with what is left.
  trainscout tracking best [--where CONDITION] [--format table|json|csv]
      shows the best tracked recipe of each model on each cluster, by size and batch.

Exit codes: 0 done; 1 something still waits, nothing was found, or the store failed; 2 bad input.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from trainscout.optimizer.tracking.best import FORMATS, best_recipes, best_text
from trainscout.optimizer.tracking.runs import log_spooled, open_store, root_cause
from trainscout.optimizer.tracking.settings import TrackingSettings
from trainscout.optimizer.tracking.spool import SPOOL, read_spool
from trainscout.optimizer.urls import without_password
from trainscout.simulators.predictor.io.output import show_text
from trainscout.simulators.predictor.question.errors import InputError

_LONGEST_S = 600


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="trainscout tracking",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    flushing = commands.add_parser("flush", help="log searches that wait")
    flushing.add_argument("directories", nargs="+", type=Path)
    flushing.add_argument("--uri", help="log them here instead")
    finding = commands.add_parser("best", help="the best recipe of each model on each cluster")
    finding.add_argument("--uri", default=TrackingSettings.uri, help="default: %(default)s")
    finding.add_argument(
        "--experiment", default=TrackingSettings.experiment, help="default: %(default)s"
    )
    finding.add_argument("--where", help="of these runs only: \"tags.version = '0.1.0'\"")
    finding.add_argument("--format", choices=FORMATS, default="table")
    commands.add_parser("serve", help="what a search starts beside itself")
    given = parser.parse_args(arguments)
    if given.command == "serve":
        return serve()
    try:
        if given.command == "best":
            settings = TrackingSettings(uri=given.uri, experiment=given.experiment)
            return show_best(settings, given.where, given.format)
        return flush(given.directories, given.uri)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def flush(directories: list[Path], uri: str | None) -> int:
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
            print(f"Tracked: {path.parent} in {without_password(target)}, run {run_id}")
        except Exception as error:  # one search that cannot be logged must not stop the others
            failed += 1
            print(f"warning: {path} waits: {root_cause(error)}", file=sys.stderr)
    if not paths:
        print("No search waits to be tracked.")
    return 1 if failed else 0


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
        print(f"error: {without_password(settings.uri)}: {root_cause(error)}", file=sys.stderr)
        return 1
    if not rows:
        print("No recipe is tracked there.", file=sys.stderr)
        return 1
    show_text(best_text(rows, form))
    return 0


def serve() -> int:
    """Open the store named on the first line of stdin; then log one spooled search a line."""
    if hasattr(os, "nice"):
        os.nice(10)  # the search comes first
    asked, answers = sys.stdin, sys.stdout
    # MLflow prints; answers must stay alone on the pipe.
    sys.stdout = sys.stderr
    store = functools.cache(open_store)
    line = asked.readline()
    if line:
        where = json.loads(line)
        # When this fails, the first search is told so.
        with contextlib.suppress(Exception), _at_most(_LONGEST_S):
            store(**where)
    for line in asked:
        path = json.loads(line)["path"]
        try:
            with _at_most(_LONGEST_S):
                run_id = log_spooled(*store(**where), Path(path), again=False)
            answer = {"path": path, "run": run_id}
        except Exception as error:
            answer = {"path": path, "error": root_cause(error)}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """End the process when the body takes longer: the search it belongs to may be long gone."""
    if not hasattr(signal, "alarm"):
        yield
        return
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
