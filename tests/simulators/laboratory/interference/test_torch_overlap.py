"""The two-stream measurement on a simulated GPU with known slowdowns."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.simulators.laboratory.device.fake_cuda import FakeCuda, FakeTorch
from trainscout.simulators.laboratory.device.channels import CHUNK_BYTES, Traffic
from trainscout.simulators.laboratory.device.timing import cuda_clock
from trainscout.simulators.laboratory.device.torch_kernels import Built
from trainscout.simulators.laboratory.interference import measure
from trainscout.simulators.predictor.question.errors import InputError

TRAFFIC = Traffic(channels=16, channel_bytes_per_s=20e9, message_bytes=64 << 20)
CHUNK_S = CHUNK_BYTES / 20e9


class FakeChannels:
    def __init__(self, torch: Any) -> None:
        self.cuda: FakeCuda = torch.cuda

    def buffers(self, traffic: Traffic) -> tuple[str, str]:
        return "source", "target"

    def launch(self, traffic: Traffic, buffers: tuple[str, str], chunks: int) -> None:
        self.cuda.copy(chunks * CHUNK_S)


def device(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> measure.OverlapDevice:
    torch = FakeTorch(cuda)
    monkeypatch.setattr(measure, "open_torch", lambda name: (torch, partial(cuda_clock, torch)))
    monkeypatch.setattr(measure, "TorchKernels", lambda *_: None)
    monkeypatch.setattr(measure, "ChannelKernel", FakeChannels)
    return measure.OverlapDevice()


@pytest.mark.parametrize("alone_s", [30e-6, 2e-3, 40e-3])
def test_slowdowns_of_both_sides_are_found(
    monkeypatch: pytest.MonkeyPatch, alone_s: float
) -> None:
    cuda = FakeCuda(kernel_slowdown=1.3, copy_slowdown=1.7)
    found = device(monkeypatch, cuda)
    built = Built(lambda: cuda.kernel(alone_s), "fake")
    assert found.alone_s(built) == pytest.approx(alone_s)
    together = found.together(built, alone_s, TRAFFIC)
    assert together.kernel_s == pytest.approx(1.3 * alone_s)
    assert together.copy_slowdown == pytest.approx(1.7, rel=1e-3)


def test_copies_alone_move_what_they_are_paced_to(monkeypatch: pytest.MonkeyPatch) -> None:
    found = device(monkeypatch, FakeCuda(copy_slowdown=3.0))
    # Read once, written once.
    assert found.copy_bytes_per_s(TRAFFIC) == pytest.approx(2 * 16 * 20e9)


def test_copies_that_end_too_early_are_made_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(kernel_slowdown=10.0)
    found = device(monkeypatch, cuda)
    built = Built(lambda: cuda.kernel(1e-3), "fake")
    # Three times the time alone does not cover a slowdown of ten; three doublings do.
    assert found.together(built, 1e-3, TRAFFIC).kernel_s == pytest.approx(1e-2)


def test_a_kernel_that_never_ends_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(kernel_slowdown=1000.0)
    found = device(monkeypatch, cuda)
    with pytest.raises(InputError, match="ended before"):
        found.together(Built(lambda: cuda.kernel(1e-3), "fake"), 1e-3, TRAFFIC)
