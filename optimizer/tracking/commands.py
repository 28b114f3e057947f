"""``trainscout tracking``: log what waits to be tracked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from trainscout.optimizer.tracking.runs import log_spooled, open_store
from trainscout.optimizer.tracking.settings import TrackingSettings
from trainscout.optimizer.tracking.spool import SPOOL, read_spool
from trainscout.simulators.predictor.io.command_line import FAILURE, OK, command_parser
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.redaction import redacted_text, root_cause


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
    options = parser.parse_args(arguments)
    uri: str | None = options.uri
    if uri is not None:
        TrackingSettings(uri=uri).check()
    for directory in options.directories:
        if not directory.is_dir():
            raise InputError("directory", directory, "is not a directory")
    failed = 0
    paths = sorted({path for directory in options.directories for path in directory.rglob(SPOOL)})
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
