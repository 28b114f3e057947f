"""NCCL's own cost model: latency and bandwidth of each (algorithm, protocol), and its choice.

``time_us = latency + size / (1000 * bandwidth * correction)`` with ``size`` in bytes as
nccl-tests prints it (the larger of one rank's total send and receive), latency in microseconds
and bandwidth in GB/s. NCCL picks the smallest. The result is what NCCL *believes*;
``execution.py`` says what then happens.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from . import tuning_tables as tables
from .graph import Graph, Graphs, Wiring
from .transport import Transport, transport

# Two of them are an all-reduce.
_HALVES = ("all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Option:
    """One way NCCL can run a collective and what it believes it costs.

    ``plateau`` multiplies the latency of a ring all-reduce (Simple, several nodes) once each
    rank's part per channel reaches 64 bytes.
    """

    algorithm: str
    protocol: str
    latency_us: float
    bandwidth_gbs: float
    plateau: float = 1.0
    plateau_bytes: int = 0

    def time_us(self, size_bytes: int) -> float:
        """NCCL's estimate for one call of ``size_bytes``."""
        latency = self.latency_us
        if size_bytes >= self.plateau_bytes:
            latency *= self.plateau
        bandwidth = self.bandwidth_gbs
        if self.algorithm == "tree":
            bandwidth *= tables.tree_correction(self.protocol, size_bytes)
        return latency + size_bytes / (1000 * bandwidth)


@functools.lru_cache(maxsize=8192)
def options_of(kind: str, wiring: Wiring) -> tuple[Option, ...]:
    """Every (algorithm, protocol) that NCCL may use for ``kind`` on ``wiring``."""
    options = _all_options(kind, wiring)
    if not wiring.multi_node:
        return options
    allowed = transport(wiring.fabric).algorithms
    return tuple(option for option in options if option.algorithm in allowed)


def _all_options(kind: str, wiring: Wiring) -> tuple[Option, ...]:
    graphs = wiring.graphs
    options = [_ring(kind, protocol, wiring, graphs) for protocol in _protocols(wiring)]
    if kind == "all_reduce":
        options += [_tree(protocol, wiring, graphs) for protocol in _protocols(wiring)]
        if graphs.nvls is not None and wiring.version >= (2, 17, 0):
            options.append(_nvls(kind, wiring, graphs.nvls))
        if wiring.sharp:
            options.append(_collnet_chain(wiring, graphs))
    elif kind in _HALVES:
        nvls_allowed = (2, 17, 0) <= wiring.version < (2, 18, 0) or wiring.version >= (2, 19, 0)
        # NVLS across nodes needs switches that sum for these two.
        if graphs.nvls is not None and nvls_allowed and not wiring.multi_node:
            options.append(_nvls(kind, wiring, graphs.nvls))
        if wiring.multi_node and wiring.ranks_per_node == 1 and wiring.version >= (2, 23, 0):
            options.append(_pat(wiring, graphs))
    # NCCL sums these two in switches since 2.27.
    if kind == "all_reduce" or (kind in _HALVES and wiring.version >= (2, 27, 0)):
        if wiring.sharp and graphs.nvls is not None and wiring.version >= (2, 17, 0):
            options.append(_nvls(kind, wiring, graphs.nvls, in_switches=True))
        if graphs.collnet is not None:
            options.append(_collnet_direct(kind, wiring, graphs.collnet))
    # One channel has no other head to exchange with over NVLS; NCCL takes no option of no rate.
    return tuple(option for option in options if option.bandwidth_gbs > 0)


def choose(kind: str, size_bytes: int, wiring: Wiring, algorithm: str = "") -> Option:
    """The option NCCL takes for one call of ``size_bytes``.

    ``algorithm`` restricts it as NCCL_ALGO does; one that NCCL cannot run here is ignored, as
    NCCL does.
    """
    options = options_of(kind, wiring)
    if algorithm:
        options = tuple(each for each in options if each.algorithm == algorithm) or options
    return min(options, key=lambda option: option.time_us(size_bytes))


def _protocols(wiring: Wiring) -> tuple[str, ...]:
    # LL128 relies on 128-byte stores arriving whole, which PCIe between GPUs does not promise.
    ll128 = wiring.architecture.collectives.ll128
    if not ll128 or (wiring.link == "pci" and wiring.ranks_per_node > 1):
        return ("ll", "simple")
    if not wiring.multi_node:
        return tables.PROTOCOLS
    allowed = transport(wiring.fabric).protocols_for(wiring.architecture.name)
    # LL128 also asks for a NIC that the GPU reaches without crossing the CPU; Grace sits between
    # the two, and NCCL counts that path as good enough only since 2.27.
    if wiring.cpu == "arm" and wiring.version < (2, 27, 0):
        return tuple(protocol for protocol in allowed if protocol != "ll128")
    return allowed


