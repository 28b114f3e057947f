"""Runs the real commands, the way a user does: a process in a directory of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Eight GPUs and a short batch: a search takes seconds.
SMALL = ["model=gpt13b", "cluster=a800_8", "training.global_batch_size=64", "executor=serial"]


def command(program: str, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / program), *arguments]


def run(program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ``program`` of the repository in ``cwd`` to its end."""
    return subprocess.run(
        command(program, *arguments),
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )


def environment() -> dict[str, str]:
    # What the developer's shell sets must not change what a user sees.
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HYDRA_", "MLFLOW_"))
    }


def files_in(directory: Path) -> dict[str, bytes]:
    """Content of every file below ``directory``, by relative path."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
