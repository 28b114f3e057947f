"""Measuring slowdowns, on a device that obeys a law, and learning that law back."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.laboratory.device.channels import Traffic
from trainscout.simulators.laboratory.device.torch_kernels import Built
from trainscout.simulators.laboratory.interference import measure
from trainscout.simulators.laboratory.interference.measure import Together, main, probes, traffics
from trainscout.simulators.laboratory.interference.slowdown_rows import read_samples
from trainscout.simulators.predictor.io.command_line import exit_code
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Attention, Gemm, Kernel


def run(arguments: list[str], device: object) -> int:
    return exit_code(lambda given: main(given, device), arguments)


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


def test_rows_are_what_the_fit_reads(tmp_path: Path) -> None:
    path = tmp_path / "slowdowns.csv"
    assert run(["--gpu", "h200", "--output", str(path)], FakeOverlap(Attention)) == 0
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


def test_a_stopped_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "slowdowns.csv"
    arguments = ["--gpu", "h200", "--output", str(path)]
    assert run([*arguments, "--budget-s", "0"], FakeOverlap()) == 0
    assert f"0 points measured, {POINTS} left" in capsys.readouterr().out
    first, second = FakeOverlap(Gemm), FakeOverlap()
    run(arguments, first)
    run(arguments, second)
    gemms = sum(isinstance(op, Gemm) for _, op in probes(H200))
    per_kernel = len(list(traffics(H200)))
    # The second run has the GEMMs, and the points that could not be held.
    failing = 2 * sum(traffic.channels == 1 for traffic in traffics(H200))
    assert first.runs == POINTS - gemms * per_kernel
    assert second.runs == gemms * per_kernel + failing


def test_a_short_run_has_every_kernel_beside_the_likeliest_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "slowdowns.csv"
    beats = itertools.count()
    monkeypatch.setattr(measure.time, "monotonic", lambda: float(next(beats)))
    # One beat when the run begins, one a point.
    count = len(probes(H200))
    run(["--gpu", "h200", "--output", str(path), "--budget-s", str(count + 0.5)], FakeOverlap())
    samples = read_samples([path], ALL)
    assert len(samples.slowdown) == count
    assert set(samples.channels) == {next(traffics(H200)).channels}


def test_one_wave_fills_every_sm_once() -> None:
    for gpu in (H200, ALL["a100_80"]):
        op = next(op for _, op in probes(gpu) if op.name == "one_wave")
        assert isinstance(op, Gemm)
        assert (op.m // 128) * (op.n // 256) == gpu.sms


def test_unknown_gpu_and_absent_device_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "slowdowns.csv"
    assert run(["--gpu", "h2000", "--output", str(path)], FakeOverlap()) == 2
    assert "h200" in capsys.readouterr().err
    assert run(["--gpu", "h200", "--output", str(path), "--budget-s", "nan"], FakeOverlap()) == 2
    assert "--budget-s" in capsys.readouterr().err
    assert not path.exists()
