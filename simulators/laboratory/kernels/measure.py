"""Time kernels of training on the GPU at hand: tables that ``kernels.fit`` reads.

The shapes are exactly those the built-in models ask for: their workloads are built over
tensor- and expert-parallel degrees and every distinct kernel is timed once (``device``
says how: CUDA events, warm-up, median; and ``sustained``, after the board has warmed up, where a
kernel is long enough to matter). One CSV per class in the output folder, in the columns of
published tables. A row that is there is not measured again, so a stopped run goes on.
``--device cpu`` tries the command: its rows say ``cpu``, which is no GPU that anything is
priced on, and go into a folder of their own.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.laboratory.device.results import ResultFile, RowStore
from trainscout.simulators.laboratory.device.timing import burst_s, open_torch, sustained_s
from trainscout.simulators.laboratory.device.torch_kernels import (
    Built,
    TorchKernels,
    operand_bytes,
)
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.kernels.table_rows import COLUMNS, KEYS, kernel_class, row_of
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Gemm,
    GroupedGemm,
    Streaming,
    TransformerKernel,
)
from trainscout.simulators.predictor.workload.megatron import build_workload

CLASSES = ("gemm", "grouped_gemm", "attention", "streaming")
TENSOR_PARALLEL = (1, 2, 4, 8)
EXPERT_PARALLEL = (1, 8)
GPUS_PER_NODE = 8
CPU = "cpu"
SOURCE = "trainscout.simulators.laboratory.kernels.measure"
PROGRESS_EVERY = 25
# Larger operations behave like this one (bandwidth and tensor rates are reached), and three
# copies of the operands have to fit.
LARGEST_SHARE_OF_MEMORY = 0.1
# Shorter kernels are rare enough in a step not to heat the board.
SUSTAINED_FROM_S = 100e-6


class Device(Protocol):
    """Builds kernels and times them."""

    def build(self, op: TransformerKernel) -> Built: ...

    def burst_s(self, built: Built) -> float: ...

    def sustained_s(self, built: Built, once_s: float) -> float: ...


class TorchDevice:
    """PyTorch's kernels on ``cuda`` (or ``cpu``, to try the command)."""

    def __init__(self, device: str) -> None:
        """Raises InputError when there is no PyTorch or no such device."""
        torch, self._clock = open_torch(device)
        self._kernels = TorchKernels(torch, device)

    def build(self, op: TransformerKernel) -> Built:
        return self._kernels.build(op)

    def burst_s(self, built: Built) -> float:
        return built.repeats * burst_s(self._clock, built.call)

    def sustained_s(self, built: Built, once_s: float) -> float:
        return built.repeats * sustained_s(self._clock, built.call, once_s / built.repeats)


def training_kernels(
    models: Sequence[Model], gpu: Gpu, precision: str, micro_batches: Sequence[int] = (1,)
) -> dict[str, list[TransformerKernel]]:
    """Every distinct kernel of the models' shards, by class, in the order models were given."""
    found: dict[str, dict[TransformerKernel, None]] = {name: {} for name in CLASSES}
    for model in models:
        for job in _jobs(model, gpu, precision, micro_batches):
            for op in _kernels_of(job):
                if operand_bytes(op) <= LARGEST_SHARE_OF_MEMORY * gpu.memory_bytes:
                    found[kernel_class(op)].setdefault(anonymous(op))
    return {name: list(ops) for name, ops in found.items()}


def _jobs(model: Model, gpu: Gpu, precision: str, micro_batches: Sequence[int]) -> Iterable[Job]:
    experts = EXPERT_PARALLEL if model.moe else (1,)
    for tp in TENSOR_PARALLEL:
        for ep in experts:
            cluster = Cluster("measured", tp * ep, GPUS_PER_NODE, 8, 400.0, "infiniband", "")
            for size in micro_batches:
                batch = tp * ep * GPUS_PER_NODE * size
                recipe = Recipe(
                    tp=tp, ep=ep, etp=1 if ep > 1 else None, sp=tp > 1, micro_batch=size
                )
                training = Training(batch, tokens=1e9, precision=precision)
                job = Job(model, gpu, cluster, training, recipe)
                if why_invalid(job) is None:
                    yield job


def _kernels_of(job: Job) -> Iterable[TransformerKernel]:
    for stage in build_workload(job).stages:
        blocks = [stage.finish, stage.optimizer]
        for chunk in stage.chunks:
            blocks += [block for run in chunk.runs for block in (run.forward, run.backward)]
        for block in blocks:
            for op in block.ops:
                if isinstance(op, Gemm | GroupedGemm | Attention | Streaming):
                    yield op


def anonymous(op: TransformerKernel) -> TransformerKernel:
    """The operation without what does not change its time."""
    if isinstance(op, Streaming):
        # Several launches are timed as the one they would be if fused.
        return dataclasses.replace(op, name="", launches=1)
    return dataclasses.replace(op, name="")


