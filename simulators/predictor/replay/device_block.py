"""What the device takes for a block: its operations one after another, communication beside the
kernels that it overlaps, both slowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.interference.overlap import KERNEL_CLASSES, paired_slowdowns
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload import ir

from .priced import (
    COMPUTE,
    EVIDENCE,
    OVERLAP_SLOWDOWN,
    PART_INDEX,
    PARTS,
    STRAGGLERS,
    DeviceOp,
    PricedBlock,
    PricedOp,
)


def sum_block(
    ops: Sequence[PricedOp],
    groups: Sequence[OverlapGroup],
    slowdowns: Iterator[tuple[float, float]],
    excess: float,
) -> PricedBlock:
    """Run a block alone: kernels one after another, communication beside those it overlaps, both
    slowed by the next of ``slowdowns``; the host is none.
    """
    parts = [0.0] * len(PARTS)
    evidence = [0.0] * len(EVIDENCE)
    estimated = set()
    communication_s = channels = wire_bytes_per_s = nic_bytes = 0.0
    kernels = []
    for each in ops:
        evidence[each.grade] += each.seconds
        if each.evidence is Evidence.ESTIMATED:
            estimated.add(_kind_of(each.op))
        price = each.communication
        if price is None:
            kernels.append(each)
        else:
            communication_s += each.seconds
            channels += each.seconds * price.channels
            wire_bytes_per_s += each.seconds * price.wire_bytes_per_s
            nic_bytes += price.nic_bytes
    place = 0
    for group in groups:
        for each in ops[place : group.place]:
            parts[each.part] += each.seconds
        _add_group(parts, group, slowdowns)
        place = group.place + 1 + len(group.overlapped)
    for each in ops[place:]:
        parts[each.part] += each.seconds
    parts[PART_INDEX[STRAGGLERS]] = parts[PART_INDEX[COMPUTE]] * excess / (1 + excess)
    parts[PART_INDEX[COMPUTE]] /= 1 + excess
    part_s = np.array(parts)
    kernel_s = kernel_seconds(kernels)
    part_s.setflags(write=False)
    kernel_s.setflags(write=False)
    return PricedBlock(
        seconds=float(part_s.sum()),
        part_s=part_s,
        host_s=0.0,
        start_s=0.0,
        kernel_s=kernel_s,
        channels=channels / communication_s if communication_s else 0.0,
        wire_bytes_per_s=wire_bytes_per_s / communication_s if communication_s else 0.0,
        nic_bytes=nic_bytes,
        evidence_s=np.array(evidence),
        estimated=frozenset(estimated),
    )


@dataclass(frozen=True, eq=False, repr=False)
class OverlapGroup:
    """One communication, at a ``place`` of the block, with the operations that it runs beside
    (``overlapped``), of which ``kernels`` take ``compute_s``."""

    place: int
    first: PricedOp
    overlapped: Sequence[PricedOp]
    kernels: Sequence[PricedOp]
    compute_s: float

    @property
    def overlaps(self) -> bool:
        return bool(self.compute_s and self.first.seconds)


def overlap_groups(ops: Sequence[PricedOp]) -> Iterator[OverlapGroup]:
    end = 0
    for place, first in enumerate(ops):
        if place >= end and first.overlaps:
            overlapped = ops[place + 1 : place + 1 + first.overlaps]
            kernels = [each for each in overlapped if each.communication is None]
            yield OverlapGroup(
                place, first, overlapped, kernels, sum(each.seconds for each in kernels)
            )
            end = place + 1 + len(overlapped)


def group_slowdowns(
    groups: Sequence[OverlapGroup], gpu: Gpu, overlap: float
) -> list[tuple[float, float]]:
    """How kernels and communication of each group that has both slow each other, the more the
    larger ``overlap`` is."""
    both = [group for group in groups if group.overlaps]
    prices = [group.first.communication for group in both]
    if not both:
        return []
    compute, communication = paired_slowdowns(
        gpu,
        np.array([kernel_seconds(group.kernels) for group in both]),
        np.array([price.channels for price in prices if price]),
        np.array([price.wire_bytes_per_s for price in prices if price]),
        overlap,
    )
    return list(zip(compute.tolist(), communication.tolist(), strict=True))


def kernel_seconds(kernels: Sequence[PricedOp]) -> np.ndarray:
    """Seconds by class of kernels, and how many of those memory limits, shape (2, classes)."""
    seconds, limited = [0.0] * len(KERNEL_CLASSES), [0.0] * len(KERNEL_CLASSES)
    for priced in (each for each in kernels if not isinstance(each.op, ir.HostUpdate)):
        seconds[priced.kernel_class] += priced.seconds
        limited[priced.kernel_class] += priced.seconds * priced.memory_bound
    return np.array((seconds, limited))


def _kind_of(op: DeviceOp) -> str:
    """What an estimated price is reported as."""
    if isinstance(op, ir.Collective):
        return f"{op.kind} over {op.communicator}"
    if isinstance(op, ir.SendRecv):
        return f"send/recv over {op.communicator}"
    if isinstance(op, ir.Gemm):
        return f"{op.dtype} GEMM"
    if isinstance(op, ir.GroupedGemm):
        return f"{op.dtype} grouped GEMM"
    if isinstance(op, ir.Attention):
        return f"attention {op.pass_}"
    if isinstance(op, ir.Convolution):
        return f"{op.dtype} convolution"
    return "optimizer on the host" if isinstance(op, ir.HostUpdate) else op.kind


def _add_group(
    parts: list[float], group: OverlapGroup, slowdowns: Iterator[tuple[float, float]]
) -> None:
    """Add one communication with the kernels it runs beside."""
    first, compute_s = group.first, group.compute_s
    # Other communication in between holds the compute stream up, and gives the first time too.
    between_s = 0.0
    for each in group.overlapped:
        if each.communication is not None:
            parts[each.part] += each.seconds
            between_s += each.seconds
    if not group.overlaps:
        parts[first.part] += first.seconds
        parts[PART_INDEX[COMPUTE]] += compute_s
        return
    compute_factor, communication_factor = next(slowdowns)
    # Both run until one ends; the other finishes alone at full speed.
    together = min(compute_s * compute_factor, first.seconds * communication_factor)
    compute_left = compute_s - together / compute_factor
    communication_left = first.seconds - together / communication_factor
    parts[PART_INDEX[COMPUTE]] += compute_s
    parts[PART_INDEX[OVERLAP_SLOWDOWN]] += together + compute_left - compute_s
    parts[first.part] += max(0.0, communication_left - between_s)
