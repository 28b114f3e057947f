"""Commands in forks of this process, which has imported them: they start at once, and one that
hangs, eats memory or crashes costs nothing but itself."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainscout.cli import main

_MOST_BYTES = 6 << 30


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: the signal that ended it), what it printed."""

    code: int
    out: str
    err: str
    seconds: float


def run_command(arguments: Sequence[str], directory: Path, limit_s: float = 60.0) -> Ended:
    """``trainscout ARGUMENTS`` in ``directory``."""
    return run_forked(lambda: main(list(arguments)), directory, limit_s)


def run_forked(call: Callable[[], int], directory: Path, limit_s: float) -> Ended:
    """What ``call`` returns and prints in a fork that works in ``directory``."""
    started_s = time.monotonic()
    sys.stdout.flush()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            _become(call, directory, out.fileno(), err.fileno(), limit_s)
        _, status = os.waitpid(pid, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Ended(os.waitstatus_to_exitcode(status), *texts, time.monotonic() - started_s)


def _become(call: Callable[[], int], directory: Path, out: int, err: int, limit_s: float) -> None:
    code = 99
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.chdir(directory)
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        code = call()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def files_below(directory: Path) -> list[str]:
    """Names of all that lies below a directory."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))
