"""Ranks are emulated with a torch for CPU and a compiler; elsewhere these tests are skipped."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _missing()
    if reason:
        for item in items:
            if FOLDER in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


def _missing() -> str:
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        if (Path(spec.origin).parent / "lib" / "libtorch_cuda.so").exists():
            return "emulation needs torch's build for CPU"
        if shutil.which(os.environ.get("CXX", "g++")) is None:
            return "emulation needs a C++ compiler"
    return ""
