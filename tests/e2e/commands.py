"""Runs the real commands, the way a user does: a process in a directory of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.warm.session import ROOT, environment, run_python

__all__ = ["ROOT", "SMALL", "SMALLEST", "command", "environment", "files_in", "run"]

# Eight GPUs, a short batch, one framework: a search takes seconds.
SMALL = [
    *("model=gpt13b", "cluster=a800_8", "training.global_batch_size=64"),
    *("framework=megatron_core", "executor=serial"),
]
# Of few recipes, where it is no matter which: half a second.
SMALLEST = [*SMALL, "space=maya_table3"]


def command(program: str, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / program), *arguments]


def run(
    program: str, *arguments: str, cwd: Path, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run ``program`` of the repository in ``cwd`` to its end, which must be with ``code``."""
    done = run_python(str(ROOT / program), *arguments, cwd=cwd, environment=environment())
    assert done.returncode == code, done.stdout + done.stderr
    return done


def files_in(directory: Path) -> dict[str, bytes]:
    """Content of every file below ``directory``, by relative path."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
