"""The channel kernel's compiler: found, or said in words that it is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from trainscout.simulators.laboratory.device.channels import compiled
from trainscout.simulators.predictor.question.errors import InputError


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_it_compiles() -> None:
    assert compiled("sm_90").argtypes
    with pytest.raises(InputError, match="sm_1"):
        compiled("sm_1")


def test_without_a_compiler_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(InputError, match="nvcc"):
        compiled("sm_90")
