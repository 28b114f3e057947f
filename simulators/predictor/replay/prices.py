"""Blocks with seconds: every operation priced, summed by the part of the step it belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.collectives import (
    CollectivePrice,
    price_collective,
    price_send_recv,
)
from trainscout.simulators.predictor.interference import KERNEL_CLASSES, overlap_slowdowns
from trainscout.simulators.predictor.kernels import price_kernels
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.replay.host_lag import SYNC_LAUNCHES, host_lag_s
from trainscout.simulators.predictor.replay.stragglers import slowest_excess
from trainscout.simulators.predictor.uncertainty.calibration import Calibration
from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Attention,
    Block,
    Collective,
    Communicator,
    Convolution,
    Free,
    Gemm,
    GroupedGemm,
    HostSync,
    Kernel,
    SendRecv,
    Streaming,
)

if TYPE_CHECKING:
    from trainscout.simulators.predictor.kernels.measured import MeasuredTable
    from trainscout.simulators.predictor.replay.congestion import Congestion

COMPUTE = "compute"
OVERLAP_SLOWDOWN = "overlap_slowdown"
STRAGGLERS = "stragglers"
HOST = "host"
BUBBLE = "bubble"
OPTIMIZER = "optimizer"
# The part of the step that a communicator's time is shown under.
COMMUNICATION = {
    "tp": "tp_communication",
    "tp_cp": "tp_communication",
    "stage": "dp_communication",
    "etp": "tp_communication",
    "cp": "cp_communication",
    "ep": "ep_communication",
    "etp_ep": "ep_communication",
    "dp": "dp_communication",
    "expert_dp": "dp_communication",
    **{
        f"{name}_{group}": "dp_communication"
        for name in ("dp", "expert_dp")
        for group in ("shard", "copies")
    },
    "model": "dp_communication",
    "embedding": "dp_communication",
    "pp": "pp_communication",
}
PARTS = (
    COMPUTE,
    "tp_communication",
    "cp_communication",
    "ep_communication",
    "pp_communication",
    "dp_communication",
    OVERLAP_SLOWDOWN,
    STRAGGLERS,
    BUBBLE,
    OPTIMIZER,
    HOST,
)
PART_INDEX = {name: index for index, name in enumerate(PARTS)}
EVIDENCE = tuple(Evidence)
KERNELS = (Gemm, GroupedGemm, Attention, Convolution, Streaming)
DeviceOp = Kernel | Collective | SendRecv


@dataclass(frozen=True)
class PricedBlock:
    """One block's time on one GPU.

    ``part_s`` has one entry per name in ``PARTS`` and sums to ``seconds``, the device time of
    the block run alone, with waits for the host that it contains. ``host_s`` is what the host
    needs to launch it. ``kernel_s``, shape (2, kernel classes), are the seconds of its kernels
    by class, and how many of those are limited by memory bandwidth.
    ``channels`` and ``wire_bytes_per_s`` describe its communication (time-weighted means, see
    ``CollectivePrice``).
    ``evidence_s`` are the seconds priced as measured, fitted, estimated.
    """

    seconds: float
    part_s: np.ndarray
    host_s: float
    kernel_s: np.ndarray
    channels: float
    wire_bytes_per_s: float
    evidence_s: np.ndarray
    estimated: frozenset[str] = field(default_factory=frozenset)

    @property
    def compute_share(self) -> float:
        """Share of ``seconds`` that are kernels."""
        return min(1.0, float(self.kernel_s[0].sum()) / self.seconds) if self.seconds else 0.0


@dataclass(frozen=True)
class PricedOp:
    """One operation's own time: ``seconds`` alone on the device, on the slowest rank."""

    op: DeviceOp
    seconds: float
    evidence: Evidence
    memory_bound: float = 0.0
    communication: CollectivePrice | None = None


