"""What a collective really does, as counts of work that coefficients turn into time.

NCCL's own model is optimistic in known places: it has one hop latency for every fabric, gives
NVLS no ramp and a broadcast no pipeline. Here each call is counted in physical terms (launch,
hops inside and between nodes, bytes through the slowest link, pipeline fill, chunk rounds,
messages, pass over the own block) and the time is their sum weighted by coefficients, one set
per GPU generation inside a node and one per fabric between nodes (``conf/transport``, fitted by
``fit.py``). A coefficient of 1 on ``stream`` means the modelled link speed is reached.

It is Moye's execution model (section 5.3, equations 2 to 5) with its parameters resolved:
``launch`` and ``net_start`` are alpha; beta and gamma, the times of one chunk inside and between
nodes, are a hop plus the chunk's bytes at link speed, or a message's own cost where that is
longer; eta is ``rounds``; the reduction, delta, runs while the next bytes arrive and is part of
``stream``.

How NCCL cuts a message, the channels a call keeps busy and the chunk each handles at once, are
rules of its enqueue step, versions 2.10 to 2.30; Moye (Table 5) lists what they give for a tree
all-reduce on 32 H800.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .cost import LL_SHARE, Option, ll_share, ring_steps, tree_depth
from .graph import Graphs, Wiring
from .transport import transport
from .tuning_tables import COLLNET, hop_latency_us

KIB = 1024
# Data bytes of one step of the FIFO between two peers (NCCL_STEPS is 8).
STEP_BYTES = {"ll": 32 * KIB, "ll128": 576_000, "simple": 512 * KIB}
# Bytes on the wire per byte of data: flags ride along in LL and LL128.
WIRE_BYTES_PER_BYTE = {"ll": 2.0, "ll128": 16 / 15, "simple": 1.0}
# Before 2.22: threads of a channel and the bytes each must have before another channel joins.
_THREADS = {"ll": 512, "ll128": 640, "simple": 512}
_BYTES_PER_THREAD = {"ll": 8, "ll128": 8, "simple": 64}


def channels_used(kind: str, size_bytes: int, option: Option, wiring: Wiring) -> int:
    """Channels (hence SMs) that a call of this size keeps busy.

    From 2.22 on a channel takes part only with a least amount of traffic (NCCL counts LL's four
    times); before, with a least number of bytes per thread.
    """
    graphs = wiring.graphs
    if option.algorithm.startswith("nvls"):
        return graphs.nvls_channels
    most, version = graphs.channels, wiring.version
    if version >= (2, 22, 0):
        least = 512 if version < (2, 23, 0) else 16 * KIB if version < (2, 30, 0) else 32 * KIB
        traffic = size_bytes * (2 if kind == "all_reduce" else 1)
        if option.protocol == "ll":
            traffic *= 4
        return max(1, min(most, traffic // least))
    per_channel = _THREADS[option.protocol] * _BYTES_PER_THREAD[option.protocol]
    if option.algorithm == "ring" and option.protocol == "ll":
        per_channel *= wiring.ranks
    return max(1, min(most, size_bytes // per_channel))


def ring_chunk_bytes(kind: str, protocol: str) -> int:
    """Chunk of a ring: four steps in Simple, except where a single pipeline is filled."""
    steps = 4 if protocol == "simple" and kind not in ("broadcast", "reduce") else 1
    return steps * STEP_BYTES[protocol]


def tree_chunk_bytes(size_bytes: int, protocol: str, wiring: Wiring, channels: int) -> int:
    """Chunk of a tree all-reduce; NCCL halves LL128's while the message is short."""
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
# Of a head and channel of CollNet, which NCCL halves for short messages.
COLLNET_CHUNK_BYTES = 128 * KIB
_NVLS_TREE_SHRINK = ((4, 64 * KIB), (1, 32 * KIB))


def nvls_chunk_bytes(size_bytes: int, option: Option, wiring: Wiring, heads: int) -> int:
    """Chunk of one head and channel of NVLS, or of NVLSTree between nodes."""
    operations = wiring.graphs.nvls_channels * heads
    chunk = 128 * KIB
    shrink: tuple[tuple[int, int], ...] = _NVLS_SHRINK
    if option.algorithm == "nvls_tree":
        shrink = _NVLS_TREE_SHRINK
        if wiring.nodes >= 4:
            chunk = 64 * KIB
    for loops, smaller in shrink:
        if chunk > smaller and size_bytes < loops * operations * chunk:
            chunk = smaller
    return chunk


Terms = dict[str, float]
# Of a NIC's rate that NCCL's maintainers reckon with where switches sum: 20 of 25 GB/s
# (NVIDIA/nccl issue 320).
IN_SWITCHES_NIC_SHARE = 0.8


