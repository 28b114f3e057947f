"""Different contents of device work, each priced once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.interference import KERNEL_CLASSES
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.replay.engine import Floats, Ints
from trainscout.simulators.predictor.replay.graph import NEUTRAL_KIND, Kinds
from trainscout.simulators.predictor.replay.priced import EVIDENCE, KERNELS, PricedOp
from trainscout.simulators.predictor.replay.prices import Pricer, kernel_seconds
from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Block,
    Collective,
    Convolution,
    Gemm,
    GroupedGemm,
    Kernel,
    SendRecv,
)
from trainscout.simulators.virtual_cluster.traces.lowering import Lowered

# Interference is looked up for kernels of a class by how memory-bound they are, in such steps.
BOUND_STEPS = 20
# Kernels of two streams of one GPU share it: each runs at half its speed.
SHARED_GPU = 2.0


@dataclass(frozen=True)
class Priced:
    """Prices by content, columns of length n.

    ``seconds``: on the device, alone. ``kind``: row of ``slowdown``. ``evidence_s``, shape (n, 3):
    seconds priced as measured, fitted, estimated. ``flops``: of matrix products, attention and
    convolutions. ``estimated``: names of what only an estimate stands for. ``algorithm``: NCCL's
    choice for communication, else empty.
    """

    seconds: Floats
    kind: Ints
    evidence_s: Floats
    flops: Floats
    estimated: tuple[frozenset[str], ...]
    slowdown: Floats
    algorithm: tuple[str, ...]


class Contents:
    """Numbers contents of device work as they come: lowered operations and communication."""

    def __init__(self) -> None:
        self._lowered: dict[int, int] = {}
        self._wires: dict[Collective | SendRecv, int] = {}
        self.items: list[Lowered | Collective | SendRecv] = []
        self.launches: list[int] = []

    def operation(self, lowered: Lowered) -> int:
        # Equal operations are one object; it is kept, so its identity stays its own.
        number = self._lowered.get(id(lowered))
        if number is None:
            number = self._lowered[id(lowered)] = self._add(lowered)
            self.launches[number] = lowered.launches
        return number

    def communication(self, op: Collective | SendRecv) -> int:
        number = self._wires.get(op)
        if number is None:
            number = self._wires[op] = self._add(op)
        return number

    def _add(self, item: Lowered | Collective | SendRecv) -> int:
        self.items.append(item)
        self.launches.append(1)
        return len(self.items) - 1

    def price(self, pricer: Pricer) -> Priced:
        """Everything that has come so far.

        Raises:
            InputError: for a precision the GPU does not have, or a collective NCCL has not.
        """
        ops: list[Kernel | Collective | SendRecv] = []
        for item in self.items:
            ops += on_gpu(pricer.gpu, item.kernels) if isinstance(item, Lowered) else [item]
        found = iter(pricer.operations(Block("contents", tuple(ops))))
        count = len(self.items)
        seconds, kind = np.zeros(count), np.full(count, NEUTRAL_KIND, dtype=np.int64)
        evidence_s, flops = np.zeros((count, len(EVIDENCE))), np.zeros(count)
        estimated: list[frozenset[str]] = []
        algorithm = [""] * count
        kinds = Kinds()
        computes: set[int] = set()
        for number, item in enumerate(self.items):
            if isinstance(item, Lowered):
                priced = [next(found) for _ in item.kernels]
                crossing_s = item.transfer_bytes / pricer.gpu.pcie_bytes_per_s
                seconds[number] = sum(each.seconds for each in priced) + crossing_s
                evidence_s[number, EVIDENCE.index(Evidence.ESTIMATED)] = crossing_s
                if priced:
                    kind[number] = kinds.compute(1.0, mix_of(priced))
                    computes.add(int(kind[number]))
            else:
                priced = [next(found)]
                price = priced[0].communication
                assert price is not None
                seconds[number] = price.seconds
                algorithm[number] = price.algorithm
                if price.seconds:
                    kind[number] = kinds.communication(price.channels, price.wire_bytes_per_s)
            names = set()
            for each in priced:
                evidence_s[number, EVIDENCE.index(each.evidence)] += each.seconds
                flops[number] += _flops(each.op)
                if each.evidence is Evidence.ESTIMATED:
                    names.add(_name(each))
            estimated.append(frozenset(names))
        slowdown = kinds.slowdowns(pricer.gpu, pricer.factors.overlap_time)
        rows = np.array(sorted(computes), dtype=np.int64)
        slowdown[np.ix_(rows, rows)] = SHARED_GPU
        names_of = tuple(estimated)
        return Priced(seconds, kind, evidence_s, flops, names_of, slowdown, tuple(algorithm))

    def latency_s(self, pricer: Pricer) -> Floats:
        """Of communication, what a few bytes take; 0 for all else. Shape (n,)."""
        wires = [number for number, item in enumerate(self.items) if not isinstance(item, Lowered)]
        ops = tuple(
            dataclasses.replace(item, bytes=1)
            for item in self.items
            if not isinstance(item, Lowered)
        )
        latency_s = np.zeros(len(self.items))
        if ops:
            found = pricer.operations(Block("few bytes", ops))
            latency_s[wires] = [each.seconds for each in found]
        return latency_s


def on_gpu(gpu: Gpu, kernels: Iterable[Kernel]) -> list[Kernel]:
    """Kernels in the arithmetic a GPU has: without tf32, fp32 operands are not rounded to it."""
    if "tf32" in gpu.peak_flops:
        return list(kernels)
    return [
        dataclasses.replace(kernel, dtype="fp32")
        if isinstance(kernel, Convolution) and kernel.dtype == "tf32"
        else kernel
        for kernel in kernels
    ]


def mix_of(priced: list[PricedOp]) -> Floats:
    """One second of the class most of the time goes to, as memory-bound as the whole is."""
    seconds, bound_s = kernel_seconds(priced)
    mix = np.zeros((2, len(KERNEL_CLASSES)))
    which = int(seconds.argmax())
    mix[0, which] = 1.0
    total = float(seconds.sum())
    if total:
        mix[1, which] = min(1.0, round(float(bound_s.sum()) / total * BOUND_STEPS) / BOUND_STEPS)
    return mix


def _flops(op: object) -> float:
    """Operations of products as the hardware makes them: half the scores of a causal mask."""
    if isinstance(op, Gemm):
        return 2.0 * op.batch * op.m * op.n * op.k
    if isinstance(op, GroupedGemm):
        return 2.0 * op.groups * op.m_per_group * op.n * op.k
    if isinstance(op, Convolution):
        return float(op.flops)
    if isinstance(op, Attention):
        scores = op.batch * op.heads * op.seq_q * op.seq_k * (0.5 if op.causal else 1.0)
        passes = 1.0 if op.pass_ == "fwd" else 2.5
        return 2.0 * scores * (op.head_dim + op.head_dim_v) * passes
    return 0.0


def _name(priced: PricedOp) -> str:
    """What an estimated price is reported as."""
    op = priced.op
    if isinstance(op, Collective):
        return op.kind
    if isinstance(op, SendRecv):
        return "send/recv"
    assert isinstance(op, KERNELS)
    kind = getattr(op, "kind", None)
    return str(kind) if kind else f"{op.dtype} {type(op).__name__}"  # type: ignore[union-attr]
