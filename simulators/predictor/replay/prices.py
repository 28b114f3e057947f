"""Blocks with seconds: every operation priced, summed by the part of the step it belongs to."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.collectives.price import (
    CollectivePrice,
    price_exchange,
    price_send_recv,
)
from trainscout.simulators.predictor.kernels.prices import price_kernels
from trainscout.simulators.predictor.network.choice import CongestedNetwork
from trainscout.simulators.predictor.question.cluster import Cluster, HostShare
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.uncertainty.factors import AS_IT_COMES, Factors
from trainscout.simulators.predictor.workload import ir

from .device_block import group_slowdowns, overlap_groups, sum_block
from .host import SYNC_LAUNCHES, host_call_s, host_lag_s, host_pace, update_s
from .priced import (
    COMMUNICATIONS,
    EVIDENCE,
    HOST,
    KERNELS,
    PART_INDEX,
    PricedBlock,
    PricedOp,
    calls_of,
)

if TYPE_CHECKING:
    from trainscout.simulators.predictor.kernels.measured import MeasuredTable

    from .congestion import Congestion


Key = tuple[ir.Digest, tuple[ir.Communicator, ...]]


@dataclass(eq=False)
class Known:
    """What was priced of one GPU and network, by content: it is alike in every recipe.

    Communication and blocks also by the communicators that they use. ``devices`` are blocks as the
    device runs them, by whether nothing runs beside anything, with their operations; ``blocks``
    have what the host takes, too, which differs between frameworks and with CUDA graphs: they come
    first by that.
    """

    kernels: dict[ir.Kernel, PricedOp] = field(default_factory=dict)
    communication: dict[tuple[ir.Op, ir.Communicator], PricedOp] = field(default_factory=dict)
    devices: dict[tuple[Key, bool], tuple[list[PricedOp], PricedBlock]] = field(
        default_factory=dict
    )
    blocks: dict[tuple[float, ...], dict[Key, PricedBlock]] = field(
        default_factory=lambda: defaultdict(dict)
    )


@functools.lru_cache(maxsize=64)
def _priced(*settings: object) -> Known:
    """The prices under these settings: everything that one may depend on but for the operation and
    the host."""
    return Known()


_MOST_BLOCKS, _MOST_KERNELS = 100_000, 200_000


class Pricer:
    """Prices blocks for one GPU, cluster and set of communicators; each content once."""

    def __init__(
        self,
        gpu: Gpu,
        cluster: Cluster,
        framework: Framework,
        communicators: Mapping[str, ir.Communicator],
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
        host_time = factors.host_time * host_pace(framework, cluster.cpu)
        graphs = framework.cuda_graphs
        self.host_launch_s = host_launch_s(framework) * host_time
        # Where graphs end before the experts, the host launches what follows them.
        leaves = graphs and framework.graphs_leave_experts
        self.eager_launch_s = framework.host_launch_s * host_time if leaves else 0.0
        self.host_forward_s = 0.0 if graphs else framework.host_forward_s * host_time
        self._host_tp_s = _host_tp_s(framework, communicators) * host_time
        self._host_call_s = host_call_s(framework, cluster.cpu) * factors.host_time
        ranks = communicators["tp"].size if "tp" in communicators else 1
        self._host_product_s = framework.host_product_s(ranks) * host_time
        self._host_unit_s = 0.0 if graphs else framework.host_unit_s * host_time
        self._host_list_s = 0.0 if graphs else framework.host_list_s * host_time
        self._hooks_modules = not framework.torch_wrappers
        self.launch_blocking = framework.launch_blocking and not graphs
        excess = slowest_excess(cluster.num_gpus, gpu.architecture.speed_spread)
        self.excess = excess * factors.straggler_time
        # Prices of the blocks of one job, which it holds on to.
        self._found: dict[int, tuple[ir.Block, PricedBlock]] = {}
        self._launches = (
            self.host_launch_s,
            self.eager_launch_s,
            self.host_forward_s,
            self._host_tp_s,
            self._host_call_s,
            self._host_product_s,
            self._host_unit_s,
            self._host_list_s,
            float(self._hooks_modules),
            float(self.launch_blocking),
        )
        self._known = _priced(gpu, cluster, factors, measured, congestion and congestion.key)
        self._blocks = self._known.blocks[self._launches]

    @classmethod
    def of(
        cls,
        job: Job,
        communicators: Mapping[str, ir.Communicator],
        factors: Factors = AS_IT_COMES,
        measured: MeasuredTable | None = None,
        network: CongestedNetwork | Congestion | None = None,
    ) -> Pricer:
        """Of a job's own machine and software, with what else a declared network adds."""
        if isinstance(network, CongestedNetwork):
            # Few declare one, and what plays it takes a while to load.
            from .congestion import Congestion

            network = Congestion(job, network)
        gpu, cluster = job.gpu, job.network
        return cls(gpu, cluster, job.framework, communicators, factors, measured, network)

    def block(self, block: ir.Block) -> PricedBlock:
        """The summed price of a block, computed once per content and process."""
        found = self._found.get(id(block))
        if found is None:
            self.prepare((block,))
            found = self._found[id(block)]
        return found[1]

    def prepare(self, blocks: Iterable[ir.Block]) -> None:
        """Price those blocks at once that have no price yet."""
        price_together((self, block) for block in blocks)

    def known(self, block: ir.Block) -> bool:
        """Whether the block has a price, which it is given if its content has one."""
        if id(block) in self._found:
            return True
        priced = self._blocks.get(self._key(block))
        if priced is None:
            return False
        self._found[id(block)] = block, priced
        return True

    def keep(self, block: ir.Block, operations: list[PricedOp], on_device: PricedBlock) -> None:
        """The price of a block: what the device takes, and what the host does."""
        launching_s, lag_s, start_s = self.launch_seconds(block, operations), 0.0, 0.0
        host_s = sum(launching_s)
        if self.launch_blocking:
            # Nothing runs while the host launches.
            lag_s = host_s
        elif host_s:
            # What runs beside others does not keep them waiting.
            alone_s = [0.0 if op.overlaps else op.seconds for op in operations]
            work = list(zip(launching_s, alone_s, map(bool, block.waits), strict=True))
            if any(block.waits):
                lag_s = host_lag_s(work)
            start_s = max(0.0, host_lag_s(work, starts=True) - lag_s)
        seconds, part_s = on_device.seconds, on_device.part_s
        if lag_s:
            part_s = part_s.copy()
            part_s[PART_INDEX[HOST]] = lag_s
            part_s.setflags(write=False)
            seconds = float(part_s.sum())
        if len(self._blocks) >= _MOST_BLOCKS:
            self._blocks.clear()
        # By hand, which takes a quarter of the time of ``replace``.
        priced = PricedBlock(
            seconds,
            part_s,
            host_s,
            start_s,
            on_device.kernel_s,
            on_device.channels,
            on_device.wire_bytes_per_s,
            on_device.nic_bytes,
            on_device.evidence_s,
            on_device.estimated,
        )
        self._blocks[self._key(block)] = priced
        self._found[id(block)] = block, priced

    def _key(self, block: ir.Block) -> Key:
        return block.digest, tuple(self.communicators[name] for name in block.communicators)

    def key(self, names: Iterable[str]) -> tuple[Known, tuple[ir.Communicator, ...], object]:
        """All that enters prices of blocks that use communicators of such names, but for the
        blocks."""
        groups = tuple(self.communicators[name] for name in names)
        return self._known, groups, self._launches

    def device(self, block: ir.Block) -> tuple[Known, tuple[Key, bool]]:
        """Where it is kept what the device takes for a block."""
        return self._known, (self._key(block), self.launch_blocking)

    def nic_share(self, nic_bytes: float, seconds: float) -> float:
        """Share of some seconds that a node's NICs take for what each of its ranks sends."""
        if not nic_bytes or not seconds:
            return 0.0
        cluster = self.cluster
        rate = cluster.nics_per_node * cluster.nic_gbps * 1e9 / 8 / cluster.gpus_per_node
        return min(1.0, nic_bytes / rate / seconds)

    def launch_seconds(self, block: ir.Block, operations: Sequence[PricedOp]) -> list[float]:
        """Seconds of the host for each device operation of a block, from the end of a wait before
        it on.

        What forward passes issue is taken to come first, as it does where layers are recomputed
        whole, the one case in which a block has many operations of both kinds.
        """
        launch_s, forward_ops, waits = self.host_launch_s, block.forward_ops, block.waits
        seconds = [
            priced.launches * launch_s + (self.host_forward_s if place < forward_ops else 0.0)
            for place, priced in enumerate(operations)
        ]
        if any(waits):
            if self.eager_launch_s:
                # What comes before the host waits is one launch, of a graph.
                launch_s = self.eager_launch_s
                first = next(place for place, count in enumerate(waits) if count)
                seconds[first:] = [each.launches * launch_s for each in operations[first:]]
                seconds[0] = max(seconds[0], launch_s)
            for place, count in enumerate(waits):
                seconds[place] += count * SYNC_LAUNCHES * launch_s
        if self._host_call_s:
            for place, priced in enumerate(operations):
                seconds[place] += calls_of(priced) * self._host_call_s
        if self._host_tp_s or self._host_product_s:
            for place, priced in enumerate(operations):
                if isinstance(priced.op, ir.Gemm):
                    seconds[place] += self._host_product_s
                elif isinstance(priced.op, ir.Collective) and priced.op.communicator == "tp":
                    seconds[place] += self._host_tp_s
        if block.units and seconds:
            passes = 1 + (self._hooks_modules and 0 < forward_ops < len(operations))
            seconds[0] += passes * block.units * self._host_unit_s
        if block.listed:
            seconds[0] += block.listed * self._host_list_s
        return seconds

    def operations(self, block: ir.Block) -> list[PricedOp]:
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
            elif isinstance(op, ir.HostUpdate):
                priced.append(PricedOp(op, update_s(op, self.host), Evidence.ESTIMATED))
        return priced

    def price_ahead(self, blocks: Iterable[ir.Block]) -> None:
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
        longer = np.array([times[isinstance(op, ir.Streaming)] for op in new])
        seconds = prices.seconds * (1 + self.excess) * longer
        columns = (seconds.tolist(), prices.evidence.tolist(), prices.memory_bound.tolist())
        for op, each_s, evidence, memory_bound in zip(new, *columns, strict=True):
            guessed = isinstance(op, ir.Gemm | ir.Attention) and op.estimated
            grade = Evidence.ESTIMATED if guessed else EVIDENCE[evidence]
            known[op] = PricedOp(op, each_s, grade, memory_bound)

    def _communication(self, op: ir.Collective | ir.SendRecv) -> PricedOp:
        known, key = self._known.communication, (op, self.communicators[op.communicator])
        priced = known.get(key)
        if priced is None:
            price = self._communication_price(op)
            priced = PricedOp(op, price.seconds, price.evidence, communication=price)
            known[key] = priced
        return priced

    def _communication_price(self, op: ir.Collective | ir.SendRecv) -> CollectivePrice:
        group = self.communicators[op.communicator]
        if self.congestion is not None:
            price = self.congestion.price(op, group.nodes > 1, group)
        elif isinstance(op, ir.SendRecv):
            members = group.pair if op.paired else group
            price = price_send_recv(op.bytes, group.nodes > 1, members, self.gpu, self.cluster)
        else:
            price = price_exchange(op, group, self.gpu, self.cluster)
        return calibrated_price(price, group.nodes > 1, self.factors)