@dataclass(frozen=True)
class Rounds:
    """How a message is cut: ``count`` rounds (Moye's eta) of ``chunk_bytes`` on each channel."""

    count: int
    chunk_bytes: float
    channels: int


def rounds_of(kind: str, size_bytes: int, option: Option, wiring: Wiring) -> Rounds:
    """Chunks of one call; ``chunk_bytes`` is what one peer sends on one channel in one step."""
    channels = channels_used(kind, size_bytes, option, wiring)
    if option.algorithm.startswith("nvls"):
        graphs = wiring.graphs
        heads = graphs.nvls.channels if graphs.nvls is not None else 1
        parts, chunk = heads, nvls_chunk_bytes(size_bytes, option, wiring, heads)
    elif option.algorithm in COLLNET:
        parts, chunk = wiring.nics, COLLNET_CHUNK_BYTES
    elif option.algorithm == "tree":
        parts, chunk = 1, tree_chunk_bytes(size_bytes, option.protocol, wiring, channels)
    else:
        parts = 1 if kind in ("broadcast", "reduce") else wiring.ranks
        chunk = ring_chunk_bytes(kind, option.protocol)
    share = size_bytes / (channels * parts)
    return Rounds(max(1, math.ceil(share / chunk)), min(share, chunk), channels)


def node_terms(kind: str, size_bytes: int, option: Option, wiring: Wiring) -> Terms:
    """Work inside the nodes: us per unit for counts, dimensionless for ``us`` at link speed.

    On several nodes the hops inside them are part of ``net_terms``: the same pipeline runs
    through both.
    """
    graphs = wiring.graphs
    if option.algorithm.startswith("nvls"):
        if wiring.multi_node:
            return {"launch": 1.0}
        return _nvls_terms(kind, size_bytes, option, wiring)
    bus_gbs = graphs.ring.channels * graphs.ring.intra_gbs
    terms: Terms = {"launch": 1.0}
    if option.algorithm in ("tree", "pat", *COLLNET):
        if not wiring.multi_node:
            terms["hop"] = 2.0 * (wiring.ranks_per_node - 1)
            terms["stream"] = 2 * size_bytes / (1e3 * bus_gbs)
        return terms
    rooted = kind in ("broadcast", "reduce")
    steps = wiring.ranks - 1 if rooted else ring_steps(kind, wiring.ranks)
    if not wiring.multi_node:
        terms["hop"] = float(steps)
        terms["stream"] = _ring_us(kind, size_bytes, option, wiring, bus_gbs)
        terms["host"] = host_us(terms["stream"], wiring)
        if not rooted:
            rounds = rounds_of(kind, size_bytes, option, wiring)
            terms["round"] = float(steps * (rounds.count - 1))
    if kind in ("all_gather", "reduce_scatter"):
        # The own block never leaves the GPU: between nodes the channels' speed is the NICs', and
        # a pass at that speed would make a reduce-scatter and an all-gather take half as long
        # again as the all-reduce they add up to.
        pass_gbs = wiring.link_gbs if wiring.multi_node else bus_gbs
        terms["own_block"] = size_bytes / wiring.ranks / (1e3 * pass_gbs)
    elif rooted:
        rounds = rounds_of(kind, size_bytes, option, wiring)
        terms["fill"] = steps * rounds.chunk_bytes * rounds.channels / (1e3 * bus_gbs)
    return terms


def net_terms(kind: str, size_bytes: int, option: Option, wiring: Wiring) -> Terms:
    """Work between nodes; empty on one node."""
    if not wiring.multi_node:
        return {}
    if option.algorithm == "tree":
        return _tree_terms(kind, size_bytes, option, wiring)
    if option.algorithm == "nvls_tree":
        return _nvls_tree_terms(kind, size_bytes, option, wiring)
    if option.algorithm in ("nvls", *COLLNET):
        return _in_switches_terms(kind, size_bytes, option, wiring)
    return _ring_terms(kind, size_bytes, option, wiring)


def with_inner_hops(terms: Terms, node_coefficients: Mapping[str, float]) -> Terms:
    """``net_inner`` in microseconds of ``net_inner_hops``, at what one takes in a single node;
    and ``net_stream`` as long as the bytes' way inside, ``net_inside``, takes there at least."""
    counted = dict(terms)
    if "net_inner_hops" in counted:
        counted["net_inner"] = counted.pop("net_inner_hops") * node_coefficients["hop"]
    if "net_inside" in counted:
        inside = counted.pop("net_inside") * node_coefficients["stream"]
        counted["net_stream"] = max(counted["net_stream"], inside)
    return counted


