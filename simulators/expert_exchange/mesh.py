"""Nodes that are all linked to each other, and how long one round of packets takes.

The round-based model: in each round a link carries as many whole packets as its bandwidth in
bytes per millisecond, one after the other, each prepared and then sent. A link belongs to two
nodes and both directions share it. A round takes as long when its links are not full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.moe.router import Counts, parameter
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_positive,
    require_whole,
)

UNLIMITED = 1 << 62
"""Packets of a round that nothing limits; as many still fit 64 bits when added up."""

MOST_NODES = 1024
"""What is sent is a table of nodes by nodes."""


@dataclass(frozen=True)
class Mesh:
    """Infrastructure. Delays in ms, bandwidths in bytes per ms, sizes in bytes."""

    num_nodes: int = parameter(8, "nodes of one GPU each")
    nodes_per_cluster: int | None = parameter(None, "nodes joined at intra_bw (default: all)")
    num_links: int = parameter(1, "parallel links between two nodes")
    base_delay: float = parameter(2.0, "ms that every round costs")
    initial_cpu_delay: float = parameter(0.0, "ms before the first round, once")
    intra_bw: float = parameter(100.0, "bytes per ms of a link inside a cluster")
    inter_bw: float | None = parameter(None, "bytes per ms of a link between clusters")
    packet_size: int = parameter(20, "bytes of a packet")
    packet_prep_delay: float = parameter(1.0, "ms to prepare a packet")
    parallelization_multiplier: float = parameter(
        0.0, "how much of preparing hides behind sending or the reverse, 0 (nothing) to 1 (all)"
    )
    round_robin_max_packets: int = parameter(1, "packets of a (source, destination) per turn")
    nic_rate: float | None = parameter(
        None, "bytes a node can send, and as many it can receive, per round (default: any)"
    )

    def check(self) -> None:
        """Refuse a mesh on which nothing would ever arrive."""
        require_whole("num_nodes", self.num_nodes, 2)
        if self.num_nodes > MOST_NODES:
            raise InputError("num_nodes", self.num_nodes, "is too many", f"2..{MOST_NODES}")
        for name in ("num_links", "packet_size", "round_robin_max_packets"):
            require_whole(name, getattr(self, name))
        for name in ("base_delay", "initial_cpu_delay", "packet_prep_delay"):
            require_positive(name, getattr(self, name), allow_zero=True)
        overlap = self.parallelization_multiplier
        if not 0 <= overlap <= 1:
            raise InputError("parallelization_multiplier", overlap, "is out of range", "0..1")
        for name in ("intra_bw", "inter_bw", "nic_rate"):
            self._require_room_for_a_packet(name)
        self._check_clusters()

    def _require_room_for_a_packet(self, name: str) -> None:
        limit = getattr(self, name)
        if limit is None:
            return
        require_positive(name, limit)
        if self.packet_size > limit:
            problem = f"is larger than {name}={limit:g}: no packet would ever be sent"
            raise InputError("packet_size", self.packet_size, problem, f"1..{math.floor(limit)}")

    def _check_clusters(self) -> None:
        size = self.nodes_per_cluster
        if size is None:
            if self.inter_bw is not None:
                raise InputError("inter_bw", self.inter_bw, "needs nodes_per_cluster")
            return
        require_whole("nodes_per_cluster", size)
        if self.num_nodes % size:
            allowed = f"a divisor of num_nodes={self.num_nodes}"
            raise InputError("nodes_per_cluster", size, "leaves an unequal cluster", allowed)
        if size < self.num_nodes and self.inter_bw is None:
            raise InputError("nodes_per_cluster", size, "makes several clusters: needs inter_bw")

    @property
    def one_cluster(self) -> bool:
        return self.nodes_per_cluster in (None, self.num_nodes)

    def round_time_ms(self) -> float:
        """Time of a round: that of the kind of link that is busy longest."""
        bandwidths = []
        if self.nodes_per_cluster != 1:
            bandwidths.append(self.intra_bw)
        if not self.one_cluster and self.inter_bw is not None:
            bandwidths.append(self.inter_bw)
        return self.base_delay + max(map(self._busy_ms, bandwidths))

    def _busy_ms(self, bandwidth: float) -> float:
        """Time of one link's packets of a round: ``floor(bandwidth / packet)`` of them.

        With overlap a packet is prepared while the one before is sent: all but one of the
        shorter phases hide, by the share that the multiplier says.
        """
        packets = math.floor(bandwidth / self.packet_size)
        sending = self.packet_size / bandwidth
        hidden = (packets - 1) * min(self.packet_prep_delay, sending)
        serial = packets * (self.packet_prep_delay + sending)
        return serial - self.parallelization_multiplier * hidden

    def link_packets(self) -> Counts:
        """Packets that all links of two nodes carry per round, both directions together,
        (num_nodes, num_nodes)."""
        nodes = np.arange(self.num_nodes)
        inside = self._link_packets(self.intra_bw)
        if self.one_cluster or self.inter_bw is None:
            return np.full((self.num_nodes, self.num_nodes), inside)
        cluster = nodes // (self.nodes_per_cluster or self.num_nodes)
        between = self._link_packets(self.inter_bw)
        return np.where(cluster[:, None] == cluster, inside, between)

    def _link_packets(self, bandwidth: float) -> int:
        return min(UNLIMITED, self.num_links * math.floor(bandwidth / self.packet_size))

    @property
    def nic_packets(self) -> int:
        """Packets a node can send, and as many it can receive, per round."""
        if self.nic_rate is None:
            return UNLIMITED
        return min(UNLIMITED, math.floor(self.nic_rate / self.packet_size))
