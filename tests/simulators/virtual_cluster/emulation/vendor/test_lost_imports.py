"""Imports that a script guards: which are kept, and which are told at a run's end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

import trainscout.simulators.virtual_cluster.emulation.vendor as vendor
from trainscout.simulators.virtual_cluster.emulation.vendor.lost_imports import (
    LostImports,
    lost_imports,
    lost_kernels,
)

SCRIPT = """
import importlib.util
for name in ("deep_kernels", "LIBRARY", "apex.contrib.nobody"):
    try:
        __import__(name)
    except ImportError:
        pass
assert importlib.util.find_spec("kernels_asked_for") is None
import json
"""


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(vendor.packages, "find_version", lambda *_: None)
    vendor.install_vendor()
    finder = LostImports(without=["flash_attn"])
    sys.meta_path.append(finder)
    yield
    sys.meta_path.remove(finder)
    vendor.uninstall_vendor()


def test_what_a_script_goes_on_without_is_kept_with_its_place(
    finder: None, tmp_path: Path
) -> None:
    file = str(tmp_path / "train.py")
    exec(compile(SCRIPT, file, "exec"), {})
    names = ["deep_kernels", "LIBRARY", "apex.contrib.nobody"]
    assert lost_imports() == [(name, f"{file}:5") for name in names]
    # Where there was said to be a package, and there is not all of it.
    assert [name for name, _ in lost_kernels()] == names[2:]


def test_what_libraries_guard_is_kept_of_emulated_packages_alone(
    finder: None, tmp_path: Path
) -> None:
    text = SCRIPT.replace("LIBRARY", "rotary_emb")
    exec(compile(text, f"{tmp_path}/site-packages/library.py", "exec"), {})
    # What libraries of models guard is there.
    exec("from apex.normalization.fused_layer_norm import fused_rms_norm", {})
    # One that is asked to be absent is no surprise.
    assert [name for name, _ in lost_imports()] == ["apex.contrib.nobody"]
