"""Python programs that a script starts begin here: one that imports torch becomes the rank.

This folder stands first in their PYTHONPATH; ``programs`` says what the settings are.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

_SETTINGS = "TRAINSCOUT_PROGRAMS"
_PARENT = str(os.getppid())
_WORKER = re.compile(r"from multiprocessing\.(spawn|forkserver) ")
# Other code that Python, or this package, starts processes of its own with.
_NO_PROGRAM = re.compile(r"from multiprocessing|.*import trainscout", re.DOTALL)
# Ray knows a worker by its process, which is to stay: it computes for real, without a device.
_WORKER_OF_RAY = "/ray/_private/workers/default_worker.py"
# Not ``--rank``, which low-rank adapters have as well.
_RANK = re.compile(r"--local[-_]rank(?:=(\d+))?")


class _Finder:
    """Finds nothing; the first import of torch, or of what stands above it, is the sign."""

    def __init__(self, settings: dict[str, Any], words: list[str]) -> None:
        self._settings = settings
        self._words = words

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        settings, words = self._settings, self._words
        if name.partition(".")[0] not in settings["packages"]:
            return
        sys.meta_path.remove(self)
        # Which of a node's ranks it is, by its arguments or its environment.
        rank = os.environ.get("LOCAL_RANK", settings["local_rank"])
        for word, following in zip(words, [*words[1:], ""], strict=True):
            if option := _RANK.fullmatch(word):
                rank = option[1] or following
        if os.path.exists(settings["claim"]) or rank != settings["local_rank"]:
            os._exit(0)
        # A program that a rank's own process turned into is that rank, whether it trains or not.
        role = "rank" if os.getpid() == settings["pid"] else "child"
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *settings["command"], _PARENT, role, *words])


def _begin() -> None:
    words, text = sys.argv, os.environ.get(_SETTINGS)
    if words[0] in ("-c", "-m"):
        code = sys.orig_argv[-len(words)].removeprefix(words[0])
        words = [words[0], code, *words[1:]]
        if words[0] == "-c" and _WORKER.match(code):
            from trainscout.simulators.virtual_cluster.emulation.launch.rank_process import (
                become_host,
            )

            become_host()
        if words[0] == "-c" and _NO_PROGRAM.match(code):
            return
    if text and words[0] in ("", "-"):
        if not sys.stdin.isatty():
            # What comes through standard input can be read once, and may have to begin anew.
            own = len(sys.orig_argv) - len(words) if words[0] else None
            again = ["-c", sys.stdin.read(), *words[1:]]
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:own], *again])
    elif words[0].endswith(_WORKER_OF_RAY):
        from trainscout.simulators.virtual_cluster.emulation.framework_patches import (
            patch_on_import,
        )
        from trainscout.simulators.virtual_cluster.emulation.launch.ray_workers import PATCHES

        patch_on_import(PATCHES)
    elif text:
        sys.meta_path.insert(0, _Finder(json.loads(text), words))


_begin()
