"""What device work takes: lowered operations and communication, live as in replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.interference.overlap import KERNEL_CLASSES
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.replay.device_block import kernel_seconds
from trainscout.simulators.predictor.replay.engine import Floats
from trainscout.simulators.predictor.replay.host import copy_s
from trainscout.simulators.predictor.replay.priced import EVIDENCE, KERNELS, PricedOp
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.virtual_cluster.traces.lowering.tensors import Lowered

# Interference is looked up for kernels of a class by how memory-bound they are, in such steps.
BOUND_STEPS = 20
# Kernels of two streams of one GPU share it: each runs at half its speed.
SHARED_GPU = 2.0

Content = Lowered | ir.Collective | ir.SendRecv


@dataclass(frozen=True, eq=False, slots=True)
class Price:
    """``seconds`` that an operation or a communication takes alone, on one device.

    ``evidence_s``: those priced as measured, fitted, estimated; ``estimated``: names of what only
    an estimate stands for. Of kernels, ``mix``: one second of the class most of it goes to, and
    how much of that memory bounds, as bytes; ``flops``: of matrix products, attention and
    convolutions. Of communication, ``latency_s`` that carry no bytes, the ``algorithm`` that NCCL
    chose, the SMs (``channels``) it holds, and what it reads and writes in device memory.
    """

    seconds: float
    latency_s: float = 0.0
    algorithm: str = "ring"
    channels: float = 0.0
    memory_bytes_per_s: float = 0.0
    mix: bytes = b""
    flops: float = 0.0
    evidence_s: tuple[float, ...] = (0.0,) * len(EVIDENCE)
    estimated: frozenset[str] = frozenset()


def price_contents(pricer: Pricer, contents: Sequence[Content]) -> list[Price]:
    """What each takes, in order.

    Raises:
        InputError: for a precision the GPU does not have, or a collective NCCL has not.
    """
    ops: list[ir.Kernel | ir.Collective | ir.SendRecv] = []
    for content in contents:
        if isinstance(content, Lowered):
            ops += _on_gpu(pricer.gpu, content.kernels)
        else:
            ops += content, dataclasses.replace(content, bytes=1)
    found = iter(pricer.operations(ir.Block("contents", tuple(ops))))
    return [
        _kernels(content, [next(found) for _ in content.kernels], pricer.gpu)
        if isinstance(content, Lowered)
        else _communication(next(found), next(found))
        for content in contents
    ]


def _kernels(lowered: Lowered, priced: list[PricedOp], gpu: Gpu) -> Price:
    crossing_s = copy_s(lowered.transfer_bytes, gpu, lowered.pageable_bytes)
    evidence_s, estimated = _evidence(priced, crossing_s)
    return Price(
        sum(each.seconds for each in priced) + crossing_s,
        mix=_mix_of(priced).tobytes() if priced else b"",
        flops=sum(map(ir.kernel_flops, lowered.kernels)),
        evidence_s=evidence_s,
        estimated=estimated,
    )


def _communication(whole: PricedOp, few_bytes: PricedOp) -> Price:
    price = whole.communication
    assert price is not None
    return Price(
        price.seconds,
        min(few_bytes.seconds, price.seconds),
        price.algorithm,
        float(price.channels),
        price.wire_bytes_per_s,
        b"",
        0.0,
        *_evidence([whole], 0.0),
    )


def _evidence(
    priced: Sequence[PricedOp], guessed_s: float
) -> tuple[tuple[float, ...], frozenset[str]]:
    """Seconds by grade, and names of what is estimated; ``guessed_s`` more are."""
    seconds = [0.0] * len(EVIDENCE)
    seconds[EVIDENCE.index(Evidence.ESTIMATED)] = guessed_s
    for each in priced:
        seconds[EVIDENCE.index(each.evidence)] += each.seconds
    names = frozenset(_name(each) for each in priced if each.evidence is Evidence.ESTIMATED)
    return tuple(seconds), names


def _on_gpu(gpu: Gpu, kernels: Iterable[ir.Kernel]) -> list[ir.Kernel]:
    """Kernels in the arithmetic a GPU has: without tf32, fp32 operands are not rounded to it."""
    if "tf32" in gpu.peak_flops:
        return list(kernels)
    return [
        dataclasses.replace(kernel, dtype="fp32")
        if isinstance(kernel, ir.Convolution | ir.Gemm) and kernel.dtype == "tf32"
        else kernel
        for kernel in kernels
    ]


def _mix_of(priced: list[PricedOp]) -> Floats:
    """One second of the class most of the time goes to, as memory-bound as the whole is."""
    seconds, bound_s = kernel_seconds(priced)
    mix = np.zeros((2, len(KERNEL_CLASSES)))
    which = int(seconds.argmax())
    mix[0, which] = 1.0
    total = float(seconds.sum())
    if total:
        mix[1, which] = min(1.0, round(float(bound_s.sum()) / total * BOUND_STEPS) / BOUND_STEPS)
    return mix


def _name(priced: PricedOp) -> str:
    """What an estimated price is reported as."""
    op = priced.op
    if isinstance(op, ir.Collective):
        return op.kind
    if isinstance(op, ir.SendRecv):
        return "send/recv"
    assert isinstance(op, KERNELS)
    kind = getattr(op, "kind", None)
    return str(kind) if kind else f"{op.dtype} {type(op).__name__}"  # type: ignore[union-attr]