def _nic_latency_us(wiring: Wiring, protocol: str) -> float:
    """What the network plugin adds to each hop; Simple pays it twice, for its flush."""
    plugin: Transport = transport(wiring.fabric)
    return plugin.nic_latency_us * (2 if protocol == "simple" else 1)


def _graph_gbs(graph: Graph, wiring: Wiring) -> float:
    """Summed channel speed; up to two nodes NCCL reads the speed inside the node."""
    return graph.channels * (graph.intra_gbs if wiring.nodes <= 2 else graph.inter_gbs)


def _ll_cap(wiring: Wiring) -> float:
    return tables.ll_total_cap_gbs(
        wiring.version, wiring.architecture.collectives, wiring.cpu, wiring.nodes
    )


# Share of a ring's bandwidth that LL reaches, since 2.21.
LL_SHARE = 0.5


def ll_share(kind: str, wiring: Wiring) -> float:
    """Share of a ring's bandwidth that NCCL's tuning gives LL in this version."""
    if wiring.version >= (2, 21, 0):
        return LL_SHARE
    return 1 / 4 if wiring.multi_node or kind in ("all_reduce", "reduce") else 1 / 3


def _ring(kind: str, protocol: str, wiring: Wiring, graphs: Graphs) -> Option:
    version, ranks, nodes = wiring.version, wiring.ranks, wiring.nodes
    facts = wiring.architecture.collectives
    bus = _graph_gbs(graphs.ring, wiring)
    if protocol == "ll":
        bus = min(_ll_cap(wiring), bus * ll_share(kind, wiring))
    elif protocol == "ll128":
        share = 0.7 if wiring.ranks_per_node < 2 and version < (2, 23, 0) else 0.92
        cap = tables.of_nodes(facts.ring_ll128_channel_cap_gbs, version, nodes)
        bus = min(bus * share, graphs.ring.channels * cap)
    hop = tables.hop_latency_us(version, "ring", protocol)
    if wiring.ranks_per_node == 1 and version >= (2, 23, 0):
        inter = tables.hop_latency_us(version, "tree", protocol).net
    else:
        inter = hop.net
    inter += _nic_latency_us(wiring, protocol)
    intra = hop.intra(wiring.link)
    base: float = getattr(tables.base_latency_us(version, "ring"), protocol)
    if kind in ("broadcast", "reduce"):
        # NCCL counts one hop: every channel has the same order of GPUs on symmetric nodes.
        return Option("ring", protocol, base + (inter if wiring.multi_node else intra), bus)
    steps = ring_steps(kind, ranks)
    inter_steps = nodes - 1
    if kind == "all_reduce":
        inter_steps = 2 * nodes if version < (2, 23, 0) else 2 * (nodes - 1)
    if not wiring.multi_node:
        inter_steps = 0
    inter_steps = min(inter_steps, steps)
    if wiring.multi_node:
        overhead = 2.0 if wiring.cpu == "amd" else 1.0
        intra = max(intra, overhead * (3 if protocol == "simple" else 1))
        if protocol == "ll" and version < (2, 18, 0):
            intra *= 1.8
    latency = base + (steps - inter_steps) * intra + inter_steps * inter
    bandwidth = bus * ranks / steps
    if kind == "all_reduce" and protocol == "simple" and wiring.multi_node:
        threshold = 64 * ranks * graphs.channels
        return Option("ring", protocol, latency, bandwidth, facts.ring_plateau, threshold)
    return Option("ring", protocol, latency, bandwidth)


def ring_steps(kind: str, ranks: int) -> int:
    """Hops of one chunk around the ring."""
    if kind == "all_reduce":
        return 2 * (ranks - 1)
    return ranks - 1


def tree_depth(nodes: int) -> int:
    """Levels of the tree between nodes as NCCL counts them: floor(log2(nodes))."""
    return nodes.bit_length() - 1


