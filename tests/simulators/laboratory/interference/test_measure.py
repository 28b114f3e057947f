"""Measuring slowdowns, on a device that obeys a law, and learning that law back."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.laboratory.device.channels import Traffic
from trainscout.simulators.laboratory.device.timing import Rows
from trainscout.simulators.laboratory.device.torch_kernels import Built
from trainscout.simulators.laboratory.interference import measure
from trainscout.simulators.laboratory.interference.measure import KEY, Together, probes, traffics
from trainscout.simulators.laboratory.interference.slowdown_rows import read_samples
from trainscout.simulators.predictor.io.measurements import rows_text
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Attention, Gemm, Kernel

ALL = load_catalogue().gpus
H200 = ALL["h200"]
POINTS = len(probes(H200)) * len(list(traffics(H200)))


class FakeOverlap:
    """Kernels lose the SMs that are taken, copies run a tenth slower."""

    def __init__(self, broken: type[Kernel] | None = None) -> None:
        self.broken, self.runs = broken, 0

    def build(self, op: Kernel) -> Built:
        if self.broken is not None and isinstance(op, self.broken):
            raise InputError("kernel", op, "cannot be built")
        return Built(lambda: op, "fake")

    def alone_s(self, built: Built) -> float:
        return 1e-3

    def copy_bytes_per_s(self, traffic: Traffic) -> float:
        return 2 * traffic.channels * (traffic.channel_bytes_per_s or 50e9)

    def together(self, built: Built, alone_s: float, traffic: Traffic) -> Together:
        self.runs += 1
        if traffic.channels == 1 and isinstance(built.call(), Attention):
            raise InputError("overlap", traffic, "ended before the kernel")
        return Together(alone_s * 132 / (132 - traffic.channels), 1.1)


def table() -> Rows:
    return Rows(Path("h200.json"), KEY, [], lambda: None)


def run(rows: Rows, device: FakeOverlap, budget_s: float = 600.0) -> tuple[int, int]:
    return measure.measure(device, H200, rows, measure.time.monotonic() + budget_s)


def written(rows: Rows, path: Path) -> Path:
    path.write_text(rows_text(rows.rows), encoding="utf-8")
    return path


def test_rows_are_what_validation_reads(tmp_path: Path) -> None:
    rows = table()
    run(rows, FakeOverlap(Attention))
    path = written(rows, tmp_path / "slowdowns.csv")
    samples = read_samples([path], ALL)
    held = samples.channels
    assert samples.slowdown == pytest.approx(132 / (132 - held), rel=1e-4)
    assert set(samples.gpu) == {"h200"}
    assert not samples.assumed.any()
    assert np.all(samples.memory_bound <= 1)
    # The law has no memory in it: the physical model is exact where nothing is DRAM-bound.
    assert np.all(samples.physical >= samples.slowdown - 1e-3)
    copies = read_samples([path], ALL, comm=True)
    assert set(copies.slowdown) == {1.1}
    assert len(copies.slowdown) == len(samples.slowdown)


def test_a_stopped_run_goes_on() -> None:
    rows = table()
    assert run(rows, FakeOverlap(), budget_s=0) == (0, POINTS)
    first, second = FakeOverlap(Gemm), FakeOverlap()
    run(rows, first)
    run(rows, second)
    gemms = sum(isinstance(op, Gemm) for _, op in probes(H200))
    per_kernel = len(list(traffics(H200)))
    # The second run has the GEMMs, and the points that could not be held.
    failing = 2 * sum(traffic.channels == 1 for traffic in traffics(H200))
    assert first.runs == POINTS - gemms * per_kernel
    assert second.runs == gemms * per_kernel + failing


def test_a_short_run_has_every_kernel_beside_the_likeliest_traffic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beats, rows = itertools.count(), table()
    monkeypatch.setattr(measure.time, "monotonic", lambda: float(next(beats)))
    # One beat when the run begins, one a point.
    count = len(probes(H200))
    run(rows, FakeOverlap(), budget_s=count + 0.5)
    points = [row for row in rows.rows if row["level"] == "kernel"]
    assert len(points) == count
    assert {row["channels"] for row in points} == {next(traffics(H200)).channels}


def test_one_wave_fills_every_sm_once() -> None:
    for gpu in (H200, ALL["a100_80"]):
        op = next(op for _, op in probes(gpu) if op.name == "one_wave")
        assert isinstance(op, Gemm)
        assert (op.m // 128) * (op.n // 256) == gpu.sms
