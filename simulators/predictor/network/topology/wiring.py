"""From a cluster and its switches to a network."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError, require_positive
from trainscout.simulators.predictor.question.gpu import Gpu

from .fabric import SwitchFabric
from .network import KINDS, Ints, Network
from .routing import leaf_of

# Patterns of a quarter of a million GPUs are played in minutes, of ten million never.
MOST_GPUS = 2**18
MOST_LINKS = 2**24


@dataclass(frozen=True)
class _Tiers:
    """One plane's switches: how many, and the rate of each of their uplinks in bytes/s."""

    leaves: int
    leaves_per_pod: int
    spines: int = 0
    leaf_rate: float = 0.0
    cores: int = 0
    spine_rate: float = 0.0
    cables: int = 0
    cable_rate: float = 0.0

    @property
    def pods(self) -> int:
        return -(-self.leaves // self.leaves_per_pod)


def require_wirable(cluster: Cluster) -> None:
    """Refuse clusters of more GPUs than are wired one by one."""
    if cluster.num_gpus > MOST_GPUS:
        problem = f"makes {cluster.num_gpus:,} GPUs: too many to wire one by one"
        most = MOST_GPUS // cluster.gpus_per_node
        raise InputError("cluster.num_nodes", cluster.num_nodes, problem, f"at most {most}")


def build_network(cluster: Cluster, gpu: Gpu, fabric: SwitchFabric) -> Network:
    """Wire ``cluster`` as ``fabric`` says.

    Raises:
        InputError: when the declaration does not fit the cluster.
    """
    fabric.check()
    cluster.check()
    require_wirable(cluster)
    gpus, nics_per_node = cluster.num_gpus, cluster.nics_per_node
    nic_rate = cluster.nic_gbps * 1e9 / 8
    has_nvlink = gpu.nvlink_links > 0 and gpu.nvlink_bytes_per_s > 0
    domain = cluster.domain if has_nvlink else 1
    if fabric.rails == "only" and domain < cluster.gpus_per_node:
        raise InputError(
            "topology.rails", "only", "needs NVLink between all GPUs of a node", "none, optimised"
        )
    tiers = _tiers(cluster, fabric, nic_rate / fabric.planes)
    _check_ports(fabric, tiers)
    planes = fabric.planes
    count = {
        "nvlink": gpus if has_nvlink else 0,
        "pcie": gpus,
        "nic": cluster.num_nodes * nics_per_node * planes,
        "leaf": planes * tiers.leaves * tiers.spines,
        "spine": 0 if tiers.cables else planes * tiers.pods * tiers.spines * tiers.cores,
        "pod": planes * tiers.pods * (tiers.pods - 1) // 2 * tiers.cables,
    }
    rates = (
        *(gpu.nvlink_bytes_per_s, gpu.pcie_bytes_per_s, nic_rate / planes),
        *(tiers.leaf_rate, tiers.spine_rate, tiers.cable_rate),
    )
    first, total = _first(count)
    if total > MOST_LINKS:
        raise InputError("topology", fabric.name, f"has {total:,} links", f"at most {MOST_LINKS}")
    nics_of_a_gpu = max(1, nics_per_node // cluster.gpus_per_node)
    network = Network(
        fabric=fabric,
        gpus=gpus,
        gpus_per_node=cluster.gpus_per_node,
        nics_per_node=nics_per_node,
        domain=domain,
        leaves=tiers.leaves,
        leaves_per_pod=tiers.leaves_per_pod,
        spines=tiers.spines,
        cores=tiers.cores,
        cables=tiers.cables,
        # With all of a node behind NVLink only traffic to other nodes is on PCIe.
        pcie_limits=domain < cluster.gpus_per_node
        or nics_of_a_gpu * nic_rate > gpu.pcie_bytes_per_s,
        first=first,
        count=count,
        rate_bytes_per_s=np.repeat(rates, [2 * count[kind] for kind in KINDS]),
        alive=np.ones(total, dtype=np.bool_),
    )
    # Names of links are those of single cables.
    single = replace(network, fabric=replace(fabric, routing="ecmp"))
    for name, share in fabric.link_health.items():
        links = links_named(single, name)
        if share == 0 and name.startswith("gpu"):
            raise InputError(
                f"topology.link_health.{name}", 0, "cannot fail: no way around", "0 < share <= 1"
            )
        network.rate_bytes_per_s[links] *= share
        network.alive[links] &= share > 0
    return _pooled(network) if network.pooled else network


def _tiers(cluster: Cluster, fabric: SwitchFabric, port_rate: float) -> _Tiers:
    groups = -(-cluster.num_nodes // fabric.nics_per_leaf)
    leaves = cluster.nics_per_node * groups
    if fabric.rails == "none":
        leaves = -(-cluster.num_nodes * cluster.nics_per_node // fabric.nics_per_leaf)
    leaves_per_pod = leaves
    if fabric.rails == "only":
        leaves_per_pod = groups
    elif fabric.tiers == 3 and fabric.leaves_per_pod is not None:
        leaves_per_pod = fabric.leaves_per_pod
    tiers = _Tiers(leaves, max(1, leaves_per_pod))
    if not leaves or fabric.tiers == 1:
        return tiers
    # Gb/s in and out of one switch decide how many uplinks it has.
    ratio = fabric.oversubscription or cluster.oversubscription or 1.0
    uplink = port_rate
    if fabric.uplink_gbps is not None:
        uplink = fabric.uplink_gbps * 1e9 / 8
    spines, leaf_rate = _uplinks(fabric.nics_per_leaf * port_rate, ratio, uplink)
    tiers = replace(tiers, spines=spines, leaf_rate=leaf_rate)
    if fabric.tiers == 2:
        return tiers
    entering = leaves_per_pod * leaf_rate
    cores, spine_rate = _uplinks(entering, fabric.pod_oversubscription, uplink)
    tiers = replace(tiers, cores=cores, spine_rate=spine_rate)
    others = tiers.pods - 1
    if not others:
        # Nothing is above a pod that is alone.
        return replace(tiers, cores=0)
    if fabric.pods_joined == "cores":
        return tiers
    # As many cables to every other pod; what does not come out even goes into their rate.
    cables = spines * cores // others
    if not cables:
        problem = f"leaves {spines * cores} cables to {others} other pods"
        raise InputError("topology.leaves_per_pod", leaves_per_pod, problem, "larger pods")
    rate = spines * cores * spine_rate / (cables * others)
    return replace(tiers, cables=cables, cable_rate=rate)


def _check_ports(fabric: SwitchFabric, tiers: _Tiers) -> None:
    """Refuse switches that would need more ports than the largest has."""
    most = fabric.switch_ports
    if most is None:
        return
    needed = {
        "topology.nics_per_leaf": (fabric.nics_per_leaf, fabric.nics_per_leaf + tiers.spines)
    }
    if tiers.spines:
        below = min(tiers.leaves, tiers.leaves_per_pod)
        needed["topology.leaves_per_pod"] = (below, below + tiers.cores)
    if tiers.cores and not tiers.cables:
        needed["topology.tiers"] = (fabric.tiers, tiers.pods)
    for field, (value, ports) in needed.items():
        if ports > most:
            switch = {"nics_per_leaf": "leaf", "leaves_per_pod": "spine", "tiers": "core"}
            which = switch[field.removeprefix("topology.")]
            problem = f"needs {which} switches of {ports} ports"
            raise InputError(field, value, problem, f"at most {most}")


def _uplinks(entering: float, ratio: float, wanted: float) -> tuple[int, float]:
    """Uplinks of a switch and the rate of each, for an exact ratio of in to out."""
    require_positive("cluster.nic_gbps", entering)
    links = max(1, round(entering / (ratio * wanted)))
    return links, entering / (ratio * links)


def _first(count: dict[str, int]) -> tuple[dict[str, int], int]:
    """Number of the first link of every kind, and how many links there are."""
    first: dict[str, int] = {}
    total = 0
    for kind in KINDS:
        first[kind] = total
        total += 2 * count[kind]
    return first, total


def _pooled(network: Network) -> Network:
    """Every switch's cables to the tier above (every two pods' cables) as one link."""
    into = {"leaf": network.spines, "spine": network.spines * network.cores, "pod": network.cables}
    count = dict(network.count)
    rates = []
    for kind in KINDS:
        begin = network.first[kind]
        links = network.rate_bytes_per_s[begin : begin + 2 * network.count[kind]]
        if kind in into and count[kind]:
            count[kind] //= into[kind]
            links = links.reshape(-1, into[kind]).sum(axis=1)
        rates.append(links)
    first, _ = _first(count)
    rate = np.concatenate(rates)
    return replace(
        network,
        spines=min(1, network.spines),
        cores=max(1, network.pods - 1) if network.cables else min(1, network.cores),
        cables=min(1, network.cables),
        first=first,
        count=count,
        rate_bytes_per_s=rate,
        alive=rate > 0,
    )


_SWITCH = re.compile(r"(leaf|spine|core)(\d+)")


def links_named(network: Network, name: str) -> Ints:
    """Both directions of a cable (``leaf0-spine3``), or of every cable of a switch (``spine3``).

    Raises:
        InputError: when the network has no such cable or switch.
    """
    match = _SWITCH.fullmatch(name)
    if match is None:
        return np.array(network.links_named(name))
    kind, number = match[1], int(match[2])
    counts = {
        "leaf": network.planes * network.leaves,
        "spine": network.planes * network.pods * network.spines,
        "core": network.planes * network.spines * network.cores if network.count["spine"] else 0,
    }
    if number >= counts[kind]:
        allowed = f"{kind}0 to {kind}{counts[kind] - 1}" if counts[kind] else "no such switch here"
        share = network.fabric.link_health.get(name, name)
        raise InputError(f"topology.link_health.{name}", share, "is not in this cluster", allowed)
    cables = {"leaf": _leaf_cables, "spine": _spine_cables, "core": _core_cables}[kind]
    found = cables(network, number)
    return np.concatenate(
        [network.up(kind) + at for kind, at in found]
        + [network.down(kind) + at for kind, at in found]
    )


def _leaf_cables(network: Network, leaf: int) -> list[tuple[str, Ints]]:
    plane, own = divmod(leaf, network.leaves)
    nics = np.arange(network.count["nic"] // network.planes)
    plugged = nics[leaf_of(network, nics) == own] * network.planes + plane
    return [("nic", plugged), ("leaf", leaf * network.spines + np.arange(network.spines))]


def _spine_cables(network: Network, spine: int) -> list[tuple[str, Ints]]:
    pod, place = divmod(spine, network.spines)
    plane, own = divmod(pod, network.pods)
    leaves = np.arange(network.leaves)
    leaves = plane * network.leaves + leaves[leaves // network.leaves_per_pod == own]
    below = ("leaf", leaves * network.spines + place)
    if not network.cables:
        return [below, ("spine", spine * network.cores + np.arange(network.cores))]
    others = [each for each in range(network.pods) if each != own]
    other, nth = (each.ravel() for each in np.meshgrid(others, np.arange(network.cables)))
    other = plane * network.pods + other
    mine = network.cable_spine(pod, other, nth) == place
    first, second = network.up("pod"), network.down("pod")
    cables = network.cable(pod, other[mine], nth[mine])
    return [below, ("pod", np.where(cables < second, cables - first, cables - second))]


def _core_cables(network: Network, core: int) -> list[tuple[str, Ints]]:
    group, place = divmod(core, network.cores)
    plane, own = divmod(group, network.spines)
    pods = plane * network.pods + np.arange(network.pods)
    return [("spine", (pods * network.spines + own) * network.cores + place)]
