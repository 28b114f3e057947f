"""Constants of NCCL's tuning model, per version; those of an architecture are in its declaration.

NCCL fills a latency and a bandwidth for every (collective, algorithm, protocol) when a
communicator is made, from the constants here; ``cost.py`` holds the formulas. Latencies are in
microseconds and bandwidths in GB/s (1e9 bytes/s) because NCCL prints them so, and the tests hold
these tables to figures that NCCL printed. Source: public NCCL releases 2.10 to 2.30.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainscout.simulators.predictor.question.architecture import ByRelease, CollectiveFacts
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu

Version = tuple[int, int, int]
PROTOCOLS = ("ll", "ll128", "simple")
# Algorithms that leave the sums between nodes to the network's switches; NVLS may, too.
COLLNET = ("collnet_direct", "collnet_chain")

# Minor releases between which the constants are known.
OLDEST, NEWEST = (2, 10), (2, 30)
# A version without its patch number means the last patch of that minor release.
_LAST_PATCH = 99


@functools.cache
def parse_version(text: str) -> Version:
    """``"2.22"`` or ``"2.22.3"`` as a comparable tuple.

    Releases outside 2.10 to 2.30 get the constants of the nearest one.

    Raises:
        InputError: when the text is not a version.
    """
    match = re.fullmatch(r"(\d+)\.(\d+)(?:\.(\d+))?(?:-\d+)?", text)
    if match is None:
        raise InputError("cluster.nccl_version", text, "is not a version", "major.minor[.patch]")
    major, minor, patch = match.groups()
    return int(major), int(minor), _LAST_PATCH if patch is None else int(patch)


@dataclass(frozen=True)
class ByProtocol:
    """One constant for each protocol."""

    ll: float
    ll128: float
    simple: float


@dataclass(frozen=True)
class ByLink:
    """One constant for each class of hop: NVLink, PCIe, network."""

    nvlink: float
    pci: float
    net: float

    def intra(self, link: str) -> float:
        return self.nvlink if link == "nvlink" else self.pci


def base_latency_us(version: Version, algorithm: str) -> ByProtocol:
    """Start cost of one call, before any hop."""
    if algorithm == "ring":
        return ByProtocol(3.6, 10.0, 8.4) if version < (2, 18, 0) else ByProtocol(6.6, 14.0, 8.4)
    if algorithm == "tree":
        if version < (2, 18, 0):
            return ByProtocol(4.4, 4.4, 0.0)
        return ByProtocol(6.8, 14.0, 0.0 if version < (2, 23, 0) else 8.4)
    if algorithm == "pat":
        return ByProtocol(8.0, 8.0, 8.0)
    if algorithm in COLLNET:
        return ByProtocol(0.0, 0.0, 0.0)
    if version < (2, 18, 0):
        return ByProtocol(0.0, 0.0, 40.0)
    return ByProtocol(0.0, 0.0, 23.0 if version < (2, 19, 0) else 0.0)


def hop_latency_us(version: Version, algorithm: str, protocol: str) -> ByLink:
    """Cost of one hop by link class."""
    old = version < (2, 18, 0)
    if algorithm == "tree":
        if protocol == "ll":
            return ByLink(0.52 if old else 0.6, 1.0, 5.0)
        if protocol == "ll128":
            return ByLink(1.25, 1.9, 8.5)
        if version >= (2, 23, 0):
            return ByLink(4.0, 4.0, 14.0)
        if (2, 18, 3) <= version < (2, 19, 0):
            return ByLink(4.0, 6.0, 14.0)
        return ByLink(28.0, 28.0, 28.0)
    if algorithm == "ring":
        if protocol == "ll":
            return ByLink(0.47 if old else 0.6, 1.0, 2.7)
        if protocol == "ll128":
            return ByLink(1.9, 2.5, 4.0)
        net = 28.0 if version < (2, 14, 0) else 9.6 if old else 14.0
        return ByLink(3.4, 5.7, net)
    if algorithm == "pat":
        return ByLink(4.0, 4.0, 14.0)
    if algorithm == "collnet_direct":
        return ByLink(8.0, 8.0, 10.7) if version < (2, 19, 0) else ByLink(3.7, 3.7, 31.0)
    if algorithm == "collnet_chain":
        return ByLink(4.75, 8.0, 14.0) if version < (2, 19, 0) else ByLink(2.8, 2.8, 30.0)
    nvlink = 0.0 if version < (2, 19, 0) else 23.0 if version < (2, 21, 0) else 25.0
    if algorithm == "nvls":
        return ByLink(nvlink, 0.0, 18.0)
    tree_net = 19.0 if version < (2, 19, 0) else 14.0 if version < (2, 28, 7) else 20.9
    return ByLink(nvlink, 0.0, tree_net)


# On several nodes the LL protocol's ceiling over all channels is the host's: of two, and of more.
# NCCL gives Intel and unknown vendors Volta's figures, AMD Ampere's.
_LL_CAP_GBS_OF_AMD_HOSTS = (22.5, 19.0)
_LL_CAP_GBS = (39.0, 20.4)


def since(table: ByRelease, version: Version) -> tuple[float, ...]:
    """The newest row that a release has; the oldest one for releases before it."""
    rows = iter(table.items())
    _, found = next(rows)
    for release, row in rows:
        if version < parse_version(release):
            break
        found = row
    return found


def of_nodes(table: ByRelease, version: Version, nodes: int) -> float:
    """The figure of a row that has one, or one for 1, 2 and more nodes (or for 2 and more);
    infinite for a table without rows."""
    if not table:
        return math.inf
    row = since(table, version)
    return row[max(0, min(nodes, 3) - 4 + len(row))]


def ll_total_cap_gbs(version: Version, facts: CollectiveFacts, cpu: str, nodes: int) -> float:
    """Ceiling of LL over all channels: one node asks the GPU, several ask the host."""
    if nodes == 1:
        return of_nodes(facts.ll_cap_gbs, version, nodes)
    return (_LL_CAP_GBS_OF_AMD_HOSTS if cpu == "amd" else _LL_CAP_GBS)[min(nodes, 3) - 2]


# Share of its bandwidth that a tree reaches at 64 B x 2**index; 1 beyond the last entry.
TREE_CORRECTION: Mapping[str, tuple[float, ...]] = {
    "ll": (
        *(1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5),
        *(0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0),
    ),
    "ll128": (
        *(1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6),
        *(0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0),
    ),
    "simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
    ),
}


def tree_correction(protocol: str, size_bytes: int) -> float:
    """Bandwidth correction of a tree all-reduce of ``size_bytes``."""
    index = (size_bytes >> 6).bit_length() - 1
    row = TREE_CORRECTION[protocol]
    return row[index] if 0 <= index < len(row) else 1.0


# NCCL rates a slot by width and generation; each generation doubles the first one's figure.
PCIE_GEN3_X16_GBS = 12.0


def link_gbs(version: Version, gpu: Gpu) -> float:
    """One link inside a node as the library's topology model has it (below the wire's rate)."""
    facts = gpu.architecture.collectives
    if (own := facts.link_gbs_of_capability.get(str(gpu.compute_capability))) is not None:
        return own
    if facts.link_gbs:
        return since(facts.link_gbs, version)[0]
    return facts.link_share * gpu.nvlink_bytes_per_s / max(1, gpu.nvlink_links) / 1e9


def channel_speeds_gbs(
    version: Version, facts: CollectiveFacts, multi_node: bool
) -> tuple[float, ...]:
    """Per-channel speeds that the graph search tries, descending."""
    return since(facts.net_channel_speeds_gbs if multi_node else facts.channel_speeds_gbs, version)


def max_channels(version: Version) -> int:
    return 64 if version >= (2, 25, 0) else 32
