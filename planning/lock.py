"""One run of a study at a time, whatever started it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from trainscout.simulators.predictor.question.errors import InputError

LOCK = ".running"
_OWNER = ".running-by"


@contextmanager
def only_run(directory: Path, wait_s: float) -> Iterator[None]:
    """Hold a study's directory, which exists, to this process. The lock goes with its process,
    however that ends.

    Raises:
        InputError: when another run still holds it after ``wait_s`` seconds.
    """
    lock, owner = FileLock(directory / LOCK), directory / _OWNER
    try:
        lock.acquire(timeout=wait_s)
    except Timeout:
        raise _held(directory, owner) from None
    try:
        owner.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def check_free(directory: Path) -> None:
    """Refuse early what ``only_run`` would refuse; writes nothing.

    Raises:
        InputError: when another run holds the directory.
    """
    if not (directory / LOCK).exists():
        return
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise _held(directory, directory / _OWNER) from None
    lock.release()


def _held(directory: Path, owner: Path) -> InputError:
    try:
        who = owner.read_text(encoding="utf-8").strip()
    except OSError:
        who = "another process"
    problem = f"is being run by {who}"
    return InputError("hydra.run.dir", directory, problem, "wait_s=<seconds> to wait for it")
