"""Nodes of equal GPUs and what joins them, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import InputError, require_choice, require_positive
from .gpu import Gpu

NCCL_ALGOS = ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain")
# "1" lets NCCL use switches that sum for the communicators that come into being then.
COLLNET_VARIABLE = "NCCL_COLLNET_ENABLE"
FABRICS = ("infiniband", "roce", "efa", "slingshot", "tcpx", "omni_path", "ethernet", "none")
# Several times the largest cluster that anyone announced; what splits more is slow to list.
MOST_GPUS = 1 << 20
MEASURED_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class MeasuredCollective:
    """What GPUs of one node, or whole nodes of a cluster, reached at one collective and size."""

    kind: str
    """Which collective, named as in ``Collective``."""
    nodes: int
    """Whole nodes that took part."""
    bytes: int
    """NCCL's size."""
    bus_gbs: float
    """Bus bandwidth in GB/s (nccl-tests' ``busbw``), the mean where several were measured."""
    high_gbs: float
    """What it is where nothing disturbs it."""
    low_gbs: float
    """What it is at worst."""
    gpus: int = 0
    """GPUs of the node that took part, where it was one; 0: all of each node's."""

    def ranks(self, gpus_per_node: int) -> int:
        """GPUs that took part."""
        return self.gpus or self.nodes * gpus_per_node


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal GPUs and the fabric between them."""

    name: str
    """What results call it."""
    num_nodes: int
    """How many nodes."""
    gpus_per_node: int
    """GPUs in each."""
    nics_per_node: int
    """Network cards in each."""
    nic_gbps: float
    """One NIC's rate in Gb/s."""
    fabric: str
    """The network between nodes, which chooses the transport's fitted coefficients."""
    source: str
    """Where it was described."""
    nvlink_domain: int | None = None
    """The number of GPUs joined by NVLink (72 across the trays of an NVL72, 2 for bridged pairs);
    None means one node."""
    nvswitch: bool = True
    """NVLink goes through switches, so that every pair has its full rate; without, GPUs are wired
    to each other directly."""
    oversubscription: float | None = None
    """Divides what leaves a node (1: a full fabric, whose collectives reach what tuned ones do);
    None: nobody validated the network, and half of its NICs' rate is counted
    (docs/collectives.md)."""
    cpu: str = "intel"
    """The host CPU vendor that NCCL's tuning asks for."""
    nccl_version: str = "2.22"
    """Whose tuning tables choose algorithm and protocol."""
    nccl_algo: str | None = None
    """What NCCL is held to where it can follow, as by NCCL_ALGO (None: its own choice)."""
    nccl_max_channels: int | None = None
    """What NCCL is held to where it can follow, as by NCCL_MAX_NCHANNELS (None: its own
    choice)."""
    sharp: bool = False
    """InfiniBand switches that sum what data-parallel groups send through them (SHARP): NCCL's
    plugin is there and NCCL_COLLNET_ENABLE set for these groups, as by Megatron's ``--use-sharp``,
    since switches hold the trees of few."""
    measured_collectives: str | None = None
    """A CSV file of collectives measured on whole nodes of this cluster."""
    measured: tuple[MeasuredCollective, ...] = ()
    """What was read from it."""
    calibration: str | None = None
    """What `trainscout calibrate` wrote of these machines; `simulator.calibration` goes before
    it."""
    memory_reserve: float = 0.05
    """The fraction of GPU memory, and of a node's host memory, that a recipe must leave free to be
    called fitting."""
    host_memory_bytes: float | None = None
    """A node's host memory; None: that of the GPU's usual server, for as many GPUs."""
    host_memory_bytes_per_s: float | None = None
    """Peak of a node's host memory, all sockets together; None: as above."""

    def __hash__(self) -> int:
        return hash((self.name, self.num_nodes, self.nics_per_node, self.nic_gbps, self.nccl_algo))

    def check(self) -> None:
        require_positive("cluster.gpus_per_node", self.gpus_per_node, most=MOST_GPUS)
        most = MOST_GPUS // self.gpus_per_node
        require_positive("cluster.num_nodes", self.num_nodes, most=most)
        if self.oversubscription is not None and self.oversubscription < 1:
            field, allowed = "cluster.oversubscription", ">= 1 (2 counts half)"
            raise InputError(field, self.oversubscription, "is out of range", allowed)
        memory = ("host_memory_bytes", "host_memory_bytes_per_s")
        for name in (*memory, "nccl_max_channels", "nvlink_domain", "oversubscription"):
            if getattr(self, name) is not None:
                require_positive(f"cluster.{name}", getattr(self, name))
        for name in ("nics_per_node", "nic_gbps", "memory_reserve"):
            require_positive(f"cluster.{name}", getattr(self, name), allow_zero=True)
        require_choice("cluster.fabric", self.fabric, FABRICS)
        require_choice("cluster.cpu", self.cpu, ("intel", "amd", "arm"))
        if not re.fullmatch(r"\d+\.\d+(\.\d+)?(-\d+)?", self.nccl_version):
            field, value = "cluster.nccl_version", self.nccl_version
            raise InputError(field, value, "is not a version", "major.minor[.patch]")
        if self.sharp and self.fabric != "infiniband":
            problem = f"needs switches that sum, which {self.fabric} has none of"
            raise InputError("cluster.sharp", True, problem, "false, or cluster.fabric=infiniband")
        if self.nccl_algo is not None:
            require_choice("cluster.nccl_algo", self.nccl_algo, NCCL_ALGOS)
        if self.memory_reserve >= 1:
            field = "cluster.memory_reserve"
            raise InputError(field, self.memory_reserve, "is out of range", "0 <= x < 1")
        if (self.measured_collectives is None) != (not self.measured):
            problem, field = "is where measured collectives are read from", "measured_collectives"
            raise InputError(f"cluster.{field}", self.measured_collectives, problem, "a CSV file")
        if most := max(
            (row.gpus for row in self.measured if row.gpus > self.gpus_per_node), default=0
        ):
            problem = f"has a row of {most} GPUs of one node"
            field, allowed = "cluster.measured_collectives", f"at most {self.gpus_per_node}"
            raise InputError(field, self.measured_collectives, problem, allowed)
        if self.measured_between and self.oversubscription not in (None, 1):
            problem = "is in what was measured already (cluster.measured_collectives)"
            raise InputError("cluster.oversubscription", self.oversubscription, problem, "1")
        multi_domain = self.num_gpus > self.domain
        if multi_domain and self.num_nodes > 1 and not self.nics_per_node * self.nic_gbps:
            name, least = ("nic_gbps", "> 0") if self.nics_per_node else ("nics_per_node", ">= 1")
            raise InputError(
                f"cluster.{name}", getattr(self, name), "leaves nodes unconnected", least
            )

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def network_validated(self) -> bool:
        """Whether somebody says what its network gives."""
        return self.measured_between or self.oversubscription is not None

    @property
    def measured_between(self) -> bool:
        """Whether collectives were measured that leave an NVLink domain."""
        return any(
            row.nodes * self.gpus_per_node > self.domain and row.nodes > 1 for row in self.measured
        )

    @property
    def domain(self) -> int:
        """GPUs joined by NVLink."""
        return self.gpus_per_node if self.nvlink_domain is None else self.nvlink_domain


@dataclass(frozen=True)
class HostShare:
    """A GPU's share of its node's host, all GPUs of which do the same at once."""

    memory_bytes: float
    """Of the host's memory."""
    memory_bytes_per_s: float
    """Of the peak of the host's memory."""
    link_bytes_per_s: float
    """Peak per direction between both."""

    @classmethod
    def of(cls, gpu: Gpu, cluster: Cluster) -> HostShare:
        server, gpus = gpu.server, cluster.gpus_per_node
        usual = (server.host_memory_bytes, server.host_memory_bytes_per_s)
        declared = (cluster.host_memory_bytes, cluster.host_memory_bytes_per_s)
        memory_bytes, memory_bytes_per_s = (
            each / server.gpus_per_node if own is None else own / gpus
            for own, each in zip(declared, usual, strict=True)
        )
        return cls(memory_bytes, memory_bytes_per_s, gpu.host_bytes_per_s)
