"""Point-to-point transfers and all-to-all: NCCL's channel rules and what its channels carry.

NCCL has no cost model for these. One p2p channel fills neither a fast NIC nor NVLink, so the
number of channels per peer, which NCCL lowers as the communicator grows, decides the speed of a
single transfer; an all-to-all has every peer in flight and is bound by the links.
"""

from __future__ import annotations

import math

from .execution import Terms, host_us
from .graph import Wiring

KIB = 1024
MIB = 1024 * KIB
# GB/s of 1, 2 and 4 network channels to one peer with the NIC to spare: sendrecv on public
# 10-node H100 results (NCCL 2.29.2, 400 Gb/s InfiniBand), 15.2, 24.9-26.3 and 39.7-43.2.
_NET_CHANNELS_GBS = {1: 15.2, 2: 25.5, 4: 41.5}
MEASURED_FABRIC = "infiniband"
# What the same runs reach of a NIC's nominal rate.
NIC_EFFICIENCY = 0.978
# NCCL 2.29 asks for one channel per so much NIC speed.
_NIC_GBS_PER_CHANNEL = 14
# A channel takes at most so many steps of a transfer before NCCL adds another.
_LOCAL_PART_BYTES = 16 * MIB
# Smallest part of a transfer that gets a channel of its own.
P2P_PART_BYTES = 64 * KIB


def p2p_channels(wiring: Wiring) -> int:
    """All p2p channels of the communicator: a power of two, at least the collectives'."""
    return int(2 ** math.ceil(math.log2(wiring.graphs.channels)))


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
    """Most channels to one peer of the same node."""
    if wiring.link == "pci":
        return min(2, p2p_channels(wiring))
    links = max(1, int(wiring.link_gbs / wiring.per_link_gbs + 1e-6))
    return min(int(2 ** math.ceil(math.log2(2 * links))), p2p_channels(wiring))


def channels_per_connected_peer(wiring: Wiring) -> int:
    """Channels that the first transfer to a peer of the same node connects: as many as any peer of
    the communicator is given (``ncclTopoComputeP2pChannels``)."""
    local = channels_per_local_peer(wiring)
    return min(local, channels_per_net_peer(wiring)) if wiring.multi_node else local


def local_channels_used(size_bytes: int, communicator_ranks: int, wiring: Wiring) -> int:
    """Channels of one transfer to a peer of the same node.

    NCCL leaves a channel for every rank of the communicator to talk to, and doubles the count
    while a channel's part of the message is long.
    """
    most = channels_per_local_peer(wiring)
    channels = most
    while channels > 1 and channels * communicator_ranks > p2p_channels(wiring):
        channels //= 2
    while channels < most and size_bytes > channels * _LOCAL_PART_BYTES:
        channels *= 2
    return channels


def local_peer_gbs(channels: int, wiring: Wiring) -> float:
    """Speed of one transfer over ``channels`` to a peer of the same node."""
    if wiring.link == "pci":
        return wiring.link_gbs
    return min(channels * wiring.architecture.collectives.local_channel_gbs, wiring.link_gbs)


def net_peer_gbs(wiring: Wiring, own_share: float = 1.0) -> float:
    """Speed of one transfer to a peer on another node, whose NICs carry ``own_share`` times what
    they do where all ranks of the node send at once."""
    per_peer = channels_per_net_peer(wiring)
    channels_gbs = _NET_CHANNELS_GBS.get(per_peer, max(_NET_CHANNELS_GBS.values()))
    nic_gbs = own_share * wiring.nics_gbs / wiring.ranks_per_node
    return min(channels_gbs, nic_gbs * NIC_EFFICIENCY)


def all_to_all_channels(size_bytes: int, wiring: Wiring) -> int:
    """Channels an all-to-all keeps busy: parts of at least 64 KiB per peer and channel."""
    peers = wiring.ranks - 1
    parts = math.ceil(size_bytes / wiring.ranks / P2P_PART_BYTES) * peers
    return min(p2p_channels(wiring), parts)


def all_to_all_terms(size_bytes: int, wiring: Wiring) -> tuple[Terms, Terms]:
    """Work of an all-to-all, all sends at once: inside the node, and between nodes.

    A rank sends ``size / ranks`` to each other rank; the NICs carry what leaves the node (PXN
    gathers it on the GPU that owns the NIC). The first 64 KiB to a peer go through one channel,
    in LL while they are short; only what is longer is spread over several.
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
        return {**node, "stream": stream, "host": host_us(stream, wiring)}, {}
    leaving = (ranks - wiring.ranks_per_node) * block * wiring.ranks_per_node
    leaving_us = leaving / (1e3 * wiring.exchange_share * wiring.nics_gbs)
    peer_us = block / (1e3 * net_peer_gbs(wiring))
    net = {
        "net_start": 1.0,
        "net_peer": float(ranks - wiring.ranks_per_node),
        "net_first_part": min(1.0, block / P2P_PART_BYTES),
        "net_stream": max(stream, leaving_us, peer_us),
    }
    return node, net
