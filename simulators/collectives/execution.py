"""What a collective really does, as counts of work that coefficients turn into time.

NCCL's own model is optimistic in known places: it has one hop latency for every fabric, gives
NVLS no ramp and a broadcast no pipeline. Here each call is counted in physical terms (launch,
hops inside and between nodes, bytes through the slowest link, pipeline fill, chunk loops, pass
over the own block) and the time is their sum weighted by coefficients, one set per GPU
generation inside a node and one per fabric between nodes (``fitted.yaml``, written by ``fit.py``).
A term's coefficient of 1 on ``stream`` means the modelled link speed is reached.
"""

from __future__ import annotations

import math

from simulators.collectives.cost import Option, ring_steps, tree_depth
from simulators.collectives.graph import Graphs, Wiring, graphs_of

KIB = 1024
# Data bytes of one step of the FIFO between two peers (NCCL_STEPS is 8).
STEP_BYTES = {"ll": 32 * KIB, "ll128": 576_000, "simple": 512 * KIB}
_MIN_TRAFFIC_BYTES = 16 * KIB
# Smallest part of a point-to-point transfer that gets a channel of its own.
P2P_PART_BYTES = 64 * KIB

Terms = dict[str, float]


def tree_chunk_bytes(size_bytes: int, protocol: str, wiring: Wiring, channels: int) -> int:
    """Chunk of a tree all-reduce; NCCL halves LL128's while the message is short.

    Moye (Table 5) lists this rule's results for 32 H800.
    """
    chunk = STEP_BYTES[protocol]
    if protocol == "simple" and wiring.version < (2, 20, 0):
        depth = wiring.ranks_per_node - 1 + tree_depth(wiring.nodes)
        for loops, floor in ((8 * depth, 128 * KIB), (4 * depth, 64 * KIB), (depth, 32 * KIB)):
            while size_bytes / (channels * chunk) < loops and chunk > floor:
                chunk //= 2
    if protocol != "ll128":
        return chunk
    steps = 1 + math.log2(wiring.nodes) + 0.1 * wiring.ranks_per_node
    for limit, floor in ((64.0, 131072), (16.0, 32768)):
        target = limit * steps / wiring.ranks_per_node
        while size_bytes // (channels * chunk) < target and chunk > floor:
            chunk //= 2
    return chunk


# NVLS shrinks its 128 KiB chunk below so many loops: (loops, smaller chunk).
_NVLS_SHRINK = ((64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB))


def nvls_loops(size_bytes: int, channels: int, heads: int) -> float:
    """Chunk loops of each head's channel, chunks shrunk while the message is short.

    Just past a shrink limit the chunk doubles and the count would halve; it is held instead,
    because no measurement shows a longer message finishing sooner.
    """
    operations = channels * heads
    chunk, fewest = 128 * KIB, 0
    for loops, smaller in _NVLS_SHRINK:
        if size_bytes >= loops * operations * chunk:
            fewest = 2 * loops
            break
        chunk = smaller
    return max(fewest, size_bytes / (operations * chunk))


