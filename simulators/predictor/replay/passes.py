"""Seconds of whole passes: one chunk, one micro-batch, one kind; and their segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.interference.overlap import KERNEL_CLASSES
from trainscout.simulators.predictor.workload.ir import Block
from trainscout.simulators.predictor.workload.parameters import LocalParameters
from trainscout.simulators.predictor.workload.program import Chunk
from trainscout.simulators.predictor.workload.schedules.passes import (
    BACKWARD,
    FORWARD,
    WEIGHT_GRADIENT,
    backward_block,
    pass_blocks,
)

from .host import copy_s
from .priced import HOST, PART_INDEX, PARTS, PricedBlock
from .prices import Pricer


@dataclass(frozen=True, eq=False, repr=False)
class PassPrice:
    """Time of consecutive blocks on one rank.

    ``part_s`` sums to ``seconds``. When the host cannot launch as fast as the device runs,
    the device waits for it: the excess is the ``host`` part. ``kernel_s`` and ``nic_bytes`` as in
    ``PricedBlock``.
    """

    seconds: float
    part_s: np.ndarray
    compute_share: float
    kernel_s: np.ndarray
    nic_bytes: float


@dataclass(frozen=True)
class Segment:
    """Part of a pass between two data-parallel communications; equal ones of a pass are one.

    ``blocks`` in execution order; ``parameters`` are those they hold, ``kept`` as of ``Run``.
    """

    price: PassPrice
    parameters: LocalParameters
    blocks: tuple[Block, ...]
    kept: bool


def sum_blocks(
    blocks: Sequence[tuple[PricedBlock, int]],
    host_excess_s: float | None = None,
    *,
    synced: bool = False,
) -> PassPrice:
    """The price of blocks, each repeated so many times, run one after another.

    A block cannot end before the host has launched it, so the device waits as long as the host
    is ever behind it; what runs long enough later does not win that back. ``host_excess_s``
    overrides how long the device waits for the host. ``synced``: nothing is left to run when the
    host begins to launch them.
    """
    parts = np.zeros(len(PARTS))
    kernel_s = np.zeros((2, len(KERNEL_CLASSES)))
    device_s = host_s = behind_s = nic_bytes = 0.0
    for block, count in blocks:
        if synced:
            # The host gains or loses alike in each of them.
            ahead_s = min(0.0, (count - 1) * (block.seconds - block.host_s))
            behind_s = max(behind_s, host_s - device_s + block.start_s - ahead_s)
        parts += block.part_s * count
        device_s += block.seconds * count
        host_s += block.host_s * count
        kernel_s += block.kernel_s * count
        nic_bytes += block.nic_bytes * count
        behind_s = max(behind_s, host_s - device_s)
    if host_excess_s is None:
        host_excess_s = behind_s
    parts[PART_INDEX[HOST]] += host_excess_s
    return PassPrice(
        seconds=device_s + host_excess_s,
        part_s=parts,
        compute_share=min(1.0, float(kernel_s[0].sum()) / device_s) if device_s else 0.0,
        kernel_s=kernel_s,
        nic_bytes=nic_bytes,
    )


class PassPricer:
    """Prices chunks of one job; equal chunks once."""

    def __init__(self, pricer: Pricer, bucket_parameters: int | None) -> None:
        self.pricer = pricer
        # None: every layer is a bucket of its own (FSDP's unit).
        self.bucket_parameters = bucket_parameters
        self._wholes: dict[tuple[object, int, bool], PassPrice] = {}
        self._segments: dict[tuple[object, int, bool], tuple[Segment, ...]] = {}

    def whole(self, chunk: Chunk, direction: int, synced: bool = False) -> PassPrice:
        """One pass over a chunk, undivided; ``synced`` as in ``sum_blocks``."""
        key = (chunk.digest, direction, synced)
        if key not in self._wholes:
            self._wholes[key] = self._price(chunk, direction, synced)
        return self._wholes[key]

    def segments(self, chunk: Chunk, direction: int, synced: bool = False) -> tuple[Segment, ...]:
        """The pass cut where a gradient bucket is complete, in execution order.

        Buckets fill in the order gradients appear, so the forward pass meets them reversed.
        """
        key = (chunk.digest, direction, synced)
        if key not in self._segments:
            self._segments[key] = self._cut(chunk, direction, synced)
        return self._segments[key]

    def _price(self, chunk: Chunk, direction: int, synced: bool) -> PassPrice:
        blocks = self._blocks(chunk, direction)
        price, left_s = sum_blocks(blocks, synced=synced), self.copies_left_s(chunk, direction)
        if left_s == 0:
            return price
        behind_s = float(price.part_s[PART_INDEX[HOST]])
        behind_s -= sum(float(block.part_s[PART_INDEX[HOST]]) * count for block, count in blocks)
        return sum_blocks(blocks, behind_s + left_s)

    def copies_left_s(self, chunk: Chunk, direction: int) -> float:
        """How long a pass waits for copies to or from the host.

        Transformer Engine spreads them evenly over the pass and waits for what is left; DeepSpeed
        copies gradients in the stream that reduces them.
        """
        copied = chunk.copied_bytes if direction != WEIGHT_GRADIENT else 0
        copied += chunk.gradient_bytes if direction == BACKWARD else 0
        if not copied:
            return 0.0
        alone_s = sum_blocks(self._blocks(chunk, direction)).seconds
        return max(0.0, copy_s(copied, self.pricer.gpu) - alone_s)

    def _blocks(self, chunk: Chunk, direction: int) -> list[tuple[PricedBlock, int]]:
        blocks = pass_blocks(chunk, direction)
        return [(self.pricer.block(block), count) for block, count in blocks]

    def _cut(self, chunk: Chunk, direction: int, synced: bool) -> tuple[Segment, ...]:
        runs = [run for run in chunk.runs if direction == FORWARD or not run.reference]
        pieces = [number for number, run in enumerate(runs) for _ in range(run.count)]
        totals = [run.parameters.total for run in runs]
        groups: list[list[int]] = [[]]
        filled = 0
        for piece in reversed(pieces):
            groups[-1].append(piece)
            filled += totals[piece]
            if self.bucket_parameters is None or filled >= self.bucket_parameters:
                groups.append([])
                filled = 0
        # A chunk that holds nothing is one segment without blocks.
        cut = [tuple(group) for group in groups if group] or [()]
        if direction == FORWARD:
            cut = [group[::-1] for group in cut[::-1]]
        blocks = [
            run.forward if direction == FORWARD else backward_block(run.backward, direction)
            for run in runs
        ]
        priced = [self.pricer.block(block) for block in blocks]
        # How far the host falls behind is a matter of the whole pass: beyond the waits inside
        # its blocks the segments share it by launches, so that they add up to the pass.
        inside = [float(block.part_s[PART_INDEX[HOST]]) for block in priced]
        waits_s = sum(inside[piece] for group in cut for piece in group)
        excess_s = float(self.whole(chunk, direction, synced).part_s[PART_INDEX[HOST]])
        excess_s -= waits_s
        host_s = sum(priced[piece].host_s for group in cut for piece in group)
        made: dict[tuple[int, ...], Segment] = {}
        for group in dict.fromkeys(cut):
            own = sum(priced[piece].host_s for piece in group) / host_s if host_s else 0.0
            price = sum_blocks([(priced[piece], 1) for piece in group], excess_s * own)
            parameters = sum((runs[piece].parameters for piece in group), LocalParameters())
            own_blocks = tuple(blocks[piece] for piece in group)
            kept = any(runs[piece].kept for piece in group)
            made[group] = Segment(price, parameters, own_blocks, kept)
        return tuple(made[group] for group in cut)