class Pricer:
    """Prices blocks for one GPU, cluster and set of communicators; each content once."""

    def __init__(
        self,
        gpu: Gpu,
        cluster: Cluster,
        framework: Framework,
        communicators: Mapping[str, Communicator],
        calibration: Calibration | None = None,
        measured: MeasuredTable | None = None,
        congestion: Congestion | None = None,
    ) -> None:
        self.gpu = gpu
        self.cluster = cluster
        self.communicators = communicators
        self._measured = measured
        self.congestion = congestion
        factors = (1.0, 1.0, 1.0) if calibration is None else calibration.factors
        self._compute_time, self._network_time, host_time = factors
        self.host_launch_s = host_launch_s(framework) * host_time
        self.host_forward_s = (
            0.0 if framework.cuda_graphs else framework.host_forward_s * host_time
        )
        pipeline = communicators.get("pp")
        between = pipeline is not None and pipeline.nodes > 1 and not framework.cuda_graphs
        self._host_tp_rank_s = framework.host_tp_rank_s * host_time if between else 0.0
        self.launch_blocking = framework.launch_blocking and not framework.cuda_graphs
        self.excess = slowest_excess(cluster.num_gpus, gpu.architecture.speed_spread)
        # Everything a price may depend on, spelled out: a Gpu hashes by a few of its fields.
        self._key = repr(
            (
                gpu,
                cluster,
                self.host_launch_s,
                self.host_forward_s,
                self._host_tp_rank_s,
                self.launch_blocking,
                factors,
                measured,
                communicators,
                congestion and congestion.key,
            )
        )

    def block(self, block: Block) -> PricedBlock:
        """The summed price of a block, computed once per content and process."""
        key = (block.digest, self._key)
        priced = _PRICED.get(key)
        if priced is None:
            if len(_PRICED) >= _PRICED_LIMIT:
                _PRICED.clear()
            operations = self.operations(block)
            host_s = sum(self.launch_seconds(block, operations))
            if self.launch_blocking:
                # Nothing runs while the host launches, and nothing beside anything else.
                lag_s = host_s
                operations = [_by_itself(each) for each in operations]
            else:
                lag_s = host_lag_s(_host_work(block, operations), self.host_launch_s)
            priced = _sum_block(operations, self.gpu, host_s, self.excess, lag_s)
            _PRICED[key] = priced
        return priced

    def launch_seconds(self, block: Block, operations: Sequence[PricedOp]) -> list[float]:
        """Seconds of the host for each device operation of a block.

        What forward passes issue is taken to come first, as it does where layers are recomputed
        whole, the one case in which a block has many operations of both kinds.
        """
        return [
            launches_of(priced.op) * self.host_launch_s
            + (self.host_forward_s if place < block.forward_ops else 0.0)
            + self._beside_launch_s(priced)
            for place, priced in enumerate(operations)
        ]

    def _beside_launch_s(self, priced: PricedOp) -> float:
        """What a tensor-parallel collective takes the host besides (``host_tp_rank_s``)."""
        op = priced.op
        if not self._host_tp_rank_s or not isinstance(op, Collective) or op.communicator != "tp":
            return 0.0
        return self._host_tp_rank_s * self.communicators["tp"].size

    def operations(self, block: Block) -> list[PricedOp]:
        """Every device operation of a block with its own time, in launch order."""
        kernels: list[Kernel] = [op for op in block.ops if isinstance(op, KERNELS)]
        prices = price_kernels(self.gpu, kernels, self._measured) if kernels else None
        priced: list[PricedOp] = []
        index = 0
        for op in block.ops:
            if isinstance(op, KERNELS):
                assert prices is not None
                seconds = prices.seconds[index] * (1 + self.excess) * self._compute_time
                memory_bound = prices.memory_bound[index]
                grade = EVIDENCE[prices.evidence[index]]
                priced.append(PricedOp(op, float(seconds), grade, float(memory_bound)))
                index += 1
            elif isinstance(op, Collective | SendRecv):
                price = self._communication(op)
                priced.append(PricedOp(op, price.seconds, price.evidence, communication=price))
        return priced

    def _communication(self, op: Collective | SendRecv) -> CollectivePrice:
        group = self.communicators[op.communicator]
        if self.congestion is not None:
            price = self.congestion.price(op, group.nodes > 1, group, self.cluster)
        elif isinstance(op, SendRecv):
            price = price_send_recv(op.bytes, group.nodes > 1, group, self.gpu, self.cluster)
        else:
            price = price_collective(op.kind, op.bytes, group, self.gpu, self.cluster, op.dtype)
        if self._network_time == 1 or group.nodes == 1:
            return price
        return replace(
            price,
            seconds=price.seconds * self._network_time,
            wire_bytes_per_s=price.wire_bytes_per_s / self._network_time,
        )


_PRICED: dict[tuple[str, str], PricedBlock] = {}
_PRICED_LIMIT = 50_000


def host_launch_s(framework: Framework) -> float:
    """Seconds of the host per kernel; a replayed graph costs it one call, whatever it holds."""
    return 0.0 if framework.cuda_graphs else framework.host_launch_s


# Transformer Engine launches an expert's product from C++, dealt out over streams, in a fraction
# of what a module of the framework takes the host: some 5 us against 40.
PRODUCTS_PER_LAUNCH = 8


def launches_of(op: DeviceOp) -> int:
    """Launches the host makes for one operation."""
    if isinstance(op, GroupedGemm) and not op.one_kernel:
        return 1 + op.groups // PRODUCTS_PER_LAUNCH
    return op.launches if isinstance(op, Streaming) else 1


def _by_itself(priced: PricedOp) -> PricedOp:
    if not getattr(priced.op, "overlaps", 0):
        return priced
    assert isinstance(priced.op, Collective | SendRecv)
    return replace(priced, op=replace(priced.op, overlaps=0))


def _host_work(block: Block, priced: Sequence[PricedOp]) -> list[tuple[int, float | None]]:
    """Launches and seconds in launch order, None where the host waits; see ``host_lag_s``."""
    device = iter(priced)
    work: list[tuple[int, float | None]] = []
    for op in block.ops:
        if isinstance(op, HostSync):
            work.append((SYNC_LAUNCHES, None))
        elif not isinstance(op, Alloc | Free):
            each = next(device)
            # What runs beside others does not keep them waiting.
            alone = not getattr(op, "overlaps", 0)
            work.append((launches_of(each.op), each.seconds if alone else 0.0))
    return work


