"""This session's servers, started when they are first needed; workers have those of the process
that started them."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tests.warm import client
from tests.warm.client import run_warm

ROOT = Path(__file__).parents[2]
_OF_RANKS = {"PYTHONHASHSEED": "0"}


def environment() -> dict[str, str]:
    """This process's, without what the developer's shell may set: it must not change what is
    seen."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HYDRA_", "MLFLOW_")) and name not in ("COLUMNS", "LINES")
    }


@functools.cache
def warm_python() -> str:
    """The address of a server that has imported the project."""
    if shared := os.environ.get(client.COMMANDS):
        return shared
    known = environment() | {client.RANKS: warm_ranks()}
    return _serve(known, client.COMMANDS, "tests.warm.commands")


@functools.cache
def warm_ranks() -> str:
    """The address of a server that has imported torch as emulated ranks do."""
    if shared := os.environ.get(client.RANKS):
        return shared
    return _serve(environment() | _OF_RANKS, client.RANKS, "tests.warm.emulation")


def _serve(variables: dict[str, str], name: str, imported: str) -> str:
    folder = tempfile.mkdtemp(prefix="warm")
    address = f"{folder}/python"
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.warm.server", address, imported],
        cwd=ROOT,
        env=variables | {"PYTHONPATH": str(ROOT), name: address},
        stdin=subprocess.PIPE,
    )

    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
        os.unlink(address)
        os.rmdir(folder)

    atexit.register(end)
    while not Path(address).exists():
        assert server.poll() is None, "the server of warm processes did not start"
        time.sleep(0.01)
    return address


def run_rank(
    *arguments: str, cwd: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """``run_python`` for a script that emulates a rank in its own process."""
    environment = environment | _OF_RANKS
    return run_python(*arguments, cwd=cwd, environment=environment, server=warm_ranks)


def run_python(
    *arguments: str,
    cwd: Path,
    environment: dict[str, str],
    timeout_s: float = 300,
    server: Callable[[], str] = warm_python,
) -> subprocess.CompletedProcess[str]:
    """``subprocess.run([sys.executable, *arguments])`` with its output captured."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        with open(os.devnull, "rb") as stdin:
            code = run_warm(
                server(),
                arguments,
                cwd=str(cwd),
                environment=environment,
                descriptors=[stdin.fileno(), stdout.fileno(), stderr.fileno()],
                timeout_s=timeout_s,
            )
        stated = [_text(stream) for stream in (stdout, stderr)]
    return subprocess.CompletedProcess([sys.executable, *arguments], code, *stated)


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode().replace("\r\n", "\n")
