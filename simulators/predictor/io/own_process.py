"""Processes of this package's own, from whatever folder they are started."""

from __future__ import annotations

import base64
import ctypes
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import trainscout

# Interrupted while it still imports, it has nothing to say.
_START = """\
import sys
try:
    sys.path.insert(0, {root!r})
    import trainscout
    del sys.path[0]
    import runpy
    runpy.run_module({module!r}, run_name="__main__")
except KeyboardInterrupt:
    sys.exit(130)
"""


def own_process(module: str, *arguments: str) -> list[str]:
    """The command line of a process that runs ``module`` of this package, as ``python -m`` would.

    It finds the package where this process did, and nothing else for that: neither the current
    folder nor what stands beside the package in a clone can hide modules of a script that the
    process runs, or be hidden by them.
    """
    root = str(Path(trainscout.__file__).absolute().parents[1])
    return [sys.executable, "-P", "-c", _START.format(root=root, module=module), *arguments]


def packed(value: object) -> str:
    """A value for such a process, or its answer, as one word."""
    return base64.b64encode(pickle.dumps(value)).decode()


def unpacked(word: str) -> Any:
    """What another process of this package ``packed``."""
    return pickle.loads(base64.b64decode(word))


def end_with_parent() -> None:
    """Let the kernel end this process when its parent ends, however that ends (Linux only)."""
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