def price_together(blocks: Iterable[tuple[Pricer, ir.Block]]) -> None:
    """Price those blocks that have no price yet, each for its pricer: all of one GPU and
    calibration. What the device takes is worked out for all at once, and once per content."""
    missing = [(pricer, block) for pricer, block in blocks if not pricer.known(block)]
    places = [pricer.device(block) for pricer, block in missing]
    for known in dict.fromkeys(known for known, _ in places):
        if len(known.devices) >= _MOST_BLOCKS:
            known.devices.clear()
    new = {
        place: pair
        for place, pair in zip(places, missing, strict=True)
        if place[1] not in place[0].devices
    }
    if new:
        _price_on_device(new)
    for (pricer, block), (known, key) in zip(missing, places, strict=True):
        # Of equal blocks the first is priced.
        if not pricer.known(block):
            pricer.keep(block, *known.devices[key])


def _price_on_device(
    blocks: Mapping[tuple[Known, tuple[Key, bool]], tuple[Pricer, ir.Block]],
) -> None:
    by_settings: dict[Known, tuple[Pricer, list[ir.Block]]] = {}
    for (known, _), (pricer, block) in blocks.items():
        by_settings.setdefault(known, (pricer, []))[1].append(block)
    for pricer, own in by_settings.values():
        pricer.price_ahead(own)
    run = [pricer.operations(block) for pricer, block in blocks.values()]
    # Where launches block, nothing runs beside anything else.
    run = [
        [_by_itself(each) for each in operations] if blocking else operations
        for operations, (_, (_, blocking)) in zip(run, blocks, strict=True)
    ]
    groups = [list(overlap_groups(operations)) for operations in run]
    every = [group for grouped in groups for group in grouped]
    pricer = next(iter(blocks.values()))[0]
    slowdowns = iter(group_slowdowns(every, pricer.gpu, pricer.factors.overlap_time))
    for (known, key), operations, grouped in zip(blocks, run, groups, strict=True):
        excess = blocks[known, key][0].excess
        known.devices[key] = operations, sum_block(operations, grouped, slowdowns, excess)


