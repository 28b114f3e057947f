"""What a fabric is built of: switches, ports and cables."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu

from .fabric import SwitchFabric
from .wiring import build_network


@dataclass(frozen=True)
class Parts:
    """Counts of a whole cluster; rates are sums over all of a kind, in Gb/s and one direction.

    Switches all have as many ports as a leaf, and each tier of a pod as few of them as have its
    cables: several that are played as one cable to each leaf are one with several.
    ``port_gbps`` are switch ports with a cable in them; ``cable_gbps`` all cables, those to NICs
    included.
    """

    nics: int
    leaves: int
    spines: int
    cores: int
    ports: int
    cables: int
    nic_gbps: float
    port_gbps: float
    cable_gbps: float

    @property
    def switches(self) -> int:
        return self.leaves + self.spines + self.cores


def parts(cluster: Cluster, gpu: Gpu, fabric: SwitchFabric) -> Parts:
    """What ``fabric`` takes on ``cluster``, whole.

    Raises:
        InputError: when the declaration does not fit the cluster.
    """
    # Routing and wear change no part.
    single = replace(fabric, link_health={}, routing="ecmp")
    network = build_network(cluster, gpu, single)
    counts = {kind: network.count[kind] for kind in ("nic", "leaf", "spine", "pod")}
    rates = network.rate_bytes_per_s * 8 / 1e9
    gbps = {
        kind: float(rates[network.up(kind) : network.up(kind) + count].sum())
        for kind, count in counts.items()
    }
    # A NIC's cable ends in one switch, any other in two.
    between = ("leaf", "spine", "pod")
    size = max(1, fabric.nics_per_leaf + network.spines)
    below = min(network.leaves, network.leaves_per_pod)
    spines = network.pods * -(-network.spines * (below + network.cores) // size)
    cores = -(-network.spines * network.cores * network.pods // size) if counts["spine"] else 0
    return Parts(
        nics=counts["nic"] // network.planes,
        leaves=network.leaves * network.planes,
        spines=spines * network.planes,
        cores=cores * network.planes,
        ports=counts["nic"] + 2 * sum(counts[kind] for kind in between),
        cables=sum(counts.values()),
        nic_gbps=gbps["nic"],
        port_gbps=gbps["nic"] + 2 * sum(gbps[kind] for kind in between),
        cable_gbps=sum(gbps.values()),
    )
