"""Measuring kernels, on a device that answers from a formula."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainscout.simulators.laboratory.device.timing import Rows
from trainscout.simulators.laboratory.device.torch_kernels import Built
from trainscout.simulators.laboratory.kernels.measure import measure_kernel, row_of
from trainscout.simulators.predictor.kernels.table_rows import KEYS
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import GroupedGemm, Kernel, Streaming


class FakeDevice:
    """Each kernel takes 0.2 ms, a hot one a tenth longer."""

    def __init__(self, broken: bool = False, seconds: float = 2e-4) -> None:
        self.broken, self.seconds, self.built = broken, seconds, 0

    def build(self, op: Kernel) -> Built:
        if self.broken:
            raise InputError("kernel", op, "cannot be built")
        self.built += 1
        return Built(lambda: None, "fake", 1 << 20, "[1]")

    def burst_s(self, built: Built) -> float:
        return self.seconds

    def sustained_s(self, built: Built, once_s: float) -> float:
        return 1.1 * once_s


OP = Streaming("", "elementwise", 1 << 20)


def table() -> Rows:
    return Rows(Path("h200.json"), KEYS["streaming"], [], lambda: None)


def test_a_kernel_is_timed_in_bursts_and_hot_once() -> None:
    rows, device = table(), FakeDevice()
    for _ in range(2):
        measure_kernel(device, OP, rows, "h200", "bf16")
    assert device.built == 1
    assert [(row["time_us"], row["flag"]) for row in rows.rows] == [
        (200.0, ""),
        (220.0, "sustained"),
    ]


def test_a_short_kernel_heats_no_board() -> None:
    rows = table()
    measure_kernel(FakeDevice(seconds=5e-5), OP, rows, "h200", "bf16")
    assert [row["flag"] for row in rows.rows] == [""]


def test_what_cannot_be_built_is_named_and_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    rows = table()
    measure_kernel(FakeDevice(broken=True), OP, rows, "h200", "bf16")
    assert "skipped" in capsys.readouterr().err
    assert rows.rows == []


def test_grouped_rows_name_the_forward_product() -> None:
    forward = GroupedGemm("", 8, 512, 28672, 4096, "bf16")
    gradient = GroupedGemm("", 8, 512, 4096, 28672, "bf16", layout="NN")
    rows = [row_of(op, "h200", "bf16") for op in (forward, gradient)]
    assert [(row["n"], row["k"]) for row in rows] == [(28672, 4096)] * 2
    assert [row["stage"] for row in rows] == ["fwd", "bwd_grad_act"]
