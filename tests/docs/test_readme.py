"""The README's test command is the one that is run."""

from __future__ import annotations

import re
import shlex

from tests.docs.blocks import ROOT, SHELL, blocks


def test_the_test_command_is_what_runs_on_every_change():
    text = (ROOT / ".ci/run").read_text("utf-8")
    run = re.findall(r"(?:python -m pytest|ruff|mypy)[^|&)>\n]*", text)
    shown = [
        command
        for block in blocks("README.md")
        if block.kind == SHELL
        for command in block.commands
        if command[0] in ("ruff", "mypy") or command[:3] == ["python", "-m", "pytest"]
    ]
    assert sorted(shown) == sorted(shlex.split(command) for command in run)
