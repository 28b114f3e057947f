"""Time kernels on the GPU at hand: rows that ``kernels.fit`` reads.

``device`` says how: CUDA events, warm-up, median; and ``sustained``, after the board has warmed
up, where a kernel is long enough to matter. Columns are those of published tables. On a CPU, to
try it, rows say ``cpu``, which is no GPU that anything is priced on.
"""

from __future__ import annotations

import dataclasses
import sys

from trainscout.simulators.laboratory.device import timing
from trainscout.simulators.laboratory.device.torch_kernels import Built, TorchKernels
from trainscout.simulators.predictor.kernels.table_rows import row_of
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload import ir

CLASSES = ("gemm", "grouped_gemm", "attention", "streaming")
CPU = "cpu"
SOURCE = "trainscout.simulators.laboratory.kernels.measure"
# Shorter kernels are rare enough in a step not to heat the board.
SUSTAINED_FROM_S = 100e-6


class Machine:
    """Builds PyTorch's kernels on ``cuda`` (or ``cpu``, to try the command) and times them."""

    def __init__(self, device: str) -> None:
        """Raises InputError when there is no PyTorch or no such device."""
        torch, self._clock = timing.open_torch(device)
        self._kernels = TorchKernels(torch, device)
        self._torch, self._device = torch, device
        self.name = CPU if device == CPU else torch.cuda.get_device_name()
        self.software = f"torch {torch.__version__}"

    def host_s(self) -> dict[str, float]:
        return timing.host_seconds(self._torch, self._device)

    def build(self, op: ir.TransformerKernel) -> Built:
        return self._kernels.build(op)

    def burst_s(self, built: Built) -> float:
        return built.repeats * timing.burst_s(self._clock, built.call)

    def sustained_s(self, built: Built, once_s: float) -> float:
        return built.repeats * timing.sustained_s(self._clock, built.call, once_s / built.repeats)


def anonymous(op: ir.TransformerKernel) -> ir.TransformerKernel:
    """The operation without what does not change its time."""
    if isinstance(op, ir.Streaming):
        # Several launches are timed as the one they would be if fused.
        return dataclasses.replace(op, name="", launches=1)
    return dataclasses.replace(op, name="")


def _rates(op: ir.TransformerKernel, built: Built, seconds: float) -> dict[str, object]:
    if isinstance(op, ir.Attention):
        return {"tflops": round(ir.kernel_flops(op) / seconds * 1e-12, 1)}
    if isinstance(op, ir.Streaming):
        rate = round(built.bytes / seconds * 1e-9, 1)
        return {"gbps": rate, "shape": built.shape, "bytes": built.bytes}
    return {}


def measure_kernel(
    machine: Machine, op: ir.TransformerKernel, rows: timing.Rows, gpu: str, precision: str
) -> None:
    """Time a kernel into a table, where it is not there yet. One that cannot be built here is
    skipped with a word on stderr."""
    row = row_of(op, gpu, precision)
    if row in rows:
        return
    try:
        built = machine.build(op)
        seconds = machine.burst_s(built)
        held_s = machine.sustained_s(built, seconds) if seconds >= SUSTAINED_FROM_S else None
    except (InputError, RuntimeError) as error:
        print(f"skipped {row}: {str(error).splitlines()[0]}", file=sys.stderr)
        return
    for time_s, flag in ((seconds, ""), (held_s, "sustained")):
        if time_s is not None:
            found = {"time_us": round(time_s * 1e6, 3), "impl": built.impl, "flag": flag}
            rows.append(row | _rates(op, built, time_s) | found | {"source": SOURCE})
