"""What a transport lets NCCL do and what its measurements say, from ``conf/transport``.

One YAML file per transport: InfiniBand, RoCE, EFA, Slingshot, TCPX, Omni-Path and Ethernet
between nodes, NVLink and PCIe inside one. The ``declared`` part is documented behaviour of its
NCCL plugin and of the machines that carry it; the ``fitted`` part is written by
``trainscout collectives fit`` with command, provenance and residuals. They are read as
data: nothing here imports ``conf``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from trainscout.simulators.predictor.io.values import typed_value
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, read_yaml

DIRECTORY = DECLARATIONS / "transport"

PROTOCOLS = ("ll", "ll128", "simple")
# What published runs reached of a NIC that nobody tuned: 25 Gb/s whole (eight RTX 4090 a node), of
# 1 GbE 94 %; the next in the publications has 100.
CARRIED_GBPS = 25.0

FABRICS = ("infiniband", "roce", "efa", "slingshot", "tcpx", "omni_path", "ethernet")


@dataclass(frozen=True, eq=False, repr=False)
class Coefficients:
    """Microseconds per unit of each term of one (algorithm, protocol).

    ``rows`` is how many measurements stand behind them (0: borrowed or NCCL's own constants),
    ``nodes`` the most nodes among them.
    """

    terms: Mapping[str, float]
    rows: int
    nodes: int


@dataclass(frozen=True, eq=False, repr=False)
class Transport:
    """A transport between nodes.

    ``nic_latency_us`` is what its plugin tells NCCL's cost model about one hop. ``protocols``
    lists what NCCL may use, by GPU architecture, ``default`` for the others; ``algorithms`` what
    the platform's settings leave enabled. A message of at most ``eager_bytes`` is copied through
    the plugin's buffers at a cost that grows with it; a longer one costs the handshake,
    ``message_us``, unless its bytes take longer. ``through_host_share`` is the part of a PCIe x16
    slot's NCCL rate that a NIC gets where no switch joins it to its GPU and the bytes cross the
    host's root complex (0: a switch, or a host that does it at full rate), ``exchange_share`` what
    of that all-to-alls get, whose GPUs also reach each other's NICs there. ``nic_rate_share`` is
    the part of a NIC's own rate that its driver carries for NCCL, ``unvalidated_share`` what of it
    a job gets on a network that nobody validated (``Cluster.oversubscription`` is None) if that is
    more than what any host and switch carry. ``switched_nics`` is how many of a node's NICs the
    rings of one communicator use where switches join its GPUs (None: all near its GPUs).
    """

    name: str
    nic_latency_us: float
    protocols: dict[str, tuple[str, ...]]
    algorithms: tuple[str, ...]
    eager_bytes: float
    message_us: float
    through_host_share: float = 0.0
    exchange_share: float = 1.0
    nic_rate_share: float = 1.0
    unvalidated_share: float = 0.5
    switched_nics: int | None = None

    def unvalidated(self, nic_gbps: float) -> float:
        """The part of NICs of that rate, in Gb/s, that counts on a network nobody validated: what
        is lost there is lost by paths through hosts and by full switches, not by slow NICs."""
        return max(self.unvalidated_share, CARRIED_GBPS / max(CARRIED_GBPS, nic_gbps))

    def protocols_for(self, architecture: str) -> tuple[str, ...]:
        return self.protocols.get(architecture, self.protocols["default"])


def load(name: str) -> dict[str, Any]:
    """The document of one transport."""
    document: dict[str, Any] = read_yaml(DIRECTORY / f"{name}.yaml")
    return document


_document = functools.cache(load)


@functools.cache
def transport(fabric: str) -> Transport:
    """The declared part of a fabric; ``none`` is read as InfiniBand and never used."""
    name = "infiniband" if fabric == "none" else fabric
    declared = _document(name)["declared"]
    names = [field.name for field in dataclasses.fields(Transport)]
    stated = {each: value for each, value in declared.items() if each in names}
    return typed_value(Transport, "transport", {"name": name, **stated})


@functools.cache
def _fitted(name: str) -> dict[str, Coefficients]:
    return {
        key: Coefficients(entry["terms"], entry["rows"], entry["nodes"])
        for key, entry in _document(name)["fitted"]["coefficients"].items()
    }


@functools.cache
def left_out_error() -> float:
    """Relative error of collectives between nodes on a cluster that nothing was fitted to: each
    measured cluster's left out of the fit, as a mean over clusters and bands of sizes."""
    clusters = [each for name in FABRICS for each in _document(name)["fitted"]["errors"].values()]
    errors: list[float] = [band["left_out"] for bands in clusters for band in bands.values()]
    return mean(errors)


# Hops inside the node of what has none of its own are the ring's, an NVLSTree starts like NVLS.
INSIDE_ALGORITHM = {
    "tree": "ring",
    "pat": "ring",
    "nvls_tree": "nvls",
    "collnet_direct": "ring",
    "collnet_chain": "ring",
}


@functools.cache
def node_coefficients(hardware: str, algorithm: str, protocol: str) -> Coefficients:
    """Coefficients inside a node.

    ``hardware`` is an architecture with fits of its own (its links), ``pci``, or "" for links
    without fits: the median of each coefficient over the architectures that have some.
    """
    called = f"{INSIDE_ALGORITHM.get(algorithm, algorithm)}/{protocol}"
    if hardware == "pci":
        return _fitted("pcie")[called]
    fitted = _fitted("nvlink")
    if hardware:
        return fitted[f"{hardware}/{called}"]
    known = [entry.terms for key, entry in fitted.items() if key.partition("/")[2] == called]
    return Coefficients({term: median(each[term] for each in known) for term in known[0]}, 0, 0)


@functools.cache
def net_coefficients(fabric: str, algorithm: str, protocol: str) -> Coefficients:
    """Coefficients between nodes of one fabric."""
    return _fitted("infiniband" if fabric == "none" else fabric)[f"{algorithm}/{protocol}"]


def weighted_us(terms: Mapping[str, float], coefficients: Coefficients) -> float:
    """The time that counted work takes, in microseconds."""
    weights = coefficients.terms
    return sum(amount * weights[term] for term, amount in terms.items())
