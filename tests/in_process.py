"""Commands as a test runs them: in this process, through the table of commands."""

import contextlib
import io
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from trainscout.cli import main


def command(*words: str) -> Callable[[Sequence[object]], int]:
    """``trainscout WORDS``: takes the arguments after them, returns the exit code."""
    return lambda arguments: main([*words, *map(str, arguments)])


def run_here(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """``trainscout NAME ARGUMENTS`` in a folder, as ``tests.e2e.commands.run`` runs it in a
    process: for what ends before there is any work."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        code = command(*name.split())(arguments)
    return subprocess.CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())
