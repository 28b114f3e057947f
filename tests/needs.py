"""Tests that need what not everybody has: a package, or a machine that can emulate ranks."""

import os
import shutil
from importlib.util import find_spec

import pytest


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skips where one of ``packages`` is missing.

    Unlike ``pytest.importorskip`` it imports none: every worker would, to collect tests that run
    in processes of their own.
    """
    missing = [package for package in packages if not _installed(package)]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def emulation_misses() -> str:
    """What ranks on virtual GPUs want of this machine, where torch is installed and they cannot
    be; else nothing."""
    if _installed("torch") and shutil.which(os.environ.get("CXX", "g++")) is None:
        return "emulation needs a C++ compiler"
    return ""