def _rates(op: TransformerKernel, built: Built, seconds: float) -> dict[str, object]:
    if isinstance(op, Attention):
        flops = 2.0 * op.batch * op.heads * op.seq_q * op.seq_k * (op.head_dim + op.head_dim_v)
        flops *= (0.5 if op.causal else 1.0) * (2.5 if op.pass_ == "bwd" else 1.0)
        return {"tflops": round(flops / seconds * 1e-12, 1)}
    if isinstance(op, Streaming):
        rate = round(built.bytes / seconds * 1e-9, 1)
        return {"gbps": rate, "shape": built.shape, "bytes": built.bytes}
    return {}


def measure_class(
    device: Device,
    ops: Sequence[TransformerKernel],
    file: RowStore,
    gpu: str,
    precision: str,
    deadline_s: float,
) -> tuple[int, int]:
    """Time kernels into a file until all are there or the deadline (monotonic) has passed.

    Returns how many rows were added and how many kernels are left. A kernel that cannot be
    built here is skipped with a word on stderr.
    """
    added = 0
    for position, op in enumerate(ops):
        row = row_of(op, gpu, precision)
        if row in file:
            continue
        if time.monotonic() >= deadline_s:
            return added, len(ops) - position
        try:
            built = device.build(op)
            seconds = device.burst_s(built)
            held_s = device.sustained_s(built, seconds) if seconds >= SUSTAINED_FROM_S else None
        except (InputError, RuntimeError) as error:
            print(f"skipped {row}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        for time_s, flag in ((seconds, ""), (held_s, "sustained")):
            if time_s is not None:
                found = {"time_us": round(time_s * 1e6, 3), "impl": built.impl, "flag": flag}
                file.append(row | _rates(op, built, time_s) | found | {"source": SOURCE})
        added += 1
        if added % PROGRESS_EVERY == 0:
            print(f"{file.path.name}: {position + 1} of {len(ops)}", file=sys.stderr)
    return added, 0


def main(arguments: Sequence[str], device: Device | None = None) -> int:
    """Run the command. ``device`` stands in for the machine's own."""
    parser = command_parser(
        "kernels measure",
        "Time kernels of training on the GPU at hand, in the shapes that the built-in models ask "
        "for: one CSV per class, for kernels fit and simulator.measured_kernels=. A row that is "
        "there is not measured again, so a stopped run goes on.",
        "trainscout kernels measure --gpu h200 --output measured/h200 \\\n"
        "    --models llama3_70b,mixtral_8x7b --budget-s 600\n"
        "trainscout kernels measure --gpu h200 --output tried --device cpu",
    )
    parser.add_argument("--gpu", required=True, help="declared GPU this machine has (conf/gpu)")
    parser.add_argument("--output", required=True, type=Path, help="folder of the tables")
    parser.add_argument("--classes", default=",".join(CLASSES), help="default: all")
    parser.add_argument("--models", default="", help="built-in models, comma-separated (all)")
    parser.add_argument("--micro-batches", default="1", help="sequences per micro-batch (1)")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp16"))
    parser.add_argument("--budget-s", type=float, default=600.0, help="stop after this (600)")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the command")
    given = parser.parse_args(arguments)
    catalogue = load_catalogue()
    gpu = catalogue.gpus.chosen("--gpu", given.gpu)
    require_positive("--budget-s", given.budget_s, allow_zero=True)
    classes = _listed(given.classes)
    for name in classes:
        require_choice("--classes", name, CLASSES)
    sizes = [_positive("--micro-batches", each) for each in _listed(given.micro_batches)]
    names = _listed(given.models) or catalogue.models
    models = [catalogue.models.chosen("--models", name) for name in names]
    kernels = training_kernels(models, gpu, given.precision, sizes)
    measured = CPU if given.device == CPU else given.gpu
    _refuse_mixture(given.output, measured)
    device = device or TorchDevice(given.device)
    files = {
        name: ResultFile(given.output / f"{name}.csv", COLUMNS[name], KEYS[name])
        for name in classes
    }
    end_s = time.monotonic() + given.budget_s
    for position, name in enumerate(classes):
        # What is left is shared equally, so that no class starves.
        share_s = (end_s - time.monotonic()) / (len(classes) - position)
        deadline_s = time.monotonic() + share_s
        ops, file = kernels[name], files[name]
        added, left = measure_class(device, ops, file, measured, given.precision, deadline_s)
        print(f"{name}: {added} kernels measured, {left} left; {file.path}")
    return OK


def _refuse_mixture(output: Path, gpu: str) -> None:
    """Refuse a folder with rows of a GPU for those of a CPU, and the other way round.

    Raises:
        InputError: naming the folder.
    """
    for name in CLASSES:
        path = output / f"{name}.csv"
        held = ResultFile(path, COLUMNS[name], KEYS[name]).values("gpu") if path.exists() else ()
        for other in held:
            if (other == CPU) != (gpu == CPU):
                problem = f"holds times of {other}, which do not go with those of {gpu}"
                raise InputError("--output", output, problem, "another folder")


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _positive(field: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError as error:
        raise InputError(field, text, "is not a whole number") from error
    require_positive(field, number)
    return number
