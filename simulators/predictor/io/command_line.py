"""What all commands share: how their help ends, and how they end."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TypedDict

from trainscout.simulators.predictor.question.errors import InputError

OK, FAILURE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
NOTHING_FITS = FAILURE
"""Of ``optimize``, ``explain`` and ``plan``: no recipe fits."""
CHANGED = 3
"""Of ``plan fail_on_change=true``: the answer is not that of the last run."""

DEBUG = {"debug=true", "--debug"}
"""What asks for tracebacks."""


class HelpEnding(TypedDict):
    """Arguments of ``argparse.ArgumentParser``."""

    epilog: str
    formatter_class: type[argparse.HelpFormatter]


def help_ending(examples: str, exit_codes: str = "0 done; 2 wrong input") -> HelpEnding:
    """Examples and exit codes below a command's options, laid out as they are here.

    Args:
        examples: whole commands, a line each (or more, with backslashes).
        exit_codes: what they say, but for 130 (interrupted), which all commands share.
    """
    commands = "\n".join(f"  {line}" for line in examples.strip("\n").split("\n"))
    epilog = f"examples:\n{commands}\n\nexit codes: {exit_codes}; 130 interrupted"
    return {"epilog": epilog, "formatter_class": argparse.RawDescriptionHelpFormatter}


def exit_code(main: Callable[[list[str]], int | None], arguments: Sequence[str]) -> int:
    """Run a command to its end; what its process ends with.

    What went wrong is said in one message on stderr, Ctrl-C leaves no traceback, and a reader
    that has left (``| head``) ends the output quietly.
    """
    # An old code page, as Windows gives a file, must not end the program over a name.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = main(list(arguments)) or OK
        sys.stdout.flush()
        return code
    except SystemExit as leaving:
        # argparse and Hydra leave so, after --help or options that they refuse.
        return leaving.code if isinstance(leaving.code, int) else OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        return explain(error, debug=not DEBUG.isdisjoint(arguments))


def explain(error: Exception, *, debug: bool) -> int:
    """Say on stderr what went wrong; returns the exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, InputError):
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    print(
        f"internal failure: {type(error).__name__}: {error}\n"
        "debug=true (or --debug, where options begin so) shows where; please report it together "
        "with the command.",
        file=sys.stderr,
    )
    return FAILURE
