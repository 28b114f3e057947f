"""Constants of NCCL's tuning model, per version and hardware generation, as data.

NCCL fills a latency and a bandwidth for every (collective, algorithm, protocol) when a
communicator is made, from the constants here; ``cost.py`` holds the formulas. Latencies are in
microseconds and bandwidths in GB/s (1e9 bytes/s) because NCCL prints them so, and the tests hold
these tables to figures that NCCL printed. Source: public NCCL releases 2.10 to 2.30.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import InputError

Version = tuple[int, int, int]
PROTOCOLS = ("ll", "ll128", "simple")

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
    if version < (2, 18, 0):
        return ByProtocol(0.0, 0.0, 40.0)
    return ByProtocol(0.0, 0.0, 23.0 if version < (2, 19, 0) else 0.0)


def hop_latency_us(version: Version, algorithm: str, protocol: str) -> ByLink:
    """Cost of one hop by link class. ``collnet_direct`` and ``collnet_chain`` need SHARP."""
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
    nvlink = 0.0 if version < (2, 19, 0) else 23.0 if version < (2, 21, 0) else 25.0
    if algorithm == "nvls":
        return ByLink(nvlink, 0.0, 18.0)
    tree_net = 19.0 if version < (2, 19, 0) else 14.0 if version < (2, 28, 7) else 20.9
    return ByLink(nvlink, 0.0, tree_net)


# Indexed by 1 node, 2 nodes, more than 2 nodes.
ByNodes = tuple[float, float, float]


def ll_total_cap_gbs(
    version: Version, generation: str, cpu: str, nodes: int, compute_capability: float
) -> float:
    """Ceiling of LL over all channels.

    One node asks the GPU; several ask the host: Intel and unknown vendors get Volta's row and
    AMD Ampere's.
    """
    rows: Mapping[str, ByNodes] = {
        "volta": (39.0, 39.0, 20.4),
        "ampere": (87.7, 22.5, 19.0),
        "hopper": (141.0, 45.0, 35.0) if version >= (2, 21, 0) else (87.7, 22.5, 19.0),
        "blackwell": (282.0, 90.0, 70.0) if version >= (2, 25, 0) else (141.0, 45.0, 35.0),
    }
    if nodes == 1:
        row = rows["volta" if compute_capability < 8 else generation]
    else:
        row = rows["ampere" if cpu == "amd" else "volta"]
    return row[min(nodes, 3) - 1]


def ring_ll128_channel_cap_gbs(version: Version, generation: str, nodes: int) -> float:
    if generation in ("volta", "ampere"):
        return 20.0
    if generation == "hopper" or version < (2, 25, 0):
        return 36.7
    if version < (2, 28, 9):
        row: ByNodes = (73.4, 73.4, 73.4)
    elif version < (2, 29, 0):
        row = (73.4, 34.6, 73.4)
    elif version < (2, 29, 7):
        row = (34.5, 34.6, 34.5)
    else:
        row = (40.0, 40.0, 40.0)
    return row[min(nodes, 3) - 1]


def tree_ll128_channel_cap_gbs(version: Version, generation: str, nodes: int) -> float:
    if generation in ("volta", "ampere"):
        return 20.0
    row: ByNodes = (36.7, 36.7, 29.0)
    if generation == "blackwell" and version >= (2, 25, 0):
        row = (73.4, 73.4, 58.0) if version < (2, 28, 0) else (55.6, 31.67, 20.0)
    return row[min(nodes, 3) - 1]


def tree_channel_cap_gbs(version: Version, generation: str, nodes: int) -> float:
    rows: Mapping[str, ByNodes] = {
        "volta": (26.5, 18.5, 10.0),
        "ampere": (24.0, 23.6, 17.8),
        "hopper": (38.7, 41.4, 36.0 if version >= (2, 18, 3) else 33.0),
        "blackwell": (77.4, 82.8, 72.0) if version < (2, 28, 0) else (70.0, 42.8, 24.0),
    }
    if generation == "blackwell" and version < (2, 25, 0):
        generation = "hopper"
    return rows[generation][min(nodes, 3) - 1]


def nvls_tree_channel_cap_gbs(version: Version, generation: str, nodes: int) -> float:
    """Cap used from 2.28 on; only communicators over several nodes have an NVLSTree."""
    two_nodes, more = (57.7, 45.5)
    if generation == "blackwell":
        two_nodes = 96.0
        more = 43.1 if version < (2, 28, 9) else 43.8 if version < (2, 30, 0) else 80.0
    return two_nodes if nodes == 2 else more


def nvls_efficiency(generation: str) -> float:
    return 0.74 if generation == "blackwell" else 0.85


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


def nvlink_link_gbs(version: Version, generation: str, compute_capability: float) -> float:
    """NVLink speed per link as NCCL's topology model has it (below the wire's)."""
    if generation == "volta":
        return 20.0
    if generation == "ampere":
        if compute_capability > 8.0:
            return 12.0
        return 22.0 if version < (2, 18, 0) else 20.0
    if generation == "hopper":
        return 20.0 if version < (2, 20, 0) else 20.6
    return 40.0 if version < (2, 28, 0) else 40.1


_GENERIC_INTRA = (40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0)
_GENERIC_INTER = (
    *(48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0),
    *(6.0, 5.0, 4.0, 3.0, 2.4, 1.2, 0.24, 0.12),
)
_HOPPER_INTER = (
    *(48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0),
    *(2.4, 1.2, 0.24, 0.12),
)


def channel_speeds_gbs(version: Version, generation: str, multi_node: bool) -> tuple[float, ...]:
    """Per-channel speeds that the graph search tries, descending."""
    if generation in ("volta", "ampere"):
        return _GENERIC_INTER if multi_node else _GENERIC_INTRA
    if generation == "hopper" or version < (2, 25, 0):
        if multi_node:
            return _HOPPER_INTER
        if version < (2, 19, 0):
            return (60.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 6.0, 3.0)
        return (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0)
    if not multi_node:
        fine = (45.0,) if version >= (2, 29, 0) else ()
        return (90.0, 80.0, 70.0, 60.0, 50.0, *fine, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0)
    if version < (2, 28, 0):
        return _HOPPER_INTER
    first = (96.0, 86.0, 80.0) if version >= (2, 30, 0) else (96.0,)
    return (*first, *_HOPPER_INTER)


def max_channels(version: Version) -> int:
    return 64 if version >= (2, 25, 0) else 32
