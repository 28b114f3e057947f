"""What the README promises: its test command is the one that is run, its table the predictor's."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.docs.blocks import ROOT, SHELL, blocks
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.kernels.choice import choose_gemm
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu

GPUS = load_catalogue().gpus
README = (ROOT / "README.md").read_text("utf-8")


def rows() -> list[list[str]]:
    table = README.partition("| GPU |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table]


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


def test_the_table_has_every_gpu():
    named = [name for row in rows() for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(GPUS)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_table_says_what_prices_matrix_products(row):
    for name in re.findall(r"`(\w+)`", row[0]):
        shown = [
            grade(GPUS[name], column) for column in ("16 bit", "fp8", "mxfp8", "tf32", "fp32")
        ]
        assert shown == row[1:6], name


def grade(gpu: Gpu, column: str) -> str:
    """How matrix products of a column are priced; empty where the GPU has no such arithmetic."""
    precision = {"16 bit": "fp16", "mxfp8": "fp8"}.get(column, column)
    if column == "mxfp8" and not gpu.architecture.microscaling:
        return ""
    try:
        gpu.peak(precision)
    except InputError:
        return ""
    return choose_gemm(gpu, precision).evidence.value
