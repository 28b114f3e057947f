"""Talking to a process that traces: lines of JSON in, a line of JSON for each back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

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


def ask_several(
    module: str, about: Any, questions: Sequence[Any], processes: int
) -> Iterator[dict[str, Any]]:
    """As ``ask``, of so many processes, each for an equal part of the questions."""
    size = -(-len(questions) // processes)
    shares = [questions[first : first + size] for first in range(0, len(questions), size)]
    with ThreadPoolExecutor(len(shares)) as pool:
        for answers in pool.map(lambda share: ask(module, about, share), shares):
            yield from answers


def _last_lines(file: IO[str]) -> str:
    file.seek(0)
    lines: Iterable[str] = file.read().splitlines()[-_SHOWN_LINES:]
    return "\n".join(lines)


def serve(prepare: Callable[[Any], Callable[[Any], dict[str, Any]]]) -> int:
    """Be such a process: ``prepare`` takes the first line and makes what answers the others.

    Standard output is for answers alone: what libraries print goes to standard error. A question
    that raises is answered with ``failed`` and the reason.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    answer = prepare(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except Exception as error:  # what Megatron refuses or the device lacks is a finding
            traceback.print_exc()
            found = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=answers)
    return 0
