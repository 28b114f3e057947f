"""What newcomers type (``mistakes.yaml``): each is answered with what they meant.

``python -m benchmarks.attack.mistakes`` prints the answers, for people to read.
"""

from __future__ import annotations

import random
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.attack.forked import Ended, run_command
from trainscout.simulators.predictor.io.yaml_files import read_yaml

_FILES: dict[str, str] = read_yaml(Path(__file__).with_name("mistakes_files.yaml"))


def attack(seed: int, count: int) -> tuple[int, list[str]]:
    """How many mistakes were made, and which answers do not help, a line each."""
    chosen = list(_mistakes())
    random.Random(seed).shuffle(chosen)
    chosen = chosen[:count]
    wrong = []
    for _, command, words, code in chosen:
        ended = _answer(command)
        text = ended.err + (ended.out if code != 2 else "")
        if ended.code != code:
            wrong.append(f"{command}: exit code {ended.code}: {ended.err[-200:]!r}")
        elif not re.search(words, text, re.DOTALL) or "Traceback" in text:
            wrong.append(f"{command}: says no {words!r}: {text[:300]!r}")
    return len(chosen), wrong


def _mistakes() -> Iterator[tuple[str, str, str, int]]:
    """Who makes it, the command, what its answer holds, its exit code."""
    listed: dict[str, list[list[Any]]] = read_yaml(Path(__file__).with_suffix(".yaml"))
    for who, mistakes in listed.items():
        for command, words, *code in mistakes:
            yield who, command, str(words), code[0] if code else 2


def _answer(command: str) -> Ended:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in _FILES.items():
            Path(folder, name).parent.mkdir(exist_ok=True)
            Path(folder, name).write_text(text, encoding="utf-8")
        return run_command(shlex.split(command), Path(folder))


if __name__ == "__main__":
    for who, command, _, _ in _mistakes():
        ended = _answer(command)
        print(f"{who}: trainscout {command}\n  {ended.code}: {(ended.err or ended.out)[:300]}")