def _ring_terms(kind: str, size_bytes: int, option: Option, wiring: Wiring) -> Terms:
    graphs, nodes, ranks = wiring.graphs, wiring.nodes, wiring.ranks
    bus_gbs = min(graphs.ring.channels * graphs.ring.inter_gbs, wiring.nics_gbs)
    if option.algorithm == "pat":
        bytes_us = size_bytes * (nodes - 1) / nodes / (1e3 * bus_gbs)
        hops = float(math.ceil(math.log2(nodes)))
        return {"net_start": 1.0, "net_hop": hops, "net_stream": bytes_us}
    steps = ranks - 1 if kind in ("broadcast", "reduce") else ring_steps(kind, ranks)
    rounds = rounds_of(kind, size_bytes, option, wiring)
    chunk_us = rounds.chunk_bytes * rounds.channels / (1e3 * bus_gbs)
    exposed, laps = _exposed(kind, option, chunk_us, wiring), steps // (ranks - 1)
    inner_hops = laps * (ranks - nodes) * exposed
    messages, behind_us = float(rounds.count * steps), chunk_us
    if kind in ("broadcast", "reduce"):
        # A pipeline: each link passes each chunk once, and the first has to reach the end with
        # no other bytes in flight behind which to hide.
        messages, behind_us = rounds.count + nodes - 2.0, 0.0
    return {
        "net_start": 1.0,
        "net_hop": laps * (nodes - 1.0) * exposed,
        **_inner_of_ring(inner_hops, option, wiring),
        "net_stream": _ring_us(kind, size_bytes, option, wiring, bus_gbs),
        "net_message": _message_share(messages, rounds, behind_us, option, wiring),
    }


def _inner_of_ring(hops: float, option: Option, wiring: Wiring) -> Terms:
    """Hops inside nodes. In one node LL128 carries what is too long to tell a hop from bytes, so
    its hops are NCCL's own."""
    if option.protocol != "ll128":
        return {"net_inner_hops": hops}
    own_us = hop_latency_us(wiring.version, option.algorithm, option.protocol)
    return {"net_inner": hops * (own_us.nvlink if wiring.link == "nvlink" else own_us.pci)}


def _exposed(kind: str, option: Option, chunk_us: float, wiring: Wiring) -> float:
    """Part of a ring's hops that the bytes in flight do not hide, between nodes in Simple.

    Every link of a ring is busy with some chunk; a hop's latency shows only where it is longer
    than the time its chunk takes.
    """
    if option.protocol != "simple" or kind in ("broadcast", "reduce"):
        return 1.0
    return max(0.0, 1.0 - chunk_us / transport(wiring.fabric).message_us)


def _levels(nodes: int) -> int:
    """Levels a chunk climbs between nodes; NCCL's own model rounds them down."""
    return (nodes - 1).bit_length()


def _tree_terms(kind: str, size_bytes: int, option: Option, wiring: Wiring) -> Terms:
    graphs, nodes, inside = wiring.graphs, wiring.nodes, wiring.ranks_per_node - 1
    levels = _levels(nodes)
    rounds = rounds_of(kind, size_bytes, option, wiring)
    slowdown = _ll_slowdown(kind, option, wiring)
    round_bytes = slowdown * rounds.chunk_bytes * rounds.channels
    crossing_us = slowdown * size_bytes / (1e3 * wiring.nics_gbs)
    chunk_us = _crossings(nodes) * round_bytes / (1e3 * wiring.nics_gbs)
    bound, fill = crossing_us, 2 * levels * chunk_us
    if inside:
        bus_gbs = graphs.tree.channels * graphs.tree.intra_gbs
        bound = max(bound, slowdown * 2 * size_bytes / (1e3 * bus_gbs))
        fill += 2 * inside * round_bytes / (1e3 * bus_gbs)
    messages = rounds.count + 2.0 * levels
    return {
        "net_start": 1.0,
        "net_hop": 2.0 * levels,
        "net_inner_hops": 2.0 * inside,
        "net_fill": fill,
        "net_stream": bound,
        "net_second": max(0.0, _crossings(nodes) * crossing_us - bound),
        "net_message": _message_share(messages, rounds, chunk_us, option, wiring),
    }


def _nvls_tree_terms(kind: str, size_bytes: int, option: Option, wiring: Wiring) -> Terms:
    """As fast as the slower of the NICs and of what NVLS reaches inside a node."""
    crossings, levels = _crossings(wiring.nodes), _levels(wiring.nodes)
    inside = _nvls_terms(kind, size_bytes, option, wiring)
    rounds = rounds_of(kind, size_bytes, option, wiring)
    round_bytes = rounds.chunk_bytes * rounds.channels * _heads(wiring.graphs)
    chunk_us = max(inside["fill"], crossings * round_bytes / (1e3 * wiring.nics_gbs))
    return {
        "net_start": 1.0,
        "net_hop": 2.0 * levels,
        "net_fill": 2.0 * levels * chunk_us,
        "net_stream": crossings * size_bytes / (1e3 * wiring.nics_gbs),
        "net_inside": inside["stream"],
    }


