"""How a command ends that went wrong: one message on stderr, and the exit code."""

from __future__ import annotations

import sys
import traceback

from trainscout.conf.input_errors import explain_hydra_error

OK, NOTHING_FITS, FAILURE, BAD_INPUT, CHANGED, INTERRUPTED = 0, 1, 1, 2, 3, 130


def explain(error: Exception, *, debug: bool) -> int:
    """Say on stderr what went wrong; returns the exit code."""
    if debug:
        traceback.print_exception(error)
    wrong = explain_hydra_error(error)
    if wrong is not None:
        print(f"error: {wrong}", file=sys.stderr)
        return BAD_INPUT
    print(
        f"internal failure: {type(error).__name__}: {error}\n"
        "debug=true shows where; please report it together with the command.",
        file=sys.stderr,
    )
    return FAILURE
