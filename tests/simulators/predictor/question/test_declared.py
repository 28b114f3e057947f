"""Declarations as data: every one is read, nothing else passes for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainscout.simulators.predictor.question.declared import declared_gpus
from trainscout.simulators.predictor.question.errors import InputError


def test_files_are_named_after_their_gpu() -> None:
    gpus = declared_gpus()
    assert len(gpus) > 5
    assert all(gpu.name == name for name, gpu in gpus.items())


def test_folder_without_gpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no GPU declaration"):
        declared_gpus(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "- a\n", "name: x\n", "peak_flops: {bf16: fast}\n", "a: [\n"]
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InputError, match="is not a GPU declaration"):
        declared_gpus(tmp_path)
