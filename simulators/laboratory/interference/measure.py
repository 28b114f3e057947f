"""Slow kernels down with imitated channels on the GPU at hand: rows that ``validate`` reads.

Every kernel runs alone, then on one stream while a copy kernel on another occupies N SMs and
moves bytes at the pace of NCCL's channels (``device.channels``), for several N, paces
and buffer sizes; and the other way round, how much the copies are delayed. The copies are
already running when the kernels start and still running when they end, or the point is repeated
with more of them. Columns are those of published tables, with what the replay knows of each
point beside them.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainscout.simulators.laboratory.device.channels import CHUNK_BYTES, ChannelKernel, Traffic
from trainscout.simulators.laboratory.device.timing import (
    LAUNCH_S,
    Rows,
    burst_s,
    calls_for,
    open_torch,
)
from trainscout.simulators.laboratory.device.torch_kernels import Built, TorchKernels
from trainscout.simulators.predictor.kernels.moved_bytes import moved_bytes
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload import ir

SOURCE = "trainscout.simulators.laboratory.interference.measure"
COPY = "copy kernel"
LEVELS = ("kernel", "comm-slowdown")
CHANNELS = (1, 2, 4, 8, 16, 24, 32)
# One channel's link: a share of a NIC, a share of NVLink, and whatever an SM can move.
CHANNEL_BYTES_PER_S = (12.5e9, 25e9, 0.0)
# Inside every L2, and beyond it.
MESSAGE_BYTES = (8 << 20, 512 << 20)
# Long enough that starting the copies does not show.
OVERLAP_S = 10e-3
ATTEMPTS = 4

KEY = (
    "gpu",
    "compute_class",
    "compute_detail",
    "channels",
    "channel_rate",
    "message_size",
    "level",
)


def probes(gpu: Gpu) -> tuple[tuple[str, ir.TransformerKernel], ...]:
    """Kernels to slow down, with the class their row names; sizes of a 70B model's shards.

    The second GEMM has exactly one tile of 128 x 256 per SM: it loses a whole wave with the
    first SM that is taken.
    """
    return (
        ("GEMM", ir.Gemm("large", 8192, 8192, 8192, "bf16")),
        ("GEMM", ir.Gemm("one_wave", 128 * gpu.sms, 256, 8192, "bf16")),
        ("GEMM", ir.Gemm("shard", 8192, 3584, 8192, "bf16")),
        ("GEMM", ir.Gemm("weight_gradient", 8192, 1280, 8192, "bf16", layout="NT")),
        ("GroupedGEMM", ir.GroupedGemm("experts", 8, 1024, 14336, 4096, "bf16", one_kernel=True)),
        ("attention", ir.Attention("fwd", 1, 8, 1, 8192, 8192, 128, 128, True, "fwd", "bf16")),
        ("attention", ir.Attention("bwd", 1, 8, 1, 8192, 8192, 128, 128, True, "bwd", "bf16")),
        ("norm", ir.Streaming("norm_fwd", "norm_fwd", 256 << 20)),
        ("norm", ir.Streaming("norm_bwd", "norm_bwd", 384 << 20)),
        ("elementwise", ir.Streaming("elementwise", "elementwise", 512 << 20)),
        ("softmax", ir.Streaming("softmax_fwd", "softmax_fwd", 512 << 20)),
        ("optimizer", ir.Streaming("optimizer", "optimizer", 2 << 30)),
    )


@dataclass(frozen=True)
class Together:
    """Seconds of one kernel beside the copies, and how much longer the copies took."""

    kernel_s: float
    copy_slowdown: float


class OverlapDevice:
    """Two streams of one CUDA device: kernels alone, copies alone, and both at once."""

    def __init__(self) -> None:
        """Raises InputError without PyTorch, a GPU or a CUDA compiler."""
        torch, self._clock = open_torch("cuda")
        self._torch: Any = torch
        self._kernels = TorchKernels(torch, "cuda")
        self._channels = ChannelKernel(torch)
        self._side = torch.cuda.Stream(priority=-1)
        self._buffers: dict[Traffic, tuple[Any, Any]] = {}
        self._chunk_s: dict[Traffic, float] = {}

    def build(self, op: ir.TransformerKernel) -> Built:
        return self._kernels.build(op)

    def alone_s(self, built: Built) -> float:
        return burst_s(self._clock, built.call)

    def copy_bytes_per_s(self, traffic: Traffic) -> float:
        """Bytes/s the copies read and write alone."""
        return 2.0 * traffic.channels * CHUNK_BYTES / self._chunk_seconds(traffic)

    def together(self, built: Built, alone_s: float, traffic: Traffic) -> Together:
        calls = calls_for(OVERLAP_S, alone_s)
        chunk_s = self._chunk_seconds(traffic)
        factor = 3.0
        for _ in range(ATTEMPTS):
            chunks = max(1, round(factor * calls * alone_s / chunk_s))
            kernel_s = self._kernel_during_copies(built, calls, traffic, chunks)
            if kernel_s is not None:
                return Together(kernel_s, self._copies_during_kernels(built, alone_s, traffic))
            factor *= 2
        raise InputError("overlap", traffic, f"ended before the kernel in {ATTEMPTS} attempts")

    def _events(self) -> tuple[Any, Any]:
        make = self._torch.cuda.Event
        return make(enable_timing=True), make(enable_timing=True)

    def _copy(self, traffic: Traffic, chunks: int) -> tuple[Any, Any]:
        """Launch copies on the side stream; events around them."""
        if traffic not in self._buffers:
            # One traffic's buffers at a time: they are as large as the kernels' operands.
            self._buffers = {traffic: self._channels.buffers(traffic)}
        begin, end = self._events()
        with self._torch.cuda.stream(self._side):
            begin.record()
            self._channels.launch(traffic, self._buffers[traffic], chunks)
            end.record()
        return begin, end

    def _chunk_seconds(self, traffic: Traffic) -> float:
        """Seconds in which every channel copies one chunk, alone."""
        if traffic not in self._chunk_s:
            chunks = 64
            for _ in range(3):
                self._torch.cuda.synchronize()
                begin, end = self._copy(traffic, chunks)
                end.synchronize()
                seconds = begin.elapsed_time(end) * 1e-3
                self._chunk_s[traffic] = seconds / chunks
                chunks = max(chunks, round(OVERLAP_S / self._chunk_s[traffic]))
        return self._chunk_s[traffic]

    def _kernel_during_copies(
        self, built: Built, calls: int, traffic: Traffic, chunks: int
    ) -> float | None:
        """Seconds of one call while copies run throughout; None when they ended before."""
        self._torch.cuda.synchronize()
        _, copied = self._copy(traffic, chunks)
        begin, end = self._events()
        # The first call waits for the copies to have taken their SMs, and warms up.
        self._torch.cuda._sleep(int(calls * LAUNCH_S * 2e9))
        built.call()
        begin.record()
        for _ in range(calls):
            built.call()
        end.record()
        end.synchronize()
        if copied.query():
            return None
        seconds = float(begin.elapsed_time(end)) * 1e-3 / calls
        copied.synchronize()
        return seconds

    def _copies_during_kernels(self, built: Built, alone_s: float, traffic: Traffic) -> float:
        """How much longer copies take while kernels run throughout."""
        chunk_s = self._chunk_seconds(traffic)
        calls = calls_for(4 * OVERLAP_S, alone_s)
        # A quarter of the kernels' time, so that slowed copies still end before they do.
        chunks = max(1, round(calls * alone_s / 4 / chunk_s))
        self._torch.cuda.synchronize()
        for _ in range(calls):
            built.call()
        begin, end = self._copy(traffic, chunks)
        end.synchronize()
        seconds = float(begin.elapsed_time(end)) * 1e-3
        self._torch.cuda.synchronize()
        return seconds / (chunks * chunk_s)


def traffics(gpu: Gpu) -> Iterator[Traffic]:
    """Channels x paces x sizes; copies nearest to a real collective first."""
    for rate, size in itertools.product(CHANNEL_BYTES_PER_S, MESSAGE_BYTES):
        for channels in reversed(CHANNELS):
            if channels < gpu.sms / 2:
                yield Traffic(channels, rate, size)


def measure(device: OverlapDevice, gpu: Gpu, rows: Rows, deadline_s: float) -> tuple[int, int]:
    """Measure every probe beside every traffic until the deadline (monotonic), traffic by
    traffic: a short run has every kernel beside the likeliest.

    Returns the points added and those left. A kernel that cannot be built here, or a point that
    cannot be held, is skipped with a word on stderr.
    """
    added = left = 0
    built: dict[str, Built | None] = {}
    for traffic, (kernel_class, op) in itertools.product(traffics(gpu), probes(gpu)):
        row = _row(gpu, kernel_class, op, traffic, LEVELS[0])
        if row in rows or built.get(op.name, op) is None:
            continue
        if time.monotonic() >= deadline_s:
            left += 1
            continue
        skipped: object = op
        try:
            kernel = built.get(op.name) or device.build(op)
            built[op.name], skipped = kernel, traffic
            point = _point(device, gpu, op, kernel, traffic)
        except (InputError, RuntimeError) as error:
            built.setdefault(op.name, None)
            print(f"skipped {skipped}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        # The last row a point needs is the one that says it is done.
        copies = _row(gpu, kernel_class, op, traffic, LEVELS[1])
        rows.append(copies | {"slowdown": point.pop("copy_slowdown")})
        rows.append(row | point)
        added += 1
    return added, left


def _point(
    device: OverlapDevice, gpu: Gpu, op: ir.TransformerKernel, built: Built, traffic: Traffic
) -> dict[str, object]:
    """What one point found, the kernel alone timed before and after: boards warm up."""
    before_s = device.alone_s(built)
    found = device.together(built, before_s, traffic)
    alone_s = (before_s + device.alone_s(built)) / 2
    bandwidth = (built.bytes or moved_bytes(op)) / alone_s / gpu.memory_bandwidth_bytes_per_s
    return {
        "copy_slowdown": round(found.copy_slowdown, 4),
        "slowdown": round(found.kernel_s / alone_s, 4),
        "t_alone_us": round(alone_s * 1e6, 2),
        "t_overlap_us": round(found.kernel_s * 1e6, 2),
        "memory_throughput": round(min(1.0, bandwidth), 4),
        "comm_bytes_per_s": round(device.copy_bytes_per_s(traffic)),
    }


def _row(
    gpu: Gpu, kernel_class: str, op: ir.TransformerKernel, traffic: Traffic, level: str
) -> dict[str, object]:
    """The columns that say what a point is."""
    return {
        "gpu": gpu.name,
        "compute_class": kernel_class,
        "compute_detail": op.name,
        "comm_kind": COPY,
        "message_size": traffic.message_bytes,
        "n_gpus": 1,
        "level": level,
        "source": f"{SOURCE} on {gpu.name}",
        "channels": traffic.channels,
        "channel_rate": traffic.channel_bytes_per_s,
    }
