"""What the commands under ``python -m`` share: how their help ends, and how they end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TypedDict

from trainscout.simulators.predictor.question.errors import InputError

OK, BAD_INPUT, INTERRUPTED = 0, 2, 130


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

    Wrong input is said on one line, Ctrl-C leaves no traceback, and a reader that has left
    (``| head``) ends the output quietly.
    """
    try:
        code = main(list(arguments)) or OK
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