def calibrated_price(
    price: CollectivePrice, leaves_node: bool, factors: Factors
) -> CollectivePrice:
    """Communication as much longer as such communication was found to take."""
    factor = factors.network_time if leaves_node else factors.node_time
    if factor == 1:
        return price
    return replace(
        price, seconds=price.seconds * factor, wire_bytes_per_s=price.wire_bytes_per_s / factor
    )


def host_launch_s(framework: Framework) -> float:
    """Seconds of the host per kernel; a replayed graph costs it one call, whatever it holds."""
    return 0.0 if framework.cuda_graphs else framework.host_launch_s


def _host_tp_s(framework: Framework, communicators: Mapping[str, ir.Communicator]) -> float:
    """What a tensor-parallel collective takes the host besides its launches, in seconds."""
    pipeline, group = communicators.get("pp"), communicators.get("tp")
    if group is None or pipeline is None or pipeline.nodes == 1 or framework.cuda_graphs:
        return 0.0
    near, far = framework.host_tp_rank_s, framework.host_tp_far_rank_s
    return near * group.ranks_per_node + far * (group.size - group.ranks_per_node)


def _by_itself(priced: PricedOp) -> PricedOp:
    if not getattr(priced.op, "overlaps", 0):
        return priced
    assert isinstance(priced.op, ir.Collective | ir.SendRecv)
    return replace(priced, op=replace(priced.op, overlaps=0))


@functools.cache
def slowest_excess(ranks: int, spread: float) -> float:
    """Extra time of the slowest of ``ranks`` GPUs, as a share of the average one's time.

    GPUs of one kind differ in speed: silicon, cooling and power delivery set what clock each holds
    under load. Every step all ranks meet (gradient norm, data-parallel reduction), and within it
    tensor-parallel ranks meet in every layer and stages at every message, so the job runs at the
    speed of the slowest rank. With speeds spread normally around the figure that kernels are
    priced at, the slowest of ``n`` is expected ``spread x E[max of n standard normals]`` behind.

    ``spread``: the standard deviation of speeds (``Architecture.speed_spread``). The expected
    maximum by Blom's approximation, ``quantile((n - 3/8) / (n + 1/4))``: exact to
    2 % of itself for more than three. One GPU is as fast as it was priced.
    """
    if ranks <= 1:
        return 0.0
    return spread * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