def channels_used(kind: str, size_bytes: int, option: Option, wiring: Wiring) -> int:
    """Channels (hence SMs) that a call of this size keeps busy.

    A channel takes part only with at least 16 KiB of traffic.
    """
    graphs = graphs_of(wiring)
    most = graphs.nvls_channels if option.algorithm.startswith("nvls") else graphs.channels
    traffic = size_bytes * (2 if kind == "all_reduce" else 1)
    if option.protocol == "ll":
        traffic *= 4
    return max(1, min(most, traffic // _MIN_TRAFFIC_BYTES))


def node_terms(kind: str, size_bytes: int, option: Option, wiring: Wiring) -> Terms:
    """Work inside the nodes: us per unit for counts, dimensionless for ``us`` at link speed."""
    graphs = graphs_of(wiring)
    if option.algorithm.startswith("nvls"):
        terms = _nvls_terms(kind, size_bytes, wiring, graphs)
        if wiring.multi_node:
            # The tree between nodes has its own chunks; its slowest stage is in net_terms.
            return {"launch": terms["launch"]}
        return terms
    bus_gbs = graphs.ring.channels * graphs.ring.intra_gbs
    inside = wiring.ranks_per_node - 1
    if option.algorithm in ("tree", "pat"):
        terms = {"launch": 1.0, "hop": 2.0 * inside}
        if not wiring.multi_node:
            terms["stream"] = 2 * size_bytes / (1e3 * bus_gbs)
        return terms
    steps = wiring.ranks - 1
    if kind not in ("broadcast", "reduce"):
        steps = ring_steps(kind, wiring.ranks)
    laps = steps / (wiring.ranks - 1)
    terms = {"launch": 1.0, "hop": laps * (wiring.ranks - wiring.nodes)}
    if not wiring.multi_node:
        terms["stream"] = _ring_us(kind, size_bytes, steps, wiring.ranks, bus_gbs)
    if kind in ("all_gather", "reduce_scatter"):
        # The own block never leaves the GPU: between nodes the channels' speed is the NICs', and
        # a pass at that speed would make a reduce-scatter and an all-gather take half as long
        # again as the all-reduce they add up to.
        pass_gbs = wiring.link_gbs if wiring.multi_node else bus_gbs
        terms["own_block"] = size_bytes / wiring.ranks / (1e3 * pass_gbs)
    elif kind in ("broadcast", "reduce"):
        chunk = min(STEP_BYTES[option.protocol], size_bytes / graphs.channels)
        terms["fill"] = steps * chunk * graphs.channels / (1e3 * bus_gbs)
    return terms


def net_terms(kind: str, size_bytes: int, option: Option, wiring: Wiring) -> Terms:
    """Work between nodes; empty on one node."""
    if not wiring.multi_node:
        return {}
    graphs = graphs_of(wiring)
    nodes, nics_gbs = wiring.nodes, wiring.nics_gbs
    ranks = wiring.ranks
    if option.algorithm in ("tree", "nvls_tree"):
        # A node is leaf in one tree and inner in the other: its NICs carry the message once on
        # two nodes and twice on more.
        crossings = 1 if nodes == 2 else 2
        bound = crossings * size_bytes / (1e3 * nics_gbs)
        if option.algorithm == "nvls_tree":
            nvlink = _nvls_terms(kind, size_bytes, wiring, graphs)["stream"]
            return {
                "net_start": 1.0,
                "net_hop": 2.0 * tree_depth(nodes),
                "net_stream": max(bound, nvlink),
            }
        if wiring.ranks_per_node > 1:
            bus_gbs = graphs.tree.channels * graphs.tree.intra_gbs
            bound = max(bound, 2 * size_bytes / (1e3 * bus_gbs))
        chunk = tree_chunk_bytes(size_bytes, option.protocol, wiring, graphs.channels)
        chunk_us = min(chunk * graphs.channels, size_bytes) / (1e3 * nics_gbs)
        stages = 2 * (wiring.ranks_per_node - 1 + tree_depth(nodes))
        return {
            "net_start": 1.0,
            "net_hop": 2.0 * tree_depth(nodes),
            "net_fill": stages * chunk_us,
            "net_stream": bound,
        }
    bus_gbs = min(graphs.ring.channels * graphs.ring.inter_gbs, nics_gbs)
    if option.algorithm == "pat":
        bytes_us = size_bytes * (nodes - 1) / nodes / (1e3 * bus_gbs)
        hops = float(math.ceil(math.log2(nodes)))
        return {"net_start": 1.0, "net_hop": hops, "net_stream": bytes_us}
    steps = ranks - 1 if kind in ("broadcast", "reduce") else ring_steps(kind, ranks)
    laps = steps // (ranks - 1)
    return {
        "net_start": 1.0,
        "net_hop": laps * (nodes - 1.0),
        "net_stream": _ring_us(kind, size_bytes, steps, ranks, bus_gbs),
    }


def _ring_us(kind: str, size_bytes: int, steps: int, ranks: int, bus_gbs: float) -> float:
    """Microseconds that the bytes of a ring occupy each link at ``bus_gbs``."""
    share = 1.0 if kind in ("broadcast", "reduce") else steps / ranks
    return size_bytes * share / (1e3 * bus_gbs)


def _nvls_terms(kind: str, size_bytes: int, wiring: Wiring, graphs: Graphs) -> Terms:
    """All-reduce: each GPU sends its data once and multicasts its reduced part."""
    heads = graphs.nvls.channels if graphs.nvls is not None else 1
    if kind == "all_reduce":
        wire_bytes = size_bytes * (1 + 1 / wiring.ranks_per_node)
    else:
        wire_bytes = float(size_bytes)
    return {
        "launch": 1.0,
        "loop": nvls_loops(size_bytes, graphs.nvls_channels, heads),
        "stream": wire_bytes / (1e3 * wiring.link_gbs),
    }


def all_to_all_terms(size_bytes: int, wiring: Wiring) -> tuple[Terms, Terms]:
    """All-to-all as concurrent sends: inside the node, and between nodes.

    A rank sends ``size / ranks`` to each other rank; the NICs carry what leaves the node. The
    first 64 KiB to a peer go through one channel, in LL while they are short; only what is
    longer is spread over several.
    """
    ranks, inside = wiring.ranks, wiring.ranks_per_node - 1
    block = size_bytes / ranks
    node = {
        "launch": 1.0,
        "peer": float(ranks - 1),
        "first_part": min(1.0, block / P2P_PART_BYTES),
        "own_block": block / (1e3 * wiring.link_gbs),
    }
    stream = inside * block / (1e3 * wiring.link_gbs)
    if not wiring.multi_node:
        return {**node, "stream": stream}, {}
    leaving = (ranks - wiring.ranks_per_node) * block * wiring.ranks_per_node
    net = {
        "net_start": 1.0,
        "net_peer": float(ranks - wiring.ranks_per_node),
        "net_first_part": min(1.0, block / P2P_PART_BYTES),
        "net_stream": max(stream, leaving / (1e3 * wiring.nics_gbs)),
    }
    return node, net


def memory_bytes(kind: str, size_bytes: int, option: Option, wiring: Wiring) -> float:
    """Bytes one rank reads and writes in its memory during the call.

    A reducing ring step reads its FIFO and its own data and its neighbour writes the next FIFO
    (3 per byte passed on); a copying one writes straight into the neighbour's buffer (2); an
    all-reduce is half of each. A tree passes every byte up and down.
    """
    if option.algorithm.startswith("nvls"):
        return 2.0 * size_bytes
    if option.algorithm == "tree":
        return 4.0 * size_bytes
    if kind in ("broadcast", "reduce"):
        return 3.0 * size_bytes
    moved = size_bytes * ring_steps(kind, wiring.ranks) / wiring.ranks
    return moved * {"reduce_scatter": 3.0, "all_gather": 2.0, "all_reduce": 2.5}[kind]
