"""A cluster's links: how many there are, how they are numbered, what each carries.

Every link is directed. ``up`` is away from the GPU. The numbers run through the kinds in the
order of ``KINDS``, each first up, then down:

- ``nvlink``: a GPU's ports into its NVLink domain, which is taken as one non-blocking switch.
  In a mesh (no NVSwitch) a GPU's ports are shared by all its peers in the same way.
- ``pcie``: a GPU's PCIe slot.
- ``nic``: a NIC's cable to its leaf.
- ``leaf``: the cable from a leaf to one spine of its pod.
- ``spine``: the cable from a spine to one core of its group.
- ``pod``: a cable between spines of two pods that are joined directly; up is from the pod of the
  lower number.

Where routing is adaptive, the cables from one leaf (from one pod, between two pods) are one link.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainscout.simulators.predictor.question.errors import InputError

from .fabric import SwitchFabric

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

KINDS = ("nvlink", "pcie", "nic", "leaf", "spine", "pod")
_NAMES = {
    "nvlink": re.compile(r"gpu(\d+)-nvlink"),
    "pcie": re.compile(r"gpu(\d+)-pcie"),
    "nic": re.compile(r"node(\d+)-nic(\d+)(?:-port(\d+))?"),
    "leaf": re.compile(r"leaf(\d+)-spine(\d+)"),
    "spine": re.compile(r"spine(\d+)-core(\d+)"),
    "pod": re.compile(r"pod(\d+)-pod(\d+)-cable(\d+)"),
}


@dataclass(frozen=True)
class Network:
    """A cluster wired up; build it with ``build_network``.

    GPUs, NICs, leaves, spines and cores are numbered through the whole cluster, leaves and what is
    above them plane by plane. ``leaves`` and ``pods`` count one plane's. ``spines`` and ``cores``
    count one pod's spines (a leaf's uplinks) and one group's cores (a spine's uplinks: the k-th
    spines of all pods share group k; where pods are joined directly, a spine's cables).
    ``cables``: between any two pods that are joined directly. ``rate_bytes_per_s``, ``alive``:
    shape (links,). ``pcie_limits``: whether PCIe can ever be what slows traffic to other nodes;
    where it cannot, routes leave it out. ``unshared``: switches as if each NIC had some to itself;
    those links come after all others, ``max_hops`` for each NIC.
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
    cables: int
    pcie_limits: bool
    first: dict[str, int]
    count: dict[str, int]
    rate_bytes_per_s: Floats
    alive: NDArray[np.bool_]
    unshared: bool = False

    @property
    def content(self) -> str:
        """What distinguishes this network from others, its arrays by their digest."""
        digest = hashlib.blake2b(self.rate_bytes_per_s.tobytes(), digest_size=16)
        digest.update(self.alive.tobytes())
        plain = replace(self, rate_bytes_per_s=np.empty(0), alive=np.empty(0, dtype=np.bool_))
        return f"{plain!r} {digest.hexdigest()}"

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
    def nccl_node(self) -> int:
        """GPUs that NCCL counts as one node: a server's, or those of a larger NVLink domain."""
        return max(self.domain, self.gpus_per_node)

    @property
    def planes(self) -> int:
        return self.fabric.planes

    @property
    def pooled(self) -> bool:
        """Whether the cables between two tiers are one link a switch."""
        return self.fabric.routing == "adaptive"

    @property
    def pods(self) -> int:
        return -(-self.leaves // self.leaves_per_pod)

    def pod(self, leaf: ArrayLike) -> Ints:
        """The pod of each leaf, shape (n,)."""
        plane, own = np.divmod(np.asarray(leaf), max(1, self.leaves))
        pod: Ints = plane * self.pods + own // self.leaves_per_pod
        return pod

    def cable(self, pod: ArrayLike, other: ArrayLike, nth: ArrayLike) -> Ints:
        """The link from a pod to another of its plane over the ``nth`` of their cables, (n,)."""
        plane, one = np.divmod(np.asarray(pod), self.pods)
        two = np.asarray(other) % self.pods
        low, high = np.minimum(one, two), np.maximum(one, two)
        pair = low * (2 * self.pods - low - 1) // 2 + high - low - 1
        at = (plane * (self.pods * (self.pods - 1) // 2) + pair) * self.cables + nth
        link: Ints = np.where(one < two, self.up("pod"), self.down("pod")) + at
        return link

    def cable_spine(self, pod: ArrayLike, other: ArrayLike, nth: ArrayLike) -> Ints:
        """The place in ``pod`` of the spine that its ``nth`` cable to ``other`` is plugged in."""
        step = (np.asarray(other) - np.asarray(pod) - 1) % self.pods
        spine: Ints = (step + np.asarray(nth) * (self.pods - 1)) // self.cores
        return spine

    @property
    def max_hops(self) -> int:
        """Most links that any route crosses."""
        switches = 2 * self.fabric.tiers
        if self.fabric.routing == "valiant":
            switches += 2
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
            nic, port = divmod(at, self.planes)
            node, nic = divmod(nic, self.nics_per_node)
            plug = f"-port{port}" if self.planes > 1 else ""
            return f"node{node}-nic{nic}{plug}{side}"
        if kind == "leaf":
            leaf, spine = divmod(at, self.spines)
            end = f"spine{int(self.pod(leaf)) * self.spines + spine}"
            return f"leaf{leaf}-{'uplinks' if self.pooled else end}{side}"
        if kind == "pod":
            return f"{self._cable_name(at)}{side}"
        spine, core = divmod(at, self.cores)
        if self.pooled:
            return f"pod{spine}-uplinks{side}"
        return f"spine{spine}-core{self._group(spine) * self.cores + core}{side}"

    def _group(self, spine: int) -> int:
        """The group of cores above a spine."""
        plane = spine // (self.spines * self.pods)
        return plane * self.spines + spine % self.spines

    def _cable_name(self, at: int) -> str:
        pairs = self.pods * (self.pods - 1) // 2
        pair, nth = divmod(at, self.cables)
        plane, pair = divmod(pair, pairs)
        one, other = (int(pods[pair]) for pods in np.triu_indices(self.pods, 1))
        first = plane * self.pods
        end = "cables" if self.pooled else f"cable{nth}"
        return f"pod{first + one}-pod{first + other}-{end}"

    def links_named(self, name: str) -> tuple[int, int]:
        """The upward and the downward link of a cable.

        Raises:
            InputError: when the name fits no cable of this network.
        """
        field = f"topology.link_health.{name}"
        share = self.fabric.link_health.get(name, name)
        for kind, pattern in _NAMES.items():
            match = pattern.fullmatch(name)
            if match:
                at = self._place(kind, [int(number or 0) for number in match.groups()])
                if at is None:
                    raise InputError(field, share, "is not in this cluster", self._names(kind))
                return self.up(kind) + at, self.down(kind) + at
        raise InputError(
            field,
            share,
            "is not the name of a link",
            "gpuG-nvlink, gpuG-pcie, nodeN-nicK, leafL-spineS, spineS-coreC, podP-podQ-cableK; "
            "leafL, spineS, coreC: all of a switch's",
        )

    def _names(self, kind: str) -> str:
        """The first and the last link of a kind."""
        if not self.count[kind]:
            return "none of its kind here"
        ends = (self.up(kind), self.up(kind) + self.count[kind] - 1)
        first, last = (self.link_name(link).removesuffix(":up") for link in ends)
        return f"{first} to {last}"

    def _place(self, kind: str, numbers: list[int]) -> int | None:
        if kind in ("nvlink", "pcie"):
            at = numbers[0]
        elif kind == "nic":
            node, nic, port = numbers
            at = (node * self.nics_per_node + nic) * self.planes + port
            if nic >= self.nics_per_node or port >= self.planes:
                return None
        elif kind == "pod":
            one, other, nth = numbers
            same_plane = self.cables and one // self.pods == other // self.pods
            if not same_plane or not one < other or nth >= self.cables:
                return None
            at = int(self.cable(one, other, nth)) - self.up("pod")
        else:
            across = self.spines if kind == "leaf" else self.cores
            if not across:
                return None
            group, port = divmod(numbers[1], across)
            # A leaf reaches the spines of its pod, a spine the cores of its group.
            own = self.pod(numbers[0]) if kind == "leaf" else self._group(numbers[0])
            if group != own:
                return None
            at = numbers[0] * across + port
        return at if at < self.count[kind] else None
