"""What all commands share: how their help reads, and how they end."""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import io
import math
import os
import signal
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from types import FrameType
from typing import Any, NoReturn

from trainscout.simulators.predictor.question.errors import InputError, nearest_name
from trainscout.simulators.predictor.question.redaction import shown

OK, FAILURE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Stopped by SIGTERM or SIGHUP, a command ends as after Ctrl-C, but with 143 or 129."""
UNWRITTEN = 5
"""The answer was shown, but not all of it could be written: a full disk, say."""
NOTHING_FITS = FAILURE
"""Of ``optimize``, ``explain`` and ``plan``: no recipe fits."""
CHANGED = 3
"""Of ``plan fail_on_change=true``: the answer is not that of the last run."""
EMULATOR_GAP = 3
"""Of ``run`` and ``live``: the script does what virtual GPUs do not."""
IMPOSSIBLE_LAUNCHES = 4
"""Of ``run``, ``live`` and ``trace collate``: what ranks launch cannot be right."""

DEBUG = {"debug=true", "--debug"}
"""What asks for tracebacks."""
_WIDTH = 79


class _Parser(argparse.ArgumentParser):
    """Shows what a command does and examples of it before all its options."""

    _words: Sequence[str] = ()

    def format_help(self) -> str:
        what = f"{self.description}\n\n"
        return what + super().format_help().replace(what, "", 1)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """What is wrong; of a misspelt option, which lets others seem to be missing, that alone.

        Raises:
            InputError: for a word before ``--`` that is no option, and nearly one.
        """
        options = sorted(name for name in self._option_string_actions if name.startswith("--"))
        for word in takewhile("--".__ne__, self._words):
            name = word.partition("=")[0]
            begins = any(option.startswith(name) for option in options)
            if name.startswith("--") and not begins and (nearest := nearest_name(name, options)):
                raise InputError("command line", word, "is no option", options, nearest)
        super().error(message)


def command_parser(
    name: str,
    what: str,
    examples: str,
    exit_codes: str = "0 done; 1 an internal failure; 2 wrong input",
    usage: str | None = None,
) -> argparse.ArgumentParser:
    """A parser whose help begins with what the command does and how it is used.

    Args:
        name: what is typed after ``trainscout``.
        what: paragraphs, parted by empty lines.
        examples: whole commands, a line each (or more, with backslashes).
        exit_codes: what they say, but for 130 (interrupted), which all commands share.
        usage: what may follow ``name``, where a list of all options would say less.
    """
    parser = _Parser(
        prog=f"trainscout {name}",
        usage=None if usage is None else f"trainscout {name} {usage}",
        description=f"{_filled(what)}\n\nexamples:\n{textwrap.indent(examples.strip(), '  ')}",
        epilog=_filled(f"exit codes: {exit_codes}; 130 interrupted"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="show where a failure happened")
    return parser


def _filled(text: str) -> str:
    parts = text.strip().split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(part.split()), _WIDTH) for part in parts)


def collect_rarely() -> None:
    """Look for cycles seldom: what a process makes by the hundred thousand (prices, recipes,
    events) it keeps, and that took a sixth of a large proof, a third of a launch's replay."""
    gc.set_threshold(1_000_000, 50, 100)


def exit_code(main: Callable[[list[str]], int | None], arguments: Sequence[str]) -> int:
    """Run a command to its end; what its process ends with.

    What went wrong is said in one message on stderr, Ctrl-C leaves no traceback, and a reader
    that has left (``| head``) ends the output quietly.
    """
    with _stopped_once() as stopped:
        code = _ended(main, arguments)
    return 128 + stopped[0] if code == INTERRUPTED and stopped else code


@contextlib.contextmanager
def _stopped_once() -> Iterator[list[int]]:
    """Take Ctrl-C, and SIGTERM and SIGHUP, by which Slurm, Kubernetes and lost terminals stop
    jobs, for one ``KeyboardInterrupt`` a second: another one in the middle of handling the first
    would end the process with a traceback and without its results. What came is listed."""
    came: list[int] = []
    last_s = -math.inf

    def stop(signum: int, frame: FrameType | None) -> None:
        nonlocal last_s
        came.append(signum)
        now_s = time.monotonic()
        if now_s - last_s > 1.0:
            last_s = now_s
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    # What nohup has ignored stays so.
    taken = [
        each
        for each in STOPPING
        if each is signal.SIGINT or signal.getsignal(each) is not signal.SIG_IGN
    ]
    before = {each: signal.signal(each, stop) for each in taken}
    try:
        yield came
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


STOPPING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
"""The signals that ask a command to end (Windows has no SIGHUP)."""


def _ended(main: Callable[[list[str]], int | None], arguments: Sequence[str]) -> int:
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


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)
"""What the system answers where the machine, and not a setting, is in the way of writing."""


def unwritten(error: OSError) -> int:
    """Say on stderr what could not be written; returns the exit code."""
    where = "" if error.filename is None else f"{error.filename}: "
    print(shown(f"error: not all results are written: {where}{error.strerror}"), file=sys.stderr)
    return UNWRITTEN


def explain(error: Exception, *, debug: bool) -> int:
    """Say on stderr what went wrong; returns the exit code."""
    if debug:
        print(shown("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if isinstance(error, InputError):
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return unwritten(error)
    print(
        f"internal failure: {shown(f'{type(error).__name__}: {error}')}\n"
        "debug=true (or --debug, where options begin so) shows where; please report it together "
        "with the command.",
        file=sys.stderr,
    )
    return FAILURE
