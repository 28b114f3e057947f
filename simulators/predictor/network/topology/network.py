"""A cluster's links: how many there are, how they are numbered, what each carries.

Every link is directed. ``up`` is away from the GPU. The numbers run through the kinds in the
order of ``KINDS``, each first up, then down:

- ``nvlink``: a GPU's ports into its NVLink domain, which is taken as one non-blocking switch.
  In a mesh (no NVSwitch) a GPU's ports are shared by all its peers in the same way.
- ``pcie``: a GPU's PCIe slot.
- ``nic``: a NIC's cable to its leaf.
- ``leaf``: the cable from a leaf to one spine of its pod.
- ``spine``: the cable from a spine to one core of its group.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError, require_positive
from trainscout.simulators.predictor.question.gpu import Gpu

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

KINDS = ("nvlink", "pcie", "nic", "leaf", "spine")
_NAMES = {
    "nvlink": re.compile(r"gpu(\d+)-nvlink"),
    "pcie": re.compile(r"gpu(\d+)-pcie"),
    "nic": re.compile(r"node(\d+)-nic(\d+)"),
    "leaf": re.compile(r"leaf(\d+)-spine(\d+)"),
    "spine": re.compile(r"spine(\d+)-core(\d+)"),
}


@dataclass(frozen=True)
class Network:
    """A cluster wired up; build it with ``build_network``.

    GPUs, NICs, leaves, spines and cores are numbered through the whole cluster. ``spines`` and
    ``cores`` count one pod's spines (a leaf's uplinks) and one group's cores (a spine's uplinks:
    the k-th spines of all pods share group k). ``rate_bytes_per_s``, ``alive``: shape (links,).
    ``pcie_limits``: whether PCIe can ever be what slows traffic to other nodes; where it cannot,
    routes leave it out.
    """

    fabric: SwitchFabric
    gpus: int
    gpus_per_node: int
    nics_per_node: int
    domain: int
    leaves: int
    leaves_per_pod: int
    spines: int
    cores: int
    pcie_limits: bool
    first: dict[str, int]
    count: dict[str, int]
    rate_bytes_per_s: Floats
    alive: NDArray[np.bool_]

    @property
    def num_links(self) -> int:
        return len(self.rate_bytes_per_s)

    @property
    def delay_s(self) -> Floats:
        """What each link's cable and the switch behind it take, shape (links,)."""
        delays = np.full(self.num_links, self.fabric.hop_latency_s)
        delays[: self.first["nic"]] = 0.0
        return delays

    @property
    def pods(self) -> int:
        return -(-self.leaves // self.leaves_per_pod)

    @property
    def max_hops(self) -> int:
        """Most links that any route crosses."""
        switches = 2 * self.fabric.tiers
        return switches + (2 if self.forwards else 0) + (2 if self.pcie_limits else 0)

    @property
    def forwards(self) -> bool:
        """Whether traffic to another rail is first passed on over NVLink."""
        rails = self.fabric.rails
        return rails == "only" or (rails == "optimised" and self.fabric.forward_by_nvlink)

    def up(self, kind: str) -> int:
        """Number of the first upward link of a kind."""
        return self.first[kind]

    def down(self, kind: str) -> int:
        """Number of the first downward link of a kind."""
        return self.first[kind] + self.count[kind]

    def link_name(self, link: int) -> str:
        """``leaf0-spine3:up`` and the like.

        Raises:
            InputError: when there is no such link.
        """
        if not 0 <= link < self.num_links:
            raise InputError("link", link, "is not a link", f"0..{self.num_links - 1}")
        kind = next(each for each in reversed(KINDS) if self.first[each] <= link)
        direction, at = divmod(link - self.first[kind], self.count[kind])
        side = ":down" if direction else ":up"
        if kind in ("nvlink", "pcie"):
            return f"gpu{at}-{kind}{side}"
        if kind == "nic":
            node, nic = divmod(at, self.nics_per_node)
            return f"node{node}-nic{nic}{side}"
        if kind == "leaf":
            leaf, spine = divmod(at, self.spines)
            return f"leaf{leaf}-spine{leaf // self.leaves_per_pod * self.spines + spine}{side}"
        spine, core = divmod(at, self.cores)
        return f"spine{spine}-core{spine % self.spines * self.cores + core}{side}"

    def links_named(self, name: str) -> tuple[int, int]:
        """The upward and the downward link of a cable.

        Raises:
            InputError: when the name fits no cable of this network.
        """
        field = f"topology.link_health.{name}"
        for kind, pattern in _NAMES.items():
            match = pattern.fullmatch(name)
            if match:
                at = self._place(kind, [int(number) for number in match.groups()])
                if at is None:
                    raise InputError(field, name, "is not in this cluster")
                return self.up(kind) + at, self.down(kind) + at
        raise InputError(
            field,
            name,
            "is not the name of a link",
            "gpuG-nvlink, gpuG-pcie, nodeN-nicK, leafL-spineS, spineS-coreC",
        )

    def _place(self, kind: str, numbers: list[int]) -> int | None:
        if kind in ("nvlink", "pcie"):
            at = numbers[0]
        elif kind == "nic":
            at = numbers[0] * self.nics_per_node + numbers[1]
            if numbers[1] >= self.nics_per_node:
                return None
        else:
            across = self.spines if kind == "leaf" else self.cores
            if not across:
                return None
            group, port = divmod(numbers[1], across)
            # A leaf reaches the spines of its pod, a spine the cores of its group.
            own = numbers[0] // self.leaves_per_pod if kind == "leaf" else numbers[0] % self.spines
            if group != own:
                return None
            at = numbers[0] * across + port
        return at if at < self.count[kind] else None


def build_network(cluster: Cluster, gpu: Gpu, fabric: SwitchFabric) -> Network:
    """Wire ``cluster`` as ``fabric`` says.

    Raises:
        InputError: when the declaration does not fit the cluster.
    """
    fabric.check()
    cluster.check()
    gpus, nics_per_node = cluster.num_gpus, cluster.nics_per_node
    nics = cluster.num_nodes * nics_per_node
    nic_rate = cluster.nic_gbps * 1e9 / 8
    has_nvlink = gpu.nvlink_links > 0 and gpu.nvlink_bytes_per_s > 0
    domain = cluster.domain if has_nvlink else 1

    groups = -(-cluster.num_nodes // fabric.nics_per_leaf)
    leaves = -(-nics // fabric.nics_per_leaf) if fabric.rails == "none" else nics_per_node * groups
    leaves_per_pod = leaves
    if fabric.rails == "only":
        leaves_per_pod = groups
    elif fabric.tiers == 3 and fabric.leaves_per_pod is not None:
        leaves_per_pod = fabric.leaves_per_pod
    if fabric.rails == "only" and domain < cluster.gpus_per_node:
        raise InputError(
            "topology.rails", "only", "needs NVLink between all GPUs of a node", "none, optimised"
        )

    # Gb/s in and out of one switch decide how many uplinks it has.
    ratio = fabric.oversubscription or cluster.oversubscription
    uplink = nic_rate if fabric.uplink_gbps is None else fabric.uplink_gbps * 1e9 / 8
    spines = cores = 0
    leaf_rate = spine_rate = 0.0
    if leaves and fabric.tiers >= 2:
        spines, leaf_rate = _uplinks(fabric.nics_per_leaf * nic_rate, ratio, uplink)
    if leaves and fabric.tiers == 3:
        entering = leaves_per_pod * leaf_rate
        cores, spine_rate = _uplinks(entering, fabric.pod_oversubscription, uplink)

    pods = -(-leaves // leaves_per_pod) if leaves else 0
    nvlinks = gpus if has_nvlink else 0
    count = {
        "nvlink": nvlinks,
        "pcie": gpus,
        "nic": nics,
        "leaf": leaves * spines,
        "spine": pods * spines * cores,
    }
    rates = (gpu.nvlink_bytes_per_s, gpu.pcie_bytes_per_s, nic_rate, leaf_rate, spine_rate)
    first: dict[str, int] = {}
    total = 0
    for kind in KINDS:
        first[kind] = total
        total += 2 * count[kind]
    rate_bytes_per_s = np.repeat(rates, [2 * count[kind] for kind in KINDS])

    nics_of_a_gpu = max(1, nics_per_node // cluster.gpus_per_node)
    network = Network(
        fabric=fabric,
        gpus=gpus,
        gpus_per_node=cluster.gpus_per_node,
        nics_per_node=nics_per_node,
        domain=domain,
        leaves=leaves,
        leaves_per_pod=max(1, leaves_per_pod),
        spines=spines,
        cores=cores,
        # With all of a node behind NVLink only traffic to other nodes is on PCIe.
        pcie_limits=domain < cluster.gpus_per_node
        or nics_of_a_gpu * nic_rate > gpu.pcie_bytes_per_s,
        first=first,
        count=count,
        rate_bytes_per_s=rate_bytes_per_s,
        alive=np.ones(total, dtype=np.bool_),
    )
    for name, share in fabric.link_health.items():
        links = list(network.links_named(name))
        if share == 0 and name.startswith("gpu"):
            raise InputError(
                f"topology.link_health.{name}", 0, "cannot fail: no way around", "0 < share <= 1"
            )
        network.rate_bytes_per_s[links] *= share
        network.alive[links] = share > 0
    return network


def _uplinks(entering: float, ratio: float, wanted: float) -> tuple[int, float]:
    """Uplinks of a switch and the rate of each, for an exact ratio of in to out."""
    require_positive("cluster.nic_gbps", entering)
    links = max(1, round(entering / (ratio * wanted)))
    return links, entering / (ratio * links)