def _tree(protocol: str, wiring: Wiring, graphs: Graphs) -> Option:
    version, nodes, channels = wiring.version, wiring.nodes, graphs.tree.channels
    facts = wiring.architecture.collectives
    cap = tables.of_nodes(facts.tree_channel_cap_gbs, version, nodes)
    bus = min(_graph_gbs(graphs.tree, wiring) * 0.92, channels * cap)
    if protocol == "ll":
        bus = min(bus / 3.8, _ll_cap(wiring))
    elif protocol == "ll128":
        cap = tables.of_nodes(facts.tree_ll128_channel_cap_gbs, version, nodes)
        bus = min(bus * (7 / 9 if nodes == 1 else 120 / 128), channels * cap)
    if version >= (2, 18, 3):
        bus *= 0.85
    hop = tables.hop_latency_us(version, "tree", protocol)
    net = hop.net + _nic_latency_us(wiring, protocol)
    hops = (wiring.ranks_per_node - 1) * hop.intra(wiring.link) + tree_depth(nodes) * net
    base: float = getattr(tables.base_latency_us(version, "tree"), protocol)
    return Option("tree", protocol, base + 2 * hops, bus * 0.5)


def _collnet_direct(kind: str, wiring: Wiring, graph: Graph) -> Option:
    """All GPUs of a node exchange with the heads at once, whose sums switches add up."""
    hop = tables.hop_latency_us(wiring.version, "collnet_direct", "simple")
    inside = wiring.ranks_per_node
    # NCCL counts 0.4 us for each further peer of a head.
    latency = 2 * (min(1, inside - 1) * hop.intra(wiring.link) + (inside - 1) * 0.4) + hop.net
    if kind in _HALVES:
        bandwidth = inside * min(graph.intra_gbs, 0.9 * graph.inter_gbs)
        return Option("collnet_direct", "simple", latency, bandwidth)
    ranks_a_head = inside / graph.channels
    bus = graph.channels * graph.intra_gbs / (ranks_a_head - (ranks_a_head - 1) / 2)
    if wiring.compute_capability >= 9.0:
        bus *= 0.85
    return Option("collnet_direct", "simple", latency, bus * 0.5)


def _collnet_chain(wiring: Wiring, graphs: Graphs) -> Option:
    """A chain through each node to a NIC, whose sums switches add up."""
    hop = tables.hop_latency_us(wiring.version, "collnet_chain", "simple")
    latency = 2 * (wiring.ranks_per_node - 1) * hop.intra(wiring.link) + hop.net
    bus = graphs.tree.channels * graphs.tree.intra_gbs
    return Option("collnet_chain", "simple", latency, bus * 0.5)


def _nvls(kind: str, wiring: Wiring, graph: Graph, *, in_switches: bool = False) -> Option:
    """NVLS on one node; on several NVLSTree (all-reduce only), or NVLS where the switches between
    them go on summing."""
    version, nodes, ranks = wiring.version, wiring.nodes, wiring.ranks
    facts = wiring.architecture.collectives
    in_trees = nodes > 1 and not in_switches
    algorithm = "nvls_tree" if in_trees else "nvls"
    hop = tables.hop_latency_us(version, algorithm, "simple")
    latency = tables.base_latency_us(version, algorithm).simple + hop.nvlink
    if in_trees:
        net = hop.net + _nic_latency_us(wiring, "simple")
        latency += 2 * tree_depth(nodes) * net
    elif in_switches:
        latency += hop.net
    heads, intra, inter = graph.channels, graph.intra_gbs, graph.inter_gbs
    if version >= (2, 28, 0):
        efficiency = facts.nvls_efficiency
        if kind == "all_reduce":
            per_head = intra * efficiency * (heads - 1) / heads * 2
        else:
            per_head = intra * efficiency * (wiring.ranks_per_node - 1) / wiring.ranks_per_node
        if in_trees:
            cap = tables.of_nodes(facts.nvls_tree_channel_cap_gbs, version, nodes)
            per_head = min(per_head, inter * 2 if nodes <= 2 else inter, cap)
        ratio = ranks / ring_steps(kind, ranks) if kind == "all_reduce" else 1.0
    else:
        per_head = min(intra, inter / 2 if in_trees and nodes > 2 else inter)
        if kind != "all_reduce" and version >= (2, 27, 0):
            per_head = intra * (wiring.ranks_per_node - 1) / wiring.ranks_per_node
            if in_switches:
                per_head = min(per_head, 0.9 * inter)
        ratio = (5 / 6 if version >= (2, 18, 3) else 0.75) if kind == "all_reduce" else 1.0
    return Option(algorithm, "simple", latency, heads * per_head * ratio)


def _pat(wiring: Wiring, graphs: Graphs) -> Option:
    latency = 8.0 + math.log2(wiring.nodes) * 14.0 / 3.5 + 2.8 * wiring.nodes
    share = 0.85 if wiring.version < (2, 24, 0) else 0.75
    return Option("pat", "simple", latency, _graph_gbs(graphs.tree, wiring) * share)