def _sum_block(
    ops: Sequence[PricedOp], gpu: Gpu, host_s: float, excess: float, lag_s: float
) -> PricedBlock:
    """Run a block alone: kernels one after another, communication beside those it overlaps.

    ``lag_s`` of it the device waits for the host.
    """
    parts = np.zeros(len(PARTS))
    evidence = np.zeros(len(EVIDENCE))
    estimated = set()
    communication_s = 0.0
    wire = np.zeros(2)
    index = 0
    while index < len(ops):
        priced = ops[index]
        beside = priced.op.overlaps if isinstance(priced.op, Collective | SendRecv) else 0
        group = ops[index : index + 1 + beside]
        for each in group:
            evidence[EVIDENCE.index(each.evidence)] += each.seconds
            if each.evidence is Evidence.ESTIMATED:
                estimated.add(_kind_of(each.op))
            price = each.communication
            if price is not None:
                communication_s += each.seconds
                wire += each.seconds * np.array((price.channels, price.wire_bytes_per_s))
        _add_group(parts, group, gpu)
        index += len(group)
    parts[PART_INDEX[STRAGGLERS]] = parts[PART_INDEX[COMPUTE]] * excess / (1 + excess)
    parts[PART_INDEX[COMPUTE]] /= 1 + excess
    parts[PART_INDEX[HOST]] = lag_s
    seconds = float(parts.sum())
    if communication_s:
        wire /= communication_s
    kernel_s = kernel_seconds([each for each in ops if each.communication is None])
    parts.setflags(write=False)
    kernel_s.setflags(write=False)
    return PricedBlock(
        seconds=seconds,
        part_s=parts,
        host_s=host_s,
        kernel_s=kernel_s,
        channels=float(wire[0]),
        wire_bytes_per_s=float(wire[1]),
        evidence_s=evidence,
        estimated=frozenset(estimated),
    )


def kernel_seconds(kernels: Sequence[PricedOp]) -> np.ndarray:
    """Seconds by class of kernels, and how many of those memory limits, shape (2, classes)."""
    seconds = np.zeros((2, len(KERNEL_CLASSES)))
    for priced in kernels:
        which = KERNEL_CLASSES.index(_class_of(priced.op))
        seconds[0, which] += priced.seconds
        seconds[1, which] += priced.seconds * priced.memory_bound
    return seconds


def _class_of(op: DeviceOp) -> str:
    """The class whose slowdown beside communication a kernel shares."""
    if isinstance(op, Gemm | Convolution):
        return "gemm"
    if isinstance(op, GroupedGemm):
        return "grouped_gemm"
    if isinstance(op, Attention):
        return "attention"
    assert isinstance(op, Streaming)
    return "norm" if op.kind.startswith("norm") else "streaming"


def _kind_of(op: DeviceOp) -> str:
    """What an estimated price is reported as."""
    if isinstance(op, Collective):
        return f"{op.kind} over {op.communicator}"
    if isinstance(op, SendRecv):
        return f"send/recv over {op.communicator}"
    if isinstance(op, Gemm):
        return f"{op.dtype} GEMM"
    if isinstance(op, GroupedGemm):
        return f"{op.dtype} grouped GEMM"
    if isinstance(op, Attention):
        return f"attention {op.pass_}"
    if isinstance(op, Convolution):
        return f"{op.dtype} convolution"
    return op.kind


def _add_group(parts: np.ndarray, group: Sequence[PricedOp], gpu: Gpu) -> None:
    """Add one kernel, or one communication with the kernels it runs beside."""
    first, kernels = group[0], group[1:]
    if first.communication is None:
        parts[PART_INDEX[COMPUTE]] += first.seconds
        return
    assert isinstance(first.op, Collective | SendRecv)
    part = PART_INDEX[COMMUNICATION[first.op.communicator]]
    # Other communication in between holds the compute stream up, and gives the first time too.
    between_s = 0.0
    for each in kernels:
        if isinstance(each.op, Collective | SendRecv):
            parts[PART_INDEX[COMMUNICATION[each.op.communicator]]] += each.seconds
            between_s += each.seconds
    kernels = [each for each in kernels if each.communication is None]
    compute_s = sum(kernel.seconds for kernel in kernels)
    if not compute_s or not first.seconds:
        parts[part] += first.seconds
        parts[PART_INDEX[COMPUTE]] += compute_s
        return
    slow_compute, slow_communication = overlap_slowdowns(
        gpu,
        kernel_seconds(kernels)[None],
        np.array([first.communication.channels]),
        np.array([first.communication.wire_bytes_per_s]),
    )
    compute_factor = float(slow_compute[0, 0])
    communication_factor = float(slow_communication[0, 0])
    # Both run until one ends; the other finishes alone at full speed.
    together = min(compute_s * compute_factor, first.seconds * communication_factor)
    compute_left = compute_s - together / compute_factor
    communication_left = first.seconds - together / communication_factor
    parts[PART_INDEX[COMPUTE]] += compute_s
    parts[PART_INDEX[OVERLAP_SLOWDOWN]] += together + compute_left - compute_s
    parts[part] += max(0.0, communication_left - between_s)
