"""What a command costs, with all that it starts."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Cost:
    """CPU seconds, user and system, that one command took, and what it printed."""

    cpu_s: float
    out: str


def cost_of(words: Sequence[str], folder: Path) -> Cost:
    """Run a command to its end in a folder.

    Raises:
        CalledProcessError: when it fails.
    """
    with tempfile.TemporaryFile("w+") as out:
        running = subprocess.Popen(words, cwd=folder, stdout=out)
        _, status, used = os.wait4(running.pid, 0)
        out.seek(0)
        shown = out.read()
    running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, list(words), shown)
    return Cost(used.ru_utime + used.ru_stime, shown)
