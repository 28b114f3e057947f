"""Point-to-point transfers: NCCL's channel rule per peer and what its channels carry.

NCCL has no cost model for these. Between nodes one p2p channel does not fill a fast NIC, so the
number of channels per peer, which NCCL lowers as the communicator grows, decides the speed.
"""

from __future__ import annotations

import math

from simulators.collectives.execution import P2P_PART_BYTES
from simulators.collectives.graph import Wiring, graphs_of
from simulators.collectives.tuning_tables import nvlink_link_gbs

# GB/s of 1, 2 and 4 network channels to one peer with the NIC to spare: sendrecv on public
# 10-node H100 results (NCCL 2.29.2, 400 Gb/s InfiniBand), 15.2, 24.9-26.3 and 39.7-43.2.
_NET_CHANNELS_GBS = {1: 15.2, 2: 25.5, 4: 41.5}
MEASURED_FABRIC = "infiniband"
# What the same runs reach of a NIC's nominal rate.
NIC_EFFICIENCY = 0.978
# NCCL 2.29 asks for one channel per so much NIC speed.
_NIC_GBS_PER_CHANNEL = 14


def p2p_channels(wiring: Wiring) -> int:
    """All p2p channels of the communicator: a power of two, at least the collectives'."""
    return int(2 ** math.ceil(math.log2(graphs_of(wiring).channels)))


def channels_per_net_peer(wiring: Wiring) -> int:
    """Channels to one peer on another node, by NCCL version and communicator size."""
    channels, ranks = p2p_channels(wiring), wiring.ranks
    if wiring.version >= (2, 29, 0):
        per_peer = max(1, math.ceil(wiring.nic_gbs / _NIC_GBS_PER_CHANNEL))
        per_peer = int(2 ** math.ceil(math.log2(per_peer)))
        while per_peer > 1 and per_peer * math.ceil(ranks / 8) > channels:
            per_peer //= 2
        return per_peer
    return 1 if 2 * ranks > 4 * channels else 2


def channels_per_local_peer(wiring: Wiring) -> int:
    """Channels to one peer of the same node."""
    if wiring.link == "pci":
        return min(2, p2p_channels(wiring))
    per_link = nvlink_link_gbs(wiring.version, wiring.generation, wiring.compute_capability)
    links = max(1, int(wiring.link_gbs / per_link + 1e-6))
    return min(int(2 ** math.ceil(math.log2(2 * links))), p2p_channels(wiring))


def all_to_all_channels(size_bytes: int, wiring: Wiring) -> int:
    """Channels an all-to-all keeps busy: parts of at least 64 KiB per peer and channel."""
    peers = wiring.ranks - 1
    parts = math.ceil(size_bytes / wiring.ranks / P2P_PART_BYTES) * peers
    return min(p2p_channels(wiring), parts)


def net_peer_gbs(wiring: Wiring) -> float:
    """Speed of one transfer to a peer on another node."""
    per_peer = channels_per_net_peer(wiring)
    channels_gbs = _NET_CHANNELS_GBS.get(per_peer, max(_NET_CHANNELS_GBS.values()))
    nic_gbs = wiring.nics_gbs / wiring.ranks_per_node * NIC_EFFICIENCY
    return min(channels_gbs, nic_gbs)
