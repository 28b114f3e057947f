"""Blocks with seconds: every operation priced, summed by the part of the step it belongs to."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.collectives import (
    CollectivePrice,
    price_exchange,
    price_send_recv,
)
from trainscout.simulators.predictor.interference import KERNEL_CLASSES, paired_slowdowns
from trainscout.simulators.predictor.kernels import price_kernels
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.host import HostShare
from trainscout.simulators.predictor.replay.host_lag import SYNC_LAUNCHES, host_lag_s
from trainscout.simulators.predictor.replay.host_memory import update_s
from trainscout.simulators.predictor.replay.priced import (
    COMMUNICATIONS,
    COMPUTE,
    EVIDENCE,
    HOST,
    KERNELS,
    OVERLAP_SLOWDOWN,
    PART_INDEX,
    PARTS,
    STRAGGLERS,
    DeviceOp,
    PricedBlock,
    PricedOp,
)
from trainscout.simulators.predictor.replay.stragglers import slowest_excess
from trainscout.simulators.predictor.uncertainty.calibration import AS_IT_COMES, Factors
from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Attention,
    Block,
    Collective,
    Communicator,
    Convolution,
    Digest,
    Free,
    Gemm,
    GroupedGemm,
    HostSync,
    HostUpdate,
    Kernel,
    Op,
    SendRecv,
    Streaming,
    is_estimated,
)

if TYPE_CHECKING:
    from trainscout.simulators.predictor.kernels.measured import MeasuredTable
    from trainscout.simulators.predictor.replay.congestion import Congestion


@dataclass(eq=False)
class Known:
    """What was priced of one GPU, network and framework, by content: it is alike in every recipe.

    Communication and blocks also by the communicators that they use.
    """

    kernels: dict[Kernel, PricedOp] = field(default_factory=dict)
    communication: dict[tuple[Op, Communicator], PricedOp] = field(default_factory=dict)
    blocks: dict[tuple[Digest, tuple[Communicator, ...], float], PricedBlock] = field(
        default_factory=dict
    )


@functools.lru_cache(maxsize=64)
def _priced(*settings: object) -> Known:
    """The prices under these settings: everything that one may depend on but for the operation."""
    return Known()


_MOST_BLOCKS, _MOST_KERNELS = 50_000, 200_000


class Pricer:
    """Prices blocks for one GPU, cluster and set of communicators; each content once."""

    def __init__(
        self,
        gpu: Gpu,
        cluster: Cluster,
        framework: Framework,
        communicators: Mapping[str, Communicator],
        factors: Factors = AS_IT_COMES,
        measured: MeasuredTable | None = None,
        congestion: Congestion | None = None,
    ) -> None:
        self.gpu = gpu
        self.cluster = cluster
        self.communicators = communicators
        self.host = HostShare.of(gpu, cluster)
        self._measured = measured
        self.congestion = congestion
        self.factors = factors
        host_time = factors.host_time
        self.host_launch_s = host_launch_s(framework) * host_time
        # Where graphs end before the experts, the host launches what follows them.
        self.eager_launch_s = (
            framework.host_launch_s * host_time
            if framework.cuda_graphs and framework.graphs_leave_experts
            else 0.0
        )
        self.host_forward_s = (
            0.0 if framework.cuda_graphs else framework.host_forward_s * host_time
        )
        self._host_tp_s = _host_tp_s(framework, communicators) * host_time
        self.launch_blocking = framework.launch_blocking and not framework.cuda_graphs
        excess = slowest_excess(cluster.num_gpus, gpu.architecture.speed_spread)
        self.excess = excess * factors.straggler_time
        # Prices of the blocks of one job, which it holds on to.
        self._found: dict[int, tuple[Block, PricedBlock]] = {}
        self._known = _priced(
            gpu,
            cluster,
            factors,
            self.host_launch_s,
            self.eager_launch_s,
            self.host_forward_s,
            self.launch_blocking,
            measured,
            congestion and congestion.key,
        )

    def block(self, block: Block) -> PricedBlock:
        """The summed price of a block, computed once per content and process."""
        found = self._found.get(id(block))
        if found is None:
            self.prepare((block,))
            found = self._found[id(block)]
        return found[1]

    def prepare(self, blocks: Iterable[Block]) -> None:
        """Price those blocks at once that have no price yet."""
        price_together((self, block) for block in blocks)

    def known(self, block: Block) -> bool:
        """Whether the block has a price, which it is given if its content has one."""
        if id(block) in self._found:
            return True
        priced = self._known.blocks.get(self._key(block))
        if priced is None:
            return False
        self._found[id(block)] = block, priced
        return True

    def keep(self, block: Block, priced: PricedBlock) -> None:
        known = self._known.blocks
        if len(known) >= _MOST_BLOCKS:
            known.clear()
        known[self._key(block)] = priced
        self._found[id(block)] = block, priced

    def _key(self, block: Block) -> tuple[Digest, tuple[Communicator, ...], float]:
        groups = tuple(self.communicators[name] for name in block.communicators)
        return block.digest, groups, self._host_tp_s

    def key(self, names: Iterable[str]) -> tuple[Known, tuple[Communicator, ...], float]:
        """All that enters prices of blocks that use communicators of such names, but for the
        blocks."""
        groups = tuple(self.communicators[name] for name in names)
        return self._known, groups, self._host_tp_s

    def host_seconds(
        self, block: Block, operations: list[PricedOp]
    ) -> tuple[list[PricedOp], float, float]:
        """A block's operations as they run under this host, what it needs to launch them, and how
        long the device waits for it inside the block."""
        host_s = sum(self.launch_seconds(block, operations))
        if self.launch_blocking:
            # Nothing runs while the host launches, and nothing beside anything else.
            return [_by_itself(each) for each in operations], host_s, host_s
        if not any(isinstance(op, HostSync) for op in block.ops):
            return operations, host_s, 0.0
        work = _host_work(block, operations, graphed=bool(self.eager_launch_s))
        return operations, host_s, host_lag_s(work, self.eager_launch_s or self.host_launch_s)

    def launch_seconds(self, block: Block, operations: Sequence[PricedOp]) -> list[float]:
        """Seconds of the host for each device operation of a block.

        What forward passes issue is taken to come first, as it does where layers are recomputed
        whole, the one case in which a block has many operations of both kinds.
        """
        launch_s, forward_s, forward_ops = (
            self.host_launch_s,
            self.host_forward_s,
            block.forward_ops,
        )
        seconds = [
            priced.launches * launch_s + (forward_s if place < forward_ops else 0.0)
            for place, priced in enumerate(operations)
        ]
        if self._host_tp_s:
            for place, priced in enumerate(operations):
                if isinstance(priced.op, Collective) and priced.op.communicator == "tp":
                    seconds[place] += self._host_tp_s
        return seconds

    def operations(self, block: Block) -> list[PricedOp]:
        """Every device operation of a block with its own time, in launch order."""
        known = self._known.kernels
        priced = []
        for op in block.ops:
            if isinstance(op, KERNELS):
                found = known.get(op)
                if found is None:
                    self.price_ahead([block])
                    found = known[op]
                priced.append(found)
            elif isinstance(op, COMMUNICATIONS):
                priced.append(self._communication(op))
            elif isinstance(op, HostUpdate):
                priced.append(PricedOp(op, update_s(op, self.host), Evidence.ESTIMATED))
        return priced

    def price_ahead(self, blocks: Iterable[Block]) -> None:
        """Price the kernels of many blocks at once, which costs little more than those of one."""
        known = self._known.kernels
        if len(known) >= _MOST_KERNELS:
            known.clear()
        new = dict.fromkeys(
            op
            for block in blocks
            for op in block.ops
            if isinstance(op, KERNELS) and op not in known
        )
        if not new:
            return
        prices = price_kernels(self.gpu, list(new), self._measured)
        times = (self.factors.compute_time, self.factors.memory_time)
        longer = np.array([times[isinstance(op, Streaming)] for op in new])
        seconds = prices.seconds * (1 + self.excess) * longer
        columns = (seconds.tolist(), prices.evidence.tolist(), prices.memory_bound.tolist())
        for op, each_s, evidence, memory_bound in zip(new, *columns, strict=True):
            grade = Evidence.ESTIMATED if is_estimated(op) else EVIDENCE[evidence]
            known[op] = PricedOp(op, each_s, grade, memory_bound)

    def _communication(self, op: Collective | SendRecv) -> PricedOp:
        known, key = self._known.communication, (op, self.communicators[op.communicator])
        priced = known.get(key)
        if priced is None:
            price = self._communication_price(op)
            priced = PricedOp(op, price.seconds, price.evidence, communication=price)
            known[key] = priced
        return priced

    def _communication_price(self, op: Collective | SendRecv) -> CollectivePrice:
        group = self.communicators[op.communicator]
        if self.congestion is not None:
            price = self.congestion.price(op, group.nodes > 1, group, self.cluster)
        elif isinstance(op, SendRecv):
            members = group.pair if op.paired else group
            price = price_send_recv(op.bytes, group.nodes > 1, members, self.gpu, self.cluster)
        else:
            price = price_exchange(op, group, self.gpu, self.cluster)
        return calibrated_price(price, group.nodes > 1, self.factors)


def price_together(blocks: Iterable[tuple[Pricer, Block]]) -> None:
    """Price those blocks that have no price yet, each for its pricer: all of one GPU and
    calibration. Much is worked out for all at once."""
    # Equal blocks are priced once.
    missing = {
        (*pricer.key(block.communicators), block.digest): (pricer, block)
        for pricer, block in blocks
        if not pricer.known(block)
    }
    if not missing:
        return
    by_settings: dict[Known, tuple[Pricer, list[Block]]] = {}
    for (known, *_), (pricer, block) in missing.items():
        by_settings.setdefault(known, (pricer, []))[1].append(block)
    for pricer, own in by_settings.values():
        pricer.price_ahead(own)
    new = list(missing.values())
    run = [pricer.host_seconds(block, pricer.operations(block)) for pricer, block in new]
    groups = [list(groups_beside(operations)) for operations, *_ in run]
    every, (first, _) = [group for beside in groups for group in beside], new[0]
    slowdowns = iter(slowdowns_beside(every, first.gpu, first.factors.overlap_time))
    for (pricer, block), (operations, host_s, lag_s), beside in zip(new, run, groups, strict=True):
        priced = _sum_block(operations, beside, slowdowns, host_s, pricer.excess, lag_s)
        pricer.keep(block, priced)


def calibrated_price(
    price: CollectivePrice, leaves_node: bool, factors: Factors
) -> CollectivePrice:
    """Communication as much longer as such communication was found to take."""
    factor = factors.network_time if leaves_node else factors.node_time
    if factor == 1:
        return price
    return replace(
        price,
        seconds=price.seconds * factor,
        wire_bytes_per_s=price.wire_bytes_per_s / factor,
    )


def host_launch_s(framework: Framework) -> float:
    """Seconds of the host per kernel; a replayed graph costs it one call, whatever it holds."""
    return 0.0 if framework.cuda_graphs else framework.host_launch_s


def _host_tp_s(framework: Framework, communicators: Mapping[str, Communicator]) -> float:
    """What a tensor-parallel collective takes the host besides its launches, in seconds."""
    pipeline, group = communicators.get("pp"), communicators.get("tp")
    if group is None or pipeline is None or pipeline.nodes == 1 or framework.cuda_graphs:
        return 0.0
    near, far = framework.host_tp_rank_s, framework.host_tp_far_rank_s
    return near * group.ranks_per_node + far * (group.size - group.ranks_per_node)


def _by_itself(priced: PricedOp) -> PricedOp:
    if not getattr(priced.op, "overlaps", 0):
        return priced
    assert isinstance(priced.op, Collective | SendRecv)
    return replace(priced, op=replace(priced.op, overlaps=0))


def _host_work(
    block: Block, priced: Sequence[PricedOp], *, graphed: bool
) -> list[tuple[int, float | None]]:
    """Launches and seconds in launch order, None where the host waits; see ``host_lag_s``.

    ``graphed``: what comes before the host waits is one launch, of a graph.
    """
    device = iter(priced)
    work: list[tuple[int, float | None]] = []
    waited = False
    for op in block.ops:
        if isinstance(op, HostSync):
            waited = True
            work.append((SYNC_LAUNCHES, None))
        elif not isinstance(op, Alloc | Free):
            each = next(device)
            # What runs beside others does not keep them waiting.
            alone = not getattr(op, "overlaps", 0)
            launches = int(not work) if graphed and not waited else each.launches
            work.append((launches, each.seconds if alone else 0.0))
    return work


def _sum_block(
    ops: Sequence[PricedOp],
    groups: Sequence[BesideGroup],
    slowdowns: Iterator[tuple[float, float]],
    host_s: float,
    excess: float,
    lag_s: float,
) -> PricedBlock:
    """Run a block alone: kernels one after another, communication beside those it overlaps, both
    slowed by the next of ``slowdowns``.

    ``lag_s`` of it the device waits for the host.
    """
    parts = [0.0] * len(PARTS)
    evidence = [0.0] * len(EVIDENCE)
    estimated = set()
    communication_s = channels = wire_bytes_per_s = 0.0
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
    place = 0
    for group in groups:
        for each in ops[place : group.place]:
            parts[each.part] += each.seconds
        _add_group(parts, group, slowdowns)
        place = group.place + 1 + len(group.beside)
    for each in ops[place:]:
        parts[each.part] += each.seconds
    parts[PART_INDEX[STRAGGLERS]] = parts[PART_INDEX[COMPUTE]] * excess / (1 + excess)
    parts[PART_INDEX[COMPUTE]] /= 1 + excess
    parts[PART_INDEX[HOST]] = lag_s
    part_s = np.array(parts)
    kernel_s = kernel_seconds(kernels)
    part_s.setflags(write=False)
    kernel_s.setflags(write=False)
    return PricedBlock(
        seconds=float(part_s.sum()),
        part_s=part_s,
        host_s=host_s,
        kernel_s=kernel_s,
        channels=channels / communication_s if communication_s else 0.0,
        wire_bytes_per_s=wire_bytes_per_s / communication_s if communication_s else 0.0,
        evidence_s=np.array(evidence),
        estimated=frozenset(estimated),
    )


@dataclass(frozen=True)
class BesideGroup:
    """One communication, at a ``place`` of the block, with the operations it runs ``beside``, of
    which ``kernels`` take ``compute_s``."""

    place: int
    first: PricedOp
    beside: Sequence[PricedOp]
    kernels: Sequence[PricedOp]
    compute_s: float

    @property
    def overlaps(self) -> bool:
        return bool(self.compute_s and self.first.seconds)


def groups_beside(ops: Sequence[PricedOp]) -> Iterator[BesideGroup]:
    end = 0
    for place, first in enumerate(ops):
        if place >= end and first.overlaps:
            beside = ops[place + 1 : place + 1 + first.overlaps]
            kernels = [each for each in beside if each.communication is None]
            yield BesideGroup(place, first, beside, kernels, sum(each.seconds for each in kernels))
            end = place + 1 + len(beside)


def slowdowns_beside(
    groups: Sequence[BesideGroup], gpu: Gpu, overlap: float
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
    for priced in (each for each in kernels if not isinstance(each.op, HostUpdate)):
        seconds[priced.kernel_class] += priced.seconds
        limited[priced.kernel_class] += priced.seconds * priced.memory_bound
    return np.array((seconds, limited))


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
    return "optimizer on the host" if isinstance(op, HostUpdate) else op.kind


def _add_group(
    parts: list[float], group: BesideGroup, slowdowns: Iterator[tuple[float, float]]
) -> None:
    """Add one communication with the kernels it runs beside."""
    first, compute_s = group.first, group.compute_s
    # Other communication in between holds the compute stream up, and gives the first time too.
    between_s = 0.0
    for each in group.beside:
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
