"""What a page tells its reader to do, read from its fences.

A fence without a language (or with ``sh``, ``bash``) whose first line begins with a program is
shell; ``python`` is Python. A comment on the lines before a fence says what is special about it::

    <!-- not run: why -->          only its arguments are checked
    <!-- exit code: 3 -->          the command ends with this
    <!-- file: path -->            the reader writes this file
    <!-- output -->                lines of what the block before it shows, in this order
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

SHELL, PYTHON, FILE, OUTPUT = "shell", "python", "file", "output"
PROGRAMS = (
    "trainscout", "python", "python3", "pip", "mlflow", "mkdocs", "git", "grep", "head", "jq",
    "bash", "sbatch", "torchrun", "ruff", "mypy", "pytest", "cd", "cat", "ls", "export", "mkdir",
)  # fmt: skip

_FENCE = re.compile(
    r"((?:^<!--[^\n]*-->\n\n?)*)^(`{3,})[ ]*([\w-]*)[^\n]*\n(.*?)^\2[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_MARKER = re.compile(r"<!-- (not run|exit code|file|output)(?:: (.+?))? -->")


@dataclass(frozen=True)
class Block:
    """One fence that means something: its kind, text, line, and what its comments say."""

    page: str
    line: int
    kind: str
    text: str
    not_run: str | None = None
    exit_code: int = 0
    file: str | None = None

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command of a shell block."""
        return commands_of(self.text)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def commands_of(text: str) -> list[list[str]]:
    """The words of each command of a piece of shell, without where their output goes."""
    joined = re.sub(r"\\\n\s*", " ", text)
    words = [shlex.split(line, comments=True) for line in joined.splitlines()]
    return [command for line in words for command in _split(line)]


def pages() -> list[str]:
    """Every page of the documentation, README first."""
    found = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))
    return ["README.md", *found]


def blocks(page: str, text: str | None = None) -> list[Block]:
    """The blocks of a page in order; other fences (sketches, other outputs) are left out."""
    text = (ROOT / page).read_text(encoding="utf-8") if text is None else text
    found = []
    for fence in _FENCE.finditer(text):
        comments, _, language, content = fence.groups()
        stated = dict(_MARKER.findall(comments))
        line = text.count("\n", 0, fence.start(2)) + 1
        kind = _kind(stated, language, content)
        if kind is not None:
            found.append(
                Block(
                    page,
                    line,
                    kind,
                    content,
                    stated.get("not run"),
                    int(stated.get("exit code", 0)),
                    stated.get("file"),
                )
            )
    return found


def _kind(stated: dict[str, str], language: str, content: str) -> str | None:
    if "file" in stated:
        return FILE
    if "output" in stated:
        return OUTPUT
    if language == "python":
        return PYTHON
    first = content.split(maxsplit=1)[0] if content.strip() else ""
    return SHELL if language in ("", "sh", "bash") and first in PROGRAMS else None


def _split(words: list[str]) -> list[list[str]]:
    """Commands of a line joined by && or pipes; where output goes is left out."""
    commands: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", "|", ";"):
            commands.append([])
        else:
            commands[-1].append(word)
    cut = [command[: command.index(">")] if ">" in command else command for command in commands]
    return [command for command in cut if command]