def _in_switches_terms(kind: str, size_bytes: int, option: Option, wiring: Wiring) -> Terms:
    """Switches sum: every node's bytes cross its NICs once, upwards while earlier sums come down,
    however many nodes there are. No measurement stands behind it."""
    inside, rounds = wiring.ranks_per_node, rounds_of(kind, size_bytes, option, wiring)
    crossing_us = size_bytes / (1e3 * IN_SWITCHES_NIC_SHARE * wiring.nics_gbs)
    within_us = 0.0
    if option.algorithm == "nvls":
        within_us = _nvls_terms(kind, size_bytes, option, wiring)["stream"]
    elif inside > 1:
        passes = 2.0 if kind == "all_reduce" else 1.0
        within_us = passes * size_bytes * (inside - 1) / inside / (1e3 * wiring.link_gbs)
    return {
        "net_start": 1.0,
        "net_hop": 1.0,
        "net_fill": max(crossing_us, within_us) / rounds.count,
        "net_stream": crossing_us,
        "net_inside": within_us,
    }


def _crossings(nodes: int) -> int:
    """Times a node's NICs carry the message: a node is leaf in one tree and inner in the other."""
    return 1 if nodes == 2 else 2


def _message_share(
    messages: float, rounds: Rounds, behind_us: float, option: Option, wiring: Wiring
) -> float:
    """Messages that the bytes in flight do not hide, in units of the fabric's handshake.

    What one NIC carries in a step, over all channels, costs its part of a handshake up to the
    eager size and a whole one beyond, less the time that the step's bytes take anyway.
    """
    fabric = transport(wiring.fabric)
    wire_bytes = rounds.chunk_bytes * rounds.channels * WIRE_BYTES_PER_BYTE[option.protocol]
    exposed = max(0.0, 1.0 - behind_us / fabric.message_us)
    return messages * min(1.0, wire_bytes / wiring.nics / fabric.eager_bytes) * exposed


def _ring_us(kind: str, size_bytes: int, option: Option, wiring: Wiring, bus_gbs: float) -> float:
    """Microseconds that the bytes of a ring occupy each link at ``bus_gbs``."""
    share = _ll_slowdown(kind, option, wiring)
    if kind not in ("broadcast", "reduce"):
        share *= ring_steps(kind, wiring.ranks) / wiring.ranks
    return size_bytes * share / (1e3 * bus_gbs)


def host_us(link_us: float, wiring: Wiring) -> float:
    """Time on the host memory that all GPUs share whose bytes are staged there."""
    return wiring.ranks_per_node * link_us if wiring.through_host else 0.0


def _ll_slowdown(kind: str, option: Option, wiring: Wiring) -> float:
    """NCCL 2.21 sped LL up; its tuning constants say by how much for each collective."""
    return LL_SHARE / ll_share(kind, wiring) if option.protocol == "ll" else 1.0


def _nvls_terms(kind: str, size_bytes: int, option: Option, wiring: Wiring) -> Terms:
    """All-reduce: each GPU sends its data once and multicasts its reduced part."""
    share = 1 + 1 / wiring.ranks_per_node if kind == "all_reduce" else 1.0
    rounds = rounds_of(kind, size_bytes, option, wiring)
    heads = _heads(wiring.graphs)
    round_bytes = rounds.chunk_bytes * rounds.channels * heads
    return {
        "launch": 1.0,
        # Every channel works through the heads' chunks one after another.
        "round": float(rounds.count * heads),
        "fill": share * round_bytes / (1e3 * wiring.link_gbs),
        "stream": share * size_bytes / (1e3 * wiring.link_gbs),
    }


def _heads(graphs: Graphs) -> int:
    return graphs.nvls.channels if graphs.nvls is not None else 1


def memory_bytes(kind: str, size_bytes: int, option: Option, wiring: Wiring) -> float:
    """Bytes one rank reads and writes in its memory during the call.

    A reducing ring step reads its FIFO and its own data and its neighbour writes the next FIFO
    (3 per byte passed on); a copying one writes straight into the neighbour's buffer (2); an
    all-reduce is half of each. A tree passes every byte up and down.
    """
    if option.algorithm.startswith("nvls"):
        return 2.0 * size_bytes
    if option.algorithm in ("tree", *COLLNET):
        return 4.0 * size_bytes
    if kind in ("broadcast", "reduce"):
        return 3.0 * size_bytes
    moved = size_bytes * ring_steps(kind, wiring.ranks) / wiring.ranks
    return moved * {"reduce_scatter": 3.0, "all_gather": 2.0, "all_reduce": 2.5}[kind]
