"""What NCCL's topology search finds: channels and their speed for rings, trees and NVLS.

NCCL searches paths through the machine; here the search is reduced to its outcome, which on
symmetric nodes depends only on how much NVLink (or PCIe) each GPU has, how many NICs the node
has and how fast they are. The tests hold it to channel counts logged on public machines.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from trainscout.simulators.predictor.question.architecture import Architecture
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import Communicator

from . import tuning_tables as tables
from .transport import transport

GIGA = 1e9
# No machine that trains has slower NICs.
SLOWEST_NIC_GBPS = 50.0

# Links that a GPU of the 8-GPU hybrid cube mesh (DGX-1) has to the other members of a group of
# consecutive GPUs; in any other mesh every pair has the same number.
_CUBE_MESH_LINKS = {2: 1, 4: 4, 8: 6}


@dataclass(frozen=True)
class Wiring:
    """A communicator as NCCL's topology model sees it.

    ``ranks_per_node`` and ``nodes`` count *servers* (or whole NVL72 domains) the way NCCL does.
    ``link`` is ``nvlink`` (or what the architecture has in its place) or ``pci``; ``link_gbs``
    what one GPU can send to the other members of its node, ``per_link_gbs`` over one such link;
    ``nics`` of ``nic_gbs`` each serve the communicator's ranks on one node. ``nic_share`` is the
    fraction of them it really gets (siblings, oversubscription), which NCCL does not know of,
    ``exchange_share`` what of that an all-to-all gets, ``nvlink_peak_gbs`` one GPU's NVLink rate
    on paper. ``max_channels`` is what NCCL is held to (None: nothing). ``nvswitch``: GPUs of a
    node reach each other over switches; ``sharp``: those between nodes sum what it sends;
    ``through_host``: what GPUs of a node send each other is staged in the host's memory.
    """

    ranks: int
    nodes: int
    ranks_per_node: int
    version: tables.Version
    architecture: Architecture
    compute_capability: float
    cpu: str
    fabric: str
    link: str
    per_link_gbs: float
    link_gbs: float
    multicast: bool
    nics: int
    nic_gbs: float
    nic_share: float
    nvlink_peak_gbs: float
    max_channels: int | None = None
    nvswitch: bool = False
    sharp: bool = False
    exchange_share: float = 1.0
    through_host: bool = False

    def __hash__(self) -> int:
        return hash((self.ranks, self.nodes, self.nics, self.nic_gbs, self.nic_share))

    @functools.cached_property
    def multi_node(self) -> bool:
        return self.nodes > 1

    @functools.cached_property
    def graphs(self) -> Graphs:
        """Channels and speeds that NCCL's search settles on."""
        return _graphs(self)

    @property
    def unfitted(self) -> bool:
        """Whether no measurement of such links stands behind any coefficient."""
        return not self.architecture.collectives.coefficients_of

    @functools.cached_property
    def nics_gbs(self) -> float:
        """What the node's part of the communicator really gets from its NICs."""
        return self.nics * self.nic_gbs * self.nic_share


@dataclass(frozen=True)
class Graph:
    """Channels of one algorithm and GB/s of each, inside a node and between nodes."""

    channels: int
    intra_gbs: float
    inter_gbs: float


@dataclass(frozen=True)
class Graphs:
    """The graphs of one communicator. ``nvls`` is None without multicast hardware, ``collnet``
    where no switch sums between nodes or none joins the GPUs inside.

    ``channels``: collective channels (one SM each); ``nvls_channels`` those of NVLS kernels.
    """

    ring: Graph
    tree: Graph
    nvls: Graph | None
    channels: int
    nvls_channels: int
    collnet: Graph | None = None


