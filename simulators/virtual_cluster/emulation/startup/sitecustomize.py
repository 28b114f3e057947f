"""Python programs that a script starts begin here: one that imports torch becomes the rank.

This folder stands first in their PYTHONPATH; the file needs nothing but Python. ``programs`` says
what the settings are.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

_SETTINGS = "TRAINSCOUT_PROGRAMS"
# Code that Python, or this package, starts processes of its own with.
_NO_PROGRAM = re.compile(r"from multiprocessing|.*import trainscout", re.DOTALL)
_RANK = re.compile(r"--(?:local[-_])?rank(?:=(\d+))?")


class _Finder:
    """Finds nothing; the first import of torch, or of what stands above it, is the sign."""

    def __init__(self, settings: dict[str, Any], words: list[str]) -> None:
        self._settings = settings
        self._words = words

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in self._settings["packages"]:
            sys.meta_path.remove(self)
            self._become_rank()

    def _become_rank(self) -> None:
        settings, words = self._settings, self._words
        local_rank = settings["local_rank"]
        if os.path.exists(settings["claim"]) or _local_rank(words, local_rank) != local_rank:
            os._exit(0)
        # A program that a rank's own process turned into is that rank, whether it trains or not.
        role = "rank" if os.getpid() == settings["pid"] else "child"
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *settings["command"], role, *words])


def _local_rank(words: list[str], default: str) -> str:
    """Which of a node's ranks a program is, by its arguments or its environment."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if option := _RANK.fullmatch(word):
            return option[1] or following
    return os.environ.get("LOCAL_RANK", default)


def _words() -> list[str]:
    """What Python runs, with its arguments; empty where neither file nor word holds it."""
    first, *arguments = sys.argv
    if first in ("", "-"):
        return []
    if first not in ("-c", "-m"):
        return sys.argv
    named = sys.orig_argv[-len(sys.argv)]
    return [] if first == "-c" and _NO_PROGRAM.match(named) else [first, named, *arguments]


if (_text := os.environ.get(_SETTINGS)) and (_found := _words()):
    sys.meta_path.insert(0, _Finder(json.loads(_text), _found))
