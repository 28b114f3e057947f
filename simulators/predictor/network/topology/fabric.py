"""How the switches between NICs are arranged: what a user declares in ``conf/topology/``."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)

RAILS = ("none", "optimised", "only")
ROUTING = ("ecmp", "adaptive", "valiant")
PODS_JOINED = ("cores", "directly")
# Ports of one NIC: what is sold has one to four, and eight planes are the most proposed.
MOST_PLANES = 8


@dataclass(frozen=True)
class SwitchFabric:
    """One to three tiers of switches; NIC rates and counts are the cluster's."""

    name: str
    """What results call it."""
    source: str
    """Where it was described."""
    tiers: int
    """1 is leaf switches that nothing joins, 2 leaf and spine, 3 leaf, spine and core (a fat tree:
    the spines of one pod join its leaves, cores or cables join pods)."""
    nics_per_leaf: int
    """A leaf's ports towards nodes."""
    hop_latency_s: float
    """One cable and the switch at its end."""
    leaves_per_pod: int | None = None
    """Matters with three tiers only."""
    rails: str = "none"
    """``none`` fills leaves with NICs in order of node; ``optimised`` gives a leaf the NICs of one
    index (rail) of ``nics_per_leaf`` nodes; ``only`` also gives each rail spines of its own, so
    that nothing but NVLink joins rails (Wang et al. 2023, arXiv:2307.12169)."""
    forward_by_nvlink: bool = False
    """Traffic to another rail first goes to the GPU of the sender's node that sits on it (NCCL's
    PXN); always so with ``only``."""
    oversubscription: float | None = None
    """What enters a leaf over what leaves it upwards (None: the cluster's)."""
    pod_oversubscription: float = 1.0
    """What enters a pod's spines over what leaves them upwards."""
    pods_joined: str = "cores"
    """``cores`` above all pods, or ``directly``: a spine's uplinks are cables to the spines of the
    other pods, as many to each (dragonfly+, Shpiner et al. 2017)."""
    planes: int = 1
    """Ports of a NIC, each with an equal part of its rate, and each into a fabric of its own
    (plane); a transfer is spread over them evenly."""
    routing: str = "ecmp"
    """``ecmp`` hashes a connection to one shortest path. ``adaptive`` spreads it over all of them
    as well as can be: the cables from a switch to the tier above are one link of their joint rate.
    ``valiant`` hashes it to a path by way of a third pod, where pods are joined directly."""
    switch_ports: int | None = None
    """Ports of the largest switch (None: not looked at): a leaf, spine or core that would need
    more is refused."""
    uplink_gbps: float | None = None
    """There are as many uplinks as make this rate in Gb/s (None: the NIC's) the nearest; their
    rate is then set so that the ratio is exact, whatever it is."""
    link_health: dict[str, float] = field(default_factory=dict)
    """Maps a link (``leaf0-spine3``, ``spine3-core1``, ``pod0-pod2-cable1``, ``node5-nic2``,
    ``node5-nic2-port1``, ``gpu7-nvlink``, ``gpu7-pcie``), or a switch with all its cables
    (``leaf0``, ``spine3``, ``core1``), to the share of its rate that is left, in both directions;
    0 means failed: no flow is routed over it."""
    ecmp_seed: int = 0
    """Seeds the hash that spreads flows."""

    def check(self) -> None:
        """Refuse what no cluster could be wired as."""
        if self.tiers not in (1, 2, 3):
            raise InputError("topology.tiers", self.tiers, "is out of range", "1, 2 or 3")
        require_choice("topology.rails", self.rails, RAILS)
        require_choice("topology.routing", self.routing, ROUTING)
        require_choice("topology.pods_joined", self.pods_joined, PODS_JOINED)
        require_positive("topology.nics_per_leaf", self.nics_per_leaf)
        if not 1 <= self.planes <= MOST_PLANES:
            raise InputError(
                "topology.planes", self.planes, "is out of range", f"1..{MOST_PLANES}"
            )
        if self.switch_ports is not None:
            require_positive("topology.switch_ports", self.switch_ports)
        if self.pods_joined == "directly" and self.tiers != 3:
            raise InputError("topology.pods_joined", "directly", "needs pods", "topology.tiers=3")
        if self.routing == "valiant" and self.pods_joined != "directly":
            problem = "needs pods that are joined directly"
            raise InputError("topology.routing", "valiant", problem, ("ecmp", "adaptive"))
        require_positive("topology.hop_latency_s", self.hop_latency_s, allow_zero=True)
        require_positive("topology.ecmp_seed", self.ecmp_seed, allow_zero=True)
        if self.uplink_gbps is not None:
            require_positive("topology.uplink_gbps", self.uplink_gbps)
        for name in ("oversubscription", "pod_oversubscription"):
            ratio = getattr(self, name)
            if ratio is not None and not 1 <= ratio < float("inf"):
                raise InputError(f"topology.{name}", ratio, "is out of range", ">= 1")
        if self.tiers == 3:
            if self.leaves_per_pod is None:
                raise InputError("topology.leaves_per_pod", None, "is needed with 3 tiers", ">= 1")
            require_positive("topology.leaves_per_pod", self.leaves_per_pod)
            if self.rails == "only":
                raise InputError("topology.tiers", 3, "is too many for rails=only", "1 or 2")
        for link, share in self.link_health.items():
            if not 0 <= share <= 1:
                raise InputError(
                    f"topology.link_health.{link}", share, "is out of range", "0 <= share <= 1"
                )


@dataclass(frozen=True)
class Failure:
    """A link that goes down, or slows down, while packets cross it."""

    link: str
    """Its name (``leaf0-spine3``), or a switch's (``spine3``): both directions fail."""
    at_s: float
    """When."""
    rate: float = 0.0
    """What is left of its rate: 0 is a link that is down."""
    detected_s: float = 1e-3
    """How long after that flows are routed over what is left. Switches that route every packet
    avoid their own ports at once."""
    until_s: float | None = None
    """When it is whole again (None: never)."""

    def check(self, field: str) -> None:
        """Refuse what cannot happen."""
        for name in ("at_s", "detected_s"):
            require_positive(f"{field}.{name}", getattr(self, name), allow_zero=True)
        if not 0 <= self.rate < 1:
            raise InputError(f"{field}.rate", self.rate, "is no failure", "0 (down) to below 1")
        if self.until_s is not None and not self.until_s > self.at_s:
            allowed = f"after at_s={self.at_s:g}"
            raise InputError(f"{field}.until_s", self.until_s, "is no later time", allowed)