@functools.lru_cache(maxsize=4096)
def wiring_of(communicator: Communicator, gpu: Gpu, cluster: Cluster) -> Wiring:
    """How ``communicator`` is wired on ``cluster``.

    NICs belong to GPUs: with at least one per GPU each rank brings its own (several are taken
    as one faster NIC), with fewer a node's ranks share ``ceil(ranks * nics / GPUs)``. Siblings
    are counted per NVLink domain and use its NICs at the same time: eight one-rank-per-node
    rings on a node of eight NICs have one each, on four NICs half of one. Oversubscription
    divides the share further.

    Raises:
        InputError: when the cluster's NCCL version cannot be read.
    """
    version, facts = tables.parse_version(cluster.nccl_version), gpu.architecture.collectives
    node_gpus = max(cluster.domain, cluster.gpus_per_node)
    ranks_per_node, nodes = communicator.ranks_per_node, communicator.nodes
    link = "nvlink" if gpu.nvlink_links > 0 else "pci"
    siblings = communicator.siblings
    if cluster.domain < cluster.gpus_per_node:
        # NVLink islands inside one server: NCCL counts servers and crosses PCIe between islands.
        if cluster.num_nodes == 1:
            ranks_per_node = communicator.size
        elif communicator.servers:
            ranks_per_node = communicator.size // communicator.servers
        elif ranks_per_node == cluster.domain:
            ranks_per_node = math.gcd(communicator.size, cluster.gpus_per_node)
        if ranks_per_node > communicator.ranks_per_node:
            link = "pci"
        nodes = communicator.size // ranks_per_node
        siblings = max(1, cluster.gpus_per_node // ranks_per_node)
    node_nics = cluster.nics_per_node * node_gpus / cluster.gpus_per_node
    nics_per_gpu = node_nics / node_gpus
    merged = max(1.0, nics_per_gpu)
    plugin = transport(cluster.fabric)
    nics = math.ceil(ranks_per_node * min(1.0, nics_per_gpu))
    if plugin.switched_nics is not None and cluster.nvswitch:
        nics = min(nics, plugin.switched_nics)
    nic_gbs = cluster.nic_gbps / 8
    wanted = nics * merged * siblings
    share = min(1.0, node_nics / wanted) if wanted else 0.0
    generations = round(math.log2(gpu.pcie_bytes_per_s / (16 * GIGA)))
    pcie_gbs = tables.PCIE_GEN3_X16_GBS * 2.0**generations
    share *= plugin.nic_rate_share
    through_host = plugin.through_host_share and nic_gbs and cluster.cpu != "arm"
    carried = plugin.through_host_share * pcie_gbs / nic_gbs if through_host else math.inf
    share *= min(1.0, carried)
    if cluster.oversubscription is not None:
        share /= cluster.oversubscription
    elif not cluster.network_validated:
        share *= plugin.unvalidated(cluster.nic_gbps)
    links = _links_to_members(ranks_per_node, gpu, cluster)
    per_link = tables.link_gbs(version, gpu)
    return Wiring(
        ranks=communicator.size,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        version=version,
        architecture=gpu.architecture,
        compute_capability=gpu.compute_capability,
        cpu=cluster.cpu,
        fabric=cluster.fabric,
        link=link,
        per_link_gbs=per_link,
        link_gbs=links * per_link if link == "nvlink" else pcie_gbs,
        multicast=cluster.nvswitch and link == "nvlink" and facts.multicast,
        nics=nics,
        nic_gbs=nic_gbs * merged,
        nic_share=share,
        nvlink_peak_gbs=gpu.nvlink_bytes_per_s / GIGA,
        max_channels=cluster.nccl_max_channels,
        nvswitch=cluster.nvswitch and link == "nvlink",
        sharp=cluster.sharp and nodes > 1 and communicator.collnet,
        through_host=link == "pci" and _staged(ranks_per_node, gpu, cluster),
        exchange_share=min(1.0, plugin.exchange_share * carried) / min(1.0, carried),
    )


@functools.lru_cache(maxsize=4096)
def slower_wirings(communicator: Communicator, gpu: Gpu, cluster: Cluster) -> tuple[Wiring, ...]:
    """``wiring_of`` the same nodes with NICs of half the rate, with half of the NICs, and so on:
    no network is taken to be slower than these, although NCCL, whose search then settles on fewer
    and faster channels and whose tuning on another protocol, now and then would be."""
    if communicator.nodes < 2:
        return ()
    rates, counts = [cluster.nic_gbps], [cluster.nics_per_node]
    while rates[-1] >= 2 * SLOWEST_NIC_GBPS:
        rates.append(rates[-1] / 2)
    while counts[-1] > 1 and counts[-1] % 2 == 0:
        counts.append(counts[-1] // 2)
    others = [(rate, counts[0]) for rate in rates[1:]]
    others += [(rate, count) for rate in reversed(rates) for count in counts[1:]]
    networks = (replace(cluster, nic_gbps=rate, nics_per_node=count) for rate, count in others)
    return tuple(wiring_of(communicator, gpu, network) for network in networks)


def _staged(ranks_per_node: int, gpu: Gpu, cluster: Cluster) -> bool:
    """Whether NCCL stages what crosses PCIe in host memory: where the driver knows no peers, and
    across any host but AMD's, whose root complexes it lets peers cross, from 2.23 on only of two
    (``ncclTopoCheckP2p``). A pair is taken to share a switch, more are not."""
    crosses = cluster.cpu == "amd" and tables.parse_version(cluster.nccl_version) < (2, 23)
    return gpu.pcie_staged or (ranks_per_node > 2 and not crosses)


def _links_to_members(ranks_per_node: int, gpu: Gpu, cluster: Cluster) -> float:
    """Links of one GPU that lead to the other members in its node."""
    links, domain = gpu.nvlink_links, cluster.domain
    if cluster.nvswitch or ranks_per_node <= 1 or domain <= 2:
        return float(links)
    if links % (domain - 1) == 0:
        return links / (domain - 1) * (ranks_per_node - 1)
    return float(min(links, _CUBE_MESH_LINKS.get(ranks_per_node, ranks_per_node - 1)))


def _graphs(wiring: Wiring) -> Graphs:
    cap, facts = tables.max_channels(wiring.version), wiring.architecture.collectives
    ring = _ring(wiring, cap // 2)
    tree = _tree(wiring, ring)
    channels = min(2 * ring.channels, cap)
    if wiring.multi_node and facts.doubles_few_channels and ring.intra_gbs > 45 and channels < 16:
        channels *= 2
    nvls_channels = facts.net_nvls_channels if wiring.multi_node else facts.nvls_channels
    nvls, collnet = _nvls(wiring), _collnet(wiring)
    if wiring.max_channels is None:
        return Graphs(ring, tree, nvls, channels, nvls_channels, collnet)
    most = wiring.max_channels
    return Graphs(
        _held(ring, most),
        _held(tree, most),
        nvls if nvls is None else _held(nvls, most),
        min(channels, most),
        min(nvls_channels, most),
        collnet if collnet is None else _held(collnet, most),
    )


def _held(graph: Graph, most: int) -> Graph:
    """Fewer channels of the same speed: NCCL lowers their number after its search."""
    return replace(graph, channels=min(graph.channels, most))


def _speeds(wiring: Wiring, multi_node: bool) -> tuple[float, ...]:
    facts = wiring.architecture.collectives
    return tables.channel_speeds_gbs(wiring.version, facts, multi_node)


def _ring(wiring: Wiring, most: int) -> Graph:
    """Best product of channels and speed, then NCCL's duplication of fast channels."""
    speeds = _speeds(wiring, wiring.multi_node)
    capacity = wiring.link_gbs if wiring.ranks_per_node > 1 else math.inf
    best_channels, best_speed = 0, 0.0
    for speed in speeds:
        if best_channels and speed < best_speed / 2:
            break
        fits = min(capacity / speed, most)
        if wiring.multi_node:
            fits = min(fits, wiring.nics * (wiring.nic_gbs // speed))
        if int(fits) * speed > best_channels * best_speed:
            best_channels, best_speed = int(fits), speed
    if not best_channels:
        # Slower than every candidate: one channel at whatever the link gives.
        best_channels, best_speed = 1, min(capacity, wiring.nic_gbs or math.inf)
    facts = wiring.architecture.collectives
    exempt = facts.exempts_slow_channels and best_speed < 50 and best_channels > 4
    if best_speed >= 25 and not exempt and 2 * best_channels <= most:
        best_channels, best_speed = 2 * best_channels, best_speed / 2
    return Graph(best_channels, best_speed, best_speed)


def _tree(wiring: Wiring, ring: Graph) -> Graph:
    """Trees reuse the rings' channels and raise their speed inside the node.

    A chain of n GPUs has n - 1 links, so it leaves room for n/(n-1) of the ring's traffic. NCCL
    stops raising at twice the speed between nodes.
    """
    if not wiring.multi_node:
        return ring
    limit = 2 * ring.inter_gbs
    ranks = wiring.ranks_per_node
    if ranks > 1:
        room = wiring.link_gbs * ranks / (ranks - 1) / ring.channels
        speeds = _speeds(wiring, True)
        fitting = next((speed for speed in speeds if speed <= room), ring.inter_gbs)
        limit = min(limit, max(fitting, ring.intra_gbs))
    return Graph(ring.channels, limit, ring.inter_gbs)


def _nvls(wiring: Wiring) -> Graph | None:
    """One head per GPU of the node; each head's speed is its part of the GPU's NVLink."""
    heads = min(wiring.ranks_per_node, 32)
    if not wiring.multicast or heads < 2:
        return None
    return _of_heads(heads, wiring)


def _collnet(wiring: Wiring) -> Graph | None:
    """A head for each NIC that the ranks have, with which all others exchange at once."""
    if not (wiring.sharp and wiring.nvswitch):
        return None
    return _of_heads(min(wiring.ranks_per_node, wiring.nics), wiring)


def _of_heads(heads: int, wiring: Wiring) -> Graph:
    """Heads that share a GPU's links, and a node's NICs, evenly."""
    speeds = _speeds(wiring, wiring.multi_node)
    room, nics_gbs = wiring.link_gbs / heads, wiring.nics * wiring.nic_gbs / heads
    if wiring.ranks_per_node == 1:
        room = nics_gbs
    intra = next((speed for speed in speeds if speed <= room), room)
    return Graph(heads, intra, min(intra, nics_gbs) if wiring.multi_node else intra)
