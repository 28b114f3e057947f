"""The price of one communication: seconds, and the SMs and memory traffic while it runs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.question.cluster import Cluster, MeasuredCollective
from trainscout.simulators.predictor.question.errors import require_choice, require_positive
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import Collective, Communicator

from . import execution, p2p
from .cost import choose, ring_steps
from .execution import channels_used
from .graph import Wiring, slower_wirings, wiring_of
from .measured import (
    Figure,
    bus_factor,
    corrected_s,
    hop_us,
    interpolated,
    measured_us,
    ring_hops,
    rows_of,
)
from .transport import Coefficients, net_coefficients, node_coefficients, transport, weighted_us
from .tuning_tables import COLLNET, parse_version

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")


@dataclass(frozen=True)
class CollectivePrice:
    """What one NCCL call takes and occupies.

    ``channels`` is the SMs it holds while it runs (one per channel), ``wire_bytes_per_s`` the
    bytes per second it reads and writes in this rank's memory. ``nvlink_bytes`` are what this
    rank sends over NVLink, ``nic_bytes`` its share of what its node's NICs send.
    """

    seconds: float
    channels: int
    algorithm: str
    protocol: str
    evidence: Evidence
    wire_bytes_per_s: float
    nvlink_bytes: float = 0.0
    nic_bytes: float = 0.0


_FREE = CollectivePrice(0.0, 0, "none", "none", Evidence.FITTED, 0.0)


@functools.lru_cache(maxsize=65536)
def price_collective(
    kind: str,
    size_bytes: int,
    communicator: Communicator,
    gpu: Gpu,
    cluster: Cluster,
    dtype: str = "bf16",
) -> CollectivePrice:
    """Price one collective of ``size_bytes`` (NCCL's size, see ``workload.ir.Collective``).

    Algorithm and protocol are NCCL's choice under its own cost model for the cluster's version;
    the time is that of ``execution.py``, and never more than over half as many NICs or over NICs
    of half the rate. ``cluster.nccl_algo`` restricts the choice. fp8
    reductions are not offered by NVLS.

    Raises:
        InputError: for an unknown kind, a negative size or an unreadable NCCL version.
    """
    call = _Call(kind, size_bytes, communicator, gpu, cluster, dtype)
    price = _white_box(call)
    if cluster.measured and price.seconds:
        return _as_measured(price, call)
    if not price.nic_bytes:
        return price
    for wiring in slower_wirings(communicator, gpu, cluster):
        # Nothing gets a node's bytes out sooner than its NICs' rate.
        if _on_paper_s(kind, size_bytes, wiring) < price.seconds:
            other = _price_wired(call, wiring, cluster.nccl_algo or "")
            price = min(price, other, key=lambda each: each.seconds)
    return price


# Large enough to use every channel that a communicator opens.
_LARGE_BYTES = 256 * 2**20


# Until 2.22 a channel connects at once to its ring predecessor, its tree parent and one tree
# child; since then to what is used.
_EAGER_CONNECTIONS, _LAZY_SINCE = 3, (2, 22, 0)


def open_connections(
    communicators: Iterable[Communicator], peers: Mapping[str, int], gpu: Gpu, cluster: Cluster
) -> int:
    """Connections that a rank's NCCL has opened: of the channels of each communicator, and to so
    many single ``peers`` as it sends to and receives from, by a communicator's name, as far as
    they are in its node."""
    eager = parse_version(cluster.nccl_version) < _LAZY_SINCE
    each_channel = _EAGER_CONNECTIONS if eager else 1
    opened = 0
    for each in communicators:
        opened += _channels(each, gpu, cluster) * each_channel
        if each.name in peers:
            wiring = wiring_of(each, gpu, cluster)
            single = min(peers[each.name], wiring.ranks_per_node - 1)
            opened += single * p2p.channels_per_connected_peer(wiring)
    return opened


@functools.lru_cache(maxsize=8192)
def _channels(communicator: Communicator, gpu: Gpu, cluster: Cluster) -> int:
    return _white_box(_Call("all_reduce", _LARGE_BYTES, communicator, gpu, cluster)).channels


def _on_paper_s(kind: str, size_bytes: int, wiring: Wiring) -> float:
    """Seconds that the least bytes any algorithm sends out of a node take its NICs."""
    if kind == "all_to_all":
        least = (wiring.ranks - wiring.ranks_per_node) / wiring.ranks * wiring.ranks_per_node
    else:
        least = 1.0 if kind in ("all_reduce", "broadcast", "reduce") else 1 - 1 / wiring.ranks
    return least * size_bytes / (1e9 * wiring.nics_gbs)


@dataclass(frozen=True)
class _Call:
    """One collective to price, as ``price_collective`` takes it."""

    kind: str
    size_bytes: int
    communicator: Communicator
    gpu: Gpu
    cluster: Cluster
    dtype: str = "bf16"

    @property
    def wiring(self) -> Wiring:
        return wiring_of(self.communicator, self.gpu, self.cluster)


def _white_box(call: _Call) -> CollectivePrice:
    return _forced(call, call.cluster.nccl_algo or "")


def _least_s(call: _Call) -> float:
    """What the same call takes for next to nothing."""
    return _white_box(replace(call, size_bytes=1)).seconds


def _as_measured(price: CollectivePrice, call: _Call) -> CollectivePrice:
    """The white-box price put right by the cluster's own measurements (``measured.py``)."""
    wiring, gpu, cluster = call.wiring, call.gpu, call.cluster
    servers = max(cluster.domain, cluster.gpus_per_node) // cluster.gpus_per_node
    rows = [
        row for row in rows_of(call.kind, cluster) if (row.nodes > servers) == wiring.multi_node
    ]
    if not rows:
        return price
    # Siblings fill the nodes between a communicator's own.
    reach = max(wiring.nodes, call.communicator.reach) * servers
    by_nodes = {nodes: list(each) for nodes, each in groupby(rows, lambda row: row.nodes)}
    if not wiring.multi_node:
        ranks, per_node = call.communicator.size, cluster.gpus_per_node
        like = min((row.ranks(per_node) for row in rows), key=lambda n: abs(math.log(n / ranks)))
        told = [row for row in rows if row.ranks(per_node) == like]
        seconds = _by_sizes(call, price, told)
    elif sized := {nodes: told for nodes, told in by_nodes.items() if len(told) > 1}:
        points = [(n, _by_sizes(call, price, told)) for n, told in sized.items()]
        seconds = interpolated(points, reach)
    else:
        latency_us = _latency_us(call)
        points = [(row.nodes, _wire_gbs(row, gpu, cluster)) for row in rows]
        whole = wiring_of(_inside(rows[0].nodes * cluster.gpus_per_node, cluster), gpu, cluster)
        share = _bus_limit_gbs(wiring) / _bus_limit_gbs(whole)
        sent = call.size_bytes * bus_factor(call.kind, wiring.ranks)
        if call.kind == "all_to_all":
            # Every rank sends over its own share of the NICs, and only what leaves its node.
            share = wiring.nics_gbs / wiring.ranks_per_node * whole.ranks_per_node / whole.nics_gbs
            sent = call.size_bytes * (1 - wiring.ranks_per_node / wiring.ranks)
        rate_gbs = interpolated(points, reach) * share
        seconds = (latency_us + sent / (1e3 * rate_gbs)) * 1e-6
    return replace(
        price,
        seconds=seconds,
        evidence=Evidence.FITTED,
        wire_bytes_per_s=price.wire_bytes_per_s * price.seconds / seconds,
    )


def _bus_limit_gbs(wiring: Wiring) -> float:
    """Bus bandwidth on paper: a node's NICs', or less where one GPU's NVLink carries less (of an
    NVL72's 72 NICs a quarter), or its PCIe."""
    inside_gbs = wiring.nvlink_peak_gbs if wiring.link == "nvlink" else wiring.link_gbs
    return min(wiring.nics_gbs, inside_gbs if wiring.ranks_per_node > 1 else math.inf)


def _by_sizes(call: _Call, price: CollectivePrice, told: Sequence[MeasuredCollective]) -> float:
    """Seconds by the sizes that some GPUs were measured at, smallest first."""
    own = Figure(call.size_bytes, _least_s(call), price.seconds, 0.0)
    return corrected_s(own, [_figure(row, call.gpu, call.cluster) for row in told])


@functools.lru_cache(maxsize=4096)
def _figure(row: MeasuredCollective, gpu: Gpu, cluster: Cluster) -> Figure:
    """A measurement beside what the model says of it."""
    communicator = _inside(row.ranks(cluster.gpus_per_node), cluster)
    ran = _Call(row.kind, row.bytes, communicator, gpu, cluster)
    taken_s = _taken_us(row, cluster) * 1e-6
    return Figure(row.bytes, _least_s(ran), _white_box(ran).seconds, taken_s)


def _taken_us(row: MeasuredCollective, cluster: Cluster) -> float:
    """Microseconds of an undisturbed call; in the mean on the most nodes measured."""
    most = 1 < row.nodes == max(each.nodes for each in cluster.measured)
    return measured_us(row, cluster.gpus_per_node) * (row.high_gbs / row.bus_gbs if most else 1.0)


def _latency_us(call: _Call) -> float:
    """What of a call between nodes does not grow with its size: the white-box model's, or the
    ring's hops as measured, whose handshake messages below the eager size pay in part."""
    ranks, cluster = call.communicator.size, call.cluster
    handshake = min(1.0, call.size_bytes / ranks / transport(cluster.fabric).eager_bytes)
    hops_us = hop_us(call.kind, cluster) * ring_hops(call.kind, ranks) * handshake
    return max(_least_s(call) * 1e6, hops_us)


def _wire_gbs(row: MeasuredCollective, gpu: Gpu, cluster: Cluster) -> float:
    """Bus bandwidth of a measurement once its latency is taken out."""
    members = _inside(row.nodes * cluster.gpus_per_node, cluster)
    call = _Call(row.kind, row.bytes, members, gpu, cluster)
    wire_us = measured_us(row, cluster.gpus_per_node) - _latency_us(call)
    if row.nodes == max(each.nodes for each in cluster.measured):
        wire_us *= row.high_gbs / row.bus_gbs
    if wire_us <= 0:
        return row.high_gbs
    ranks, inside = call.communicator.size, call.communicator.ranks_per_node
    factor = bus_factor(row.kind, ranks)
    if row.kind == "all_to_all":
        factor = 1 - inside / ranks
    return row.bytes * factor / (1e3 * wire_us)


def _inside(ranks: int, cluster: Cluster) -> Communicator:
    """As many GPUs, NVLink domains filled one after another, evenly."""
    domains, servers = (
        next(each for each in range(math.ceil(ranks / most), ranks + 1) if ranks % each == 0)
        for most in (cluster.domain, max(cluster.domain, cluster.gpus_per_node))
    )
    return Communicator("measured", ranks, ranks // domains, domains, servers=servers)


def price_forced(
    kind: str,
    size_bytes: int,
    communicator: Communicator,
    gpu: Gpu,
    cluster: Cluster,
    algorithm: str,
    dtype: str = "bf16",
) -> CollectivePrice:
    """``price_collective`` with NCCL held to one algorithm, as NCCL_ALGO does."""
    return _forced(_Call(kind, size_bytes, communicator, gpu, cluster, dtype), algorithm)


def _forced(call: _Call, algorithm: str) -> CollectivePrice:
    require_choice("collective.kind", call.kind, KINDS)
    require_positive("collective.bytes", call.size_bytes, allow_zero=True)
    if call.communicator.size <= 1 or call.size_bytes == 0:
        return _FREE
    return _price_wired(call, call.wiring, algorithm)


def _price_wired(call: _Call, wiring: Wiring, algorithm: str) -> CollectivePrice:
    """``price_forced`` of a call that sends something to somebody."""
    kind, size_bytes = call.kind, call.size_bytes
    if kind == "all_to_all":
        return _price_all_to_all(size_bytes, wiring)
    if call.dtype == "fp8" and kind in ("all_reduce", "reduce_scatter"):
        wiring = replace(wiring, multicast=False, sharp=False)
    option = choose(kind, size_bytes, wiring, algorithm)
    node = node_coefficients(_hardware(wiring), option.algorithm, option.protocol)
    time_us = weighted_us(execution.node_terms(kind, size_bytes, option, wiring), node)
    # The two rooted collectives were measured on one machine only.
    fitted = _measured(wiring, node) and kind not in ("broadcast", "reduce")
    if wiring.multi_node:
        net = net_coefficients(wiring.fabric, option.algorithm, option.protocol)
        counted = execution.net_terms(kind, size_bytes, option, wiring)
        time_us += weighted_us(execution.with_inner_hops(counted, node.terms), net)
        fitted = fitted and net.nodes >= wiring.nodes
    traffic = _Traffic(
        *_link_bytes(kind, size_bytes, option.algorithm, wiring),
        execution.memory_bytes(kind, size_bytes, option, wiring),
    )
    channels = channels_used(kind, size_bytes, option, wiring)
    own = wiring.architecture.collectives.channels_of_ranks
    found = own.get("nodes" if wiring.multi_node else str(wiring.ranks))
    if found:
        found = min(found, wiring.max_channels or found)
        channels = max(channels, round(channels * found / wiring.graphs.channels))
    return _price(time_us, traffic, channels, option.algorithm, option.protocol, fitted, wiring)


@functools.lru_cache(maxsize=65536)
def price_send_recv(
    size_bytes: int, crosses_nodes: bool, communicator: Communicator, gpu: Gpu, cluster: Cluster
) -> CollectivePrice:
    """Price one transfer to a neighbour, ``size_bytes`` sent (and as many received).

    ``crosses_nodes`` says whether the neighbour is outside the NVLink domain; the communicator's
    size decides NCCL's channels per peer and its siblings share the node's NICs.

    Raises:
        InputError: for a negative size or an unreadable NCCL version.
    """
    require_positive("send_recv.bytes", size_bytes, allow_zero=True)
    if communicator.size <= 1 or size_bytes == 0:
        return _FREE
    wiring = wiring_of(communicator, gpu, cluster)
    if crosses_nodes and cluster.num_nodes > 1 and wiring.multi_node:
        return _send_between_nodes(size_bytes, wiring, _own_share(wiring, cluster))
    # Outside the NVLink domain but in the same server: two islands, over PCIe.
    members = (1, 2) if crosses_nodes else (2, 1)
    pair = Communicator(communicator.name, 2, *members, servers=1)
    return _send_inside_node(size_bytes, communicator.size, wiring_of(pair, gpu, cluster))


def _own_share(wiring: Wiring, cluster: Cluster) -> float:
    """How much more NICs carry for a rank that sends to the next node than if all of its node did.

    One rank of each pipeline (or ring) in a node sends out at a time. Those of several lie side by
    side and share the NICs next to them.
    """
    senders = max(cluster.domain, cluster.gpus_per_node) // wiring.ranks_per_node
    nics = senders * min(1.0, cluster.nics_per_node / cluster.gpus_per_node)
    return math.ceil(nics) / nics


def _send_between_nodes(size_bytes: int, wiring: Wiring, own_share: float) -> CollectivePrice:
    node = node_coefficients(_hardware(wiring), "alltoall", "simple")
    net = net_coefficients(wiring.fabric, "alltoall", "simple")
    latency_us = node.terms["launch"] + net.terms["net_start"] + net.terms["net_peer"]
    time_us = latency_us + size_bytes / (1e3 * p2p.net_peer_gbs(wiring, own_share))
    channels = p2p.channels_per_net_peer(wiring)
    traffic = _Traffic(0.0, 0.0, 4.0 * size_bytes)
    fitted = wiring.fabric == p2p.MEASURED_FABRIC and not wiring.unfitted
    price = _price(time_us, traffic, channels, "p2p", "simple", fitted, wiring)
    return replace(price, nic_bytes=float(size_bytes))


def _send_inside_node(size_bytes: int, ranks: int, wiring: Wiring) -> CollectivePrice:
    node = node_coefficients(_hardware(wiring), "alltoall", "simple")
    channels = p2p.local_channels_used(size_bytes, ranks, wiring)
    latency_us = node.terms["launch"] + node.terms["peer"]
    time_us = latency_us + size_bytes / (1e3 * p2p.local_peer_gbs(channels, wiring))
    nvlink_bytes = float(size_bytes) if wiring.link == "nvlink" else 0.0
    traffic = _Traffic(nvlink_bytes, 0.0, 4.0 * size_bytes)
    fitted = wiring.architecture.collectives.local_channels_measured and _measured(wiring, node)
    return _price(time_us, traffic, channels, "p2p", "simple", fitted, wiring)


def _price_all_to_all(size_bytes: int, wiring: Wiring) -> CollectivePrice:
    node_terms, net_terms = p2p.all_to_all_terms(size_bytes, wiring)
    node = node_coefficients(_hardware(wiring), "alltoall", "simple")
    time_us, fitted = weighted_us(node_terms, node), _measured(wiring, node)
    if wiring.multi_node:
        net = net_coefficients(wiring.fabric, "alltoall", "simple")
        time_us += weighted_us(net_terms, net)
        fitted = fitted and net.nodes >= wiring.nodes
    block = size_bytes / wiring.ranks
    traffic = _Traffic(
        block * (wiring.ranks_per_node - 1) if wiring.link == "nvlink" else 0.0,
        block * (wiring.ranks - wiring.ranks_per_node),
        4.0 * block * (wiring.ranks - 1),
    )
    channels = p2p.all_to_all_channels(size_bytes, wiring)
    return _price(time_us, traffic, channels, "alltoall", "simple", fitted, wiring)


# The largest NVLink domain and PCIe group among the measured.
_MEASURED_RANKS = {"nvlink": 8, "pci": 2}


def _measured(wiring: Wiring, node: Coefficients) -> bool:
    """Whether measurements of this kind of node stand behind its coefficients."""
    facts = wiring.architecture.collectives
    return (
        node.rows > 0
        and wiring.max_channels is None
        and wiring.ranks_per_node <= _MEASURED_RANKS[wiring.link]
        and wiring.compute_capability in facts.measured_capabilities
    )


def _hardware(wiring: Wiring) -> str:
    return wiring.architecture.collectives.coefficients_of if wiring.link == "nvlink" else "pci"


@dataclass(frozen=True)
class _Traffic:
    """Bytes of one rank: sent over NVLink, sent to the network, read and written in memory."""

    nvlink_bytes: float
    nic_bytes: float
    memory_bytes: float


def _link_bytes(kind: str, size_bytes: int, algorithm: str, wiring: Wiring) -> tuple[float, float]:
    """Bytes one rank sends over NVLink, and its share of what its node's NICs send."""
    ranks, inside = wiring.ranks, wiring.ranks_per_node
    if algorithm in ("tree", "nvls_tree"):
        passes = 1.0 if wiring.nodes == 2 else 2.0
    elif (wiring.multi_node and algorithm in ("nvls", *COLLNET)) or kind in (
        "broadcast",
        "reduce",
    ):
        passes = 1.0
    else:
        passes = ring_steps(kind, ranks) / ranks
    nic_bytes = passes * size_bytes / inside if wiring.multi_node else 0.0
    if wiring.link == "pci" or inside == 1:
        return 0.0, nic_bytes
    if algorithm.startswith("nvls"):
        return size_bytes * (1 + 1 / inside), nic_bytes
    if algorithm in ("tree", *COLLNET):
        return 2.0 * size_bytes * (inside - 1) / inside, nic_bytes
    return size_bytes * passes, nic_bytes


def _price(
    time_us: float,
    traffic: _Traffic,
    channels: int,
    algorithm: str,
    protocol: str,
    fitted: bool,
    wiring: Wiring,
) -> CollectivePrice:
    """Bound the time by the links' rates on paper and turn bytes into a rate."""
    if traffic.nvlink_bytes:
        time_us = max(time_us, traffic.nvlink_bytes / (1e3 * wiring.nvlink_peak_gbs))
    if traffic.nic_bytes:
        node_bytes = traffic.nic_bytes * wiring.ranks_per_node
        time_us = max(time_us, node_bytes / (1e3 * wiring.nics_gbs))
    return CollectivePrice(
        seconds=time_us * 1e-6,
        channels=channels,
        algorithm=algorithm,
        protocol=protocol,
        evidence=Evidence.FITTED if fitted else Evidence.ESTIMATED,
        wire_bytes_per_s=traffic.memory_bytes / (time_us * 1e-6),
        nvlink_bytes=traffic.nvlink_bytes,
        nic_bytes=traffic.nic_bytes,
    )


SHARE_OF_NVLINK = 0.768
PEER_S = 2.65e-6
SMS = 32


def price_exchange(
    op: Collective, communicator: Communicator, gpu: Gpu, cluster: Cluster
) -> CollectivePrice:
    """Price one collective call: NCCL's, or an exchange by kernels that store tokens directly.

    NCCL copies a message through buffers, four passes over memory for each byte sent. HybridEP,
    the dispatcher of racks whose servers share an NVLink domain, has its kernels read a token once
    and store a copy in the memory of every GPU that hosts one of its experts (dispatch), or read
    the copies there, add them up and store the sum (combine). With ``n`` GPUs

        time = bytes (n - 1) / n / (share x NVLink rate) + peer x (n - 1)

    fitted to its own benchmark (deepseek-ai/DeepEP, branch hybrid-ep, docs/README_Hybrid-EP.md:
    GB200, 4096 tokens of 7168 in 16 bits to 8 experts each, 8 to 36 GPUs, 32 SMs, kernels alone;
    dispatch and combine, ten rates, all within 3.5 %). The SMs are those that Megatron-Bridge's
    benchmarks give it. Inside one server DeepEP's kernels copy through buffers as NCCL's do, and
    between domains the network decides: both are priced as NCCL's exchange."""
    price = price_collective(op.kind, op.bytes, communicator, gpu, cluster, op.dtype)
    racks = cluster.domain > cluster.gpus_per_node and communicator.nodes == 1
    if not (op.stored_bytes and racks and gpu.nvlink_bytes_per_s and price.seconds):
        return price
    sent = op.bytes * (1 - 1 / communicator.size)
    seconds = sent / (SHARE_OF_NVLINK * gpu.nvlink_bytes_per_s) + PEER_S * (communicator.size - 1)
    return replace(
        price, seconds=seconds, channels=SMS, wire_bytes_per_s=op.stored_bytes / seconds
    )
