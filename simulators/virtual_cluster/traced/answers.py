"""Talking to a process that traces: lines of JSON in, a line of JSON for each back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import IO, Any, TextIO

from trainscout.simulators.predictor.io.own_process import own_process

# Far beyond what a slow machine takes: what lasts longer hangs.
START_S, SECONDS_PER_QUESTION = 120, 300
# Enough to see an exception's end.
_SHOWN_LINES = 5


def ask(module: str, about: Any, questions: Sequence[Any]) -> list[dict[str, Any]]:
    """Run ``module`` in a process of its own; its answer to each question, in order.

    Raises:
        RuntimeError: when it ends before it has answered all, with what it said last.
        subprocess.TimeoutExpired: when it hangs.
    """
    text = "".join(json.dumps(line) + "\n" for line in (about, *questions))
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        process = subprocess.run(
            own_process(module),
            input=text,
            stdout=subprocess.PIPE,
            stderr=complaints,
            encoding="utf-8",
            check=False,
            timeout=START_S + SECONDS_PER_QUESTION * len(questions),
        )
        answers = process.stdout.splitlines()
        if process.returncode or len(answers) != len(questions):
            raise RuntimeError(f"{module} ended early: {_last_lines(complaints)}")
    return [json.loads(answer) for answer in answers]


def _last_lines(file: IO[str]) -> str:
    file.seek(0)
    lines: Iterable[str] = file.read().splitlines()[-_SHOWN_LINES:]
    return "\n".join(lines)


def own_stdout() -> TextIO:
    """Standard output for answers alone: what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers
