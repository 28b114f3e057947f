"""Which links a flow crosses. Computed for many flows at once, from numbers alone: no path is
stored, so that any of a cluster's hundreds of millions of pairs can be asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainscout.simulators.predictor.question.errors import InputError

from .network import Floats, Ints, Network

Hashes = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mixed(state: Hashes, value: NDArray[np.int64] | int) -> Hashes:
    """``state`` with ``value`` stirred in: the output function of SplitMix64 (Steele 2014)."""
    word = (state ^ np.asarray(value, dtype=np.int64).astype(np.uint64)) + _GOLDEN
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def flow_hash(
    seed: int, source: NDArray[np.int64], destination: NDArray[np.int64], label: NDArray[np.int64]
) -> Hashes:
    """One hash a flow, the same for every engine; arrays of shape (n,) give shape (n,).

    Switches hash a packet's headers, so one flow keeps one path and two flows may collide. Here
    the headers are (source GPU, destination GPU, label): a label stands for the source port, so
    several connections between two GPUs are distinguished. Arithmetic is modulo 2**64.
    """
    state = np.full(source.shape, seed, dtype=np.uint64)
    return mixed(mixed(mixed(state, source), destination), label)


def choice(flow: Hashes, stage: int, options: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Which of ``options`` (>= 1) equal ways each flow takes at one stage of its path."""
    count = np.asarray(options, dtype=np.int64).astype(np.uint64)
    return (mixed(flow, stage) % count).astype(np.int64)


NO_LINK = -1

# Stages of a path at which a flow is hashed anew.
_NIC, _SPINE, _CORE, _CABLE, _SECOND_CABLE, _THIRD_POD, _THIRD_LEAF = range(7)
# Columns of a route before it is packed. Between leaf up and leaf down: up to a core and down, or
# a cable to another pod, and by way of a third pod a leaf of that and another cable.
_NVLINK_UP, _NVLINK_DOWN, _PCIE_UP, _NIC_UP, _LEAF_UP = range(5)
_ACROSS, _LEAF_DOWN, _NIC_DOWN, _PCIE_DOWN = 5, 9, 10, 11
_COLUMNS = 12
# Rows x uplinks looked at together when failed links have to be avoided.
_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Routes:
    """Paths of n flows.

    ``links``: shape (n, network.max_hops), in order of travel, filled up with ``NO_LINK``.
    ``latency_s``: shape (n,), what the last byte takes after it was sent.
    """

    links: Ints
    latency_s: Floats


def check_routes(paths: Ints, rate: Floats) -> None:
    """Refuse routes that cannot be filled."""
    if paths.ndim != 2 or not len(paths):
        return
    if (paths[:, 0] < 0).any():
        raise InputError("flow.route", "[]", "crosses no link", "at least one")
    if paths.max() >= len(rate) or paths.min() < -1:
        raise InputError("flow.route", int(paths.max()), "is no link", f"0..{len(rate) - 1}")
    used = paths[paths >= 0]
    if not rate[used].all():
        dead = int(used[rate[used] == 0][0])
        raise InputError("flow.route", dead, "crosses a link that has failed", "rate > 0")


def find_routes(
    network: Network,
    source: ArrayLike,
    destination: ArrayLike,
    label: ArrayLike = 0,
    turn: int = 0,
) -> Routes:
    """Routes of flows between GPUs, the same for every engine and every call.

    Args:
        network: what to route over.
        source, destination: GPU numbers, shape (n,).
        label: distinguishes flows between the same two GPUs (channel, queue pair), shape (n,) or
            one for all; flows of equal label share one path, and labels go round the planes.
        turn: 0 is the hashed path; turns from 1 on go round the others between the same ports of
            NICs, ``equal_paths`` of them at most.

    Raises:
        InputError: for GPUs that do not exist, a flow from a GPU to itself, or two GPUs that
            no working path joins.
    """
    sources = np.atleast_1d(np.asarray(source, dtype=np.int64))
    destinations = np.atleast_1d(np.asarray(destination, dtype=np.int64))
    sources, destinations, labels = np.broadcast_arrays(
        sources, destinations, np.asarray(label, dtype=np.int64)
    )
    for field, gpus in (("source", sources), ("destination", destinations)):
        outside = gpus[(gpus < 0) | (gpus >= network.gpus)]
        if len(outside):
            raise InputError(
                f"flow.{field}", int(outside[0]), "is not a GPU", f"0..{network.gpus - 1}"
            )
    if (sources == destinations).any():
        same = int(sources[sources == destinations][0])
        raise InputError("flow.destination", same, "is the source", "another GPU")

    columns = np.full((len(sources), _COLUMNS), NO_LINK, dtype=np.int64)
    flows = flow_hash(network.fabric.ecmp_seed, sources, destinations, labels)
    node, other_node = (gpus // network.gpus_per_node for gpus in (sources, destinations))
    by_nvlink = sources // network.domain == destinations // network.domain
    by_pcie = ~by_nvlink & (node == other_node)
    columns[by_nvlink, _NVLINK_UP] = network.up("nvlink") + sources[by_nvlink]
    columns[by_nvlink, _NVLINK_DOWN] = network.down("nvlink") + destinations[by_nvlink]
    columns[by_pcie, _PCIE_UP] = network.up("pcie") + sources[by_pcie]
    columns[by_pcie, _PCIE_DOWN] = network.down("pcie") + destinations[by_pcie]
    away = np.flatnonzero(~by_nvlink & ~by_pcie)
    if len(away):
        columns[away] = _between_nodes(
            network, sources[away], destinations[away], labels[away], flows[away], turn
        )

    # Pack each row to the left, keeping the order of travel.
    order = np.argsort(columns == NO_LINK, axis=1, kind="stable")
    links = np.take_along_axis(columns, order, axis=1)[:, : network.max_hops]
    hops = (columns[:, _NIC_UP : _NIC_DOWN + 1] != NO_LINK).sum(axis=1)
    if network.unshared:
        links = _own_links(network, links, columns[:, _NIC_UP] - network.up("nic"))
    return Routes(np.ascontiguousarray(links), hops * network.fabric.hop_latency_s)


def _own_links(network: Network, links: Ints, nic: Ints) -> Ints:
    """Links between switches as those of the sending NIC alone; it couples its flows anyhow."""
    hop = np.arange(links.shape[1])
    own: Ints = len(network.alive) + hop * network.count["nic"] + nic[:, None]
    return np.where(links >= network.first["leaf"], own, links)


def equal_paths(network: Network) -> int:
    """How many equal paths there are at most between two ports of NICs."""
    if network.cables:
        return max(network.spines, network.cables)
    return max(1, network.spines) * max(1, network.cores)


def _between_nodes(
    network: Network, source: Ints, destination: Ints, label: Ints, flows: Hashes, turn: int
) -> Ints:
    columns = np.full((len(source), _COLUMNS), NO_LINK, dtype=np.int64)
    if not network.nics_per_node:
        raise InputError("cluster.nics_per_node", 0, "leaves nodes unconnected", ">= 1")
    sender = source
    if network.forwards:
        # The GPU of the sender's own node that has the receiver's place is on its rail.
        local, other_local = source % network.gpus_per_node, destination % network.gpus_per_node
        relay = source - local + other_local
        joined = (relay // network.domain == source // network.domain) & (
            _first_nic(network, local) != _first_nic(network, other_local)
        )
        columns[joined, _NVLINK_UP] = network.up("nvlink") + source[joined]
        columns[joined, _NVLINK_DOWN] = network.down("nvlink") + relay[joined]
        sender = np.where(joined, relay, source)
    # One draw for both sides: GPUs with several NICs pair NICs of one rail, as channels do.
    leaving, arriving = _nic(network, sender, flows), _nic(network, destination, flows)
    plane = _plane(network, leaving, arriving, label)
    columns[:, _NIC_UP] = network.up("nic") + leaving * network.planes + plane
    columns[:, _NIC_DOWN] = network.down("nic") + arriving * network.planes + plane
    if network.pcie_limits:
        columns[:, _PCIE_UP] = network.up("pcie") + sender
        columns[:, _PCIE_DOWN] = network.down("pcie") + destination

    first_leaf = plane * network.leaves
    leaf, other_leaf = (first_leaf + leaf_of(network, each) for each in (leaving, arriving))
    climb = np.flatnonzero(leaf != other_leaf)
    if len(climb):
        columns[climb, _LEAF_UP : _LEAF_DOWN + 1] = _over_spines(
            network, leaf[climb], other_leaf[climb], flows[climb], turn
        )
    return columns


def _first_nic(network: Network, local: Ints) -> Ints:
    """The lowest place in the node of a NIC that belongs to the GPU of each place."""
    return local * network.nics_per_node // network.gpus_per_node


def _nic(network: Network, gpu: Ints, flows: Hashes) -> Ints:
    """The NIC that serves each GPU: one of its own, or of its node where those have failed."""
    node, local = np.divmod(gpu, network.gpus_per_node)
    nics = network.nics_per_node
    lowest = _first_nic(network, local)
    own = np.maximum(1, _first_nic(network, local + 1) - lowest)
    chosen = node * nics + lowest + choice(flows, _NIC, own)
    any_port = np.logical_or.reduce(_alive(network, "nic", network.planes), axis=1)
    dead = np.flatnonzero(~any_port[chosen])
    if len(dead):
        working = any_port.reshape(-1, nics)[node[dead]]
        nth = _pick(working, flows[dead], _NIC)
        if nth is None:
            raise _cut_off(network, "cuts a node off: all its NICs failed")
        chosen[dead] = node[dead] * nics + nth
    return chosen


def _plane(network: Network, leaving: Ints, arriving: Ints, label: Ints) -> Ints:
    """The plane of each flow: its label's, or the next in which both NICs' ports work."""
    ports = _alive(network, "nic", network.planes)
    plane = label % network.planes
    for _ in range(network.planes - 1):
        cut = ~(ports[leaving, plane] & ports[arriving, plane])
        plane = np.where(cut, (plane + 1) % network.planes, plane)
    if not (ports[leaving, plane] & ports[arriving, plane]).all():
        raise _cut_off(network, "leaves two NICs no plane in common")
    return plane


def leaf_of(network: Network, nic: Ints) -> Ints:
    """The leaf of its plane that a NIC is plugged into."""
    leaf: Ints
    if network.fabric.rails == "none":
        leaf = nic // network.fabric.nics_per_leaf
        return leaf
    node, rail = np.divmod(nic, network.nics_per_node)
    group = node // network.fabric.nics_per_leaf
    if network.fabric.rails == "only":
        leaf = rail * network.leaves_per_pod + group
    else:
        leaf = group * network.nics_per_node + rail
    return leaf


def _over_spines(network: Network, leaf: Ints, other_leaf: Ints, flows: Hashes, turn: int) -> Ints:
    """Links from leaf to leaf, shape (n, 6): leaf up, up to four across pods, leaf down."""
    pod, other_pod = network.pod(leaf), network.pod(other_leaf)
    far = pod != other_pod
    if network.spines == 0 or (far.any() and network.cores == 0):
        raise InputError(
            "topology.tiers",
            network.fabric.tiers,
            "leaves two leaf switches unconnected",
            "more tiers, a larger nics_per_leaf, or a job placed inside rails",
        )
    columns = np.full((len(leaf), 6), NO_LINK, dtype=np.int64)
    inside = np.flatnonzero(~far) if network.cables else np.arange(len(leaf))
    spine = _spine(network, leaf[inside], other_leaf[inside], flows[inside], turn)
    columns[inside, 0] = network.up("leaf") + leaf[inside] * network.spines + spine
    columns[inside, 5] = network.down("leaf") + other_leaf[inside] * network.spines + spine
    if not far.any():
        return columns
    if network.cables:
        columns[far] = _over_cables(network, leaf[far], other_leaf[far], flows[far], turn)
        return columns
    near_spine = pod[far] * network.spines + spine[far]
    far_spine = other_pod[far] * network.spines + spine[far]
    # All spines come round before the next core does.
    core = _core(network, near_spine, far_spine, flows[far], turn // network.spines)
    columns[far, 1] = network.up("spine") + near_spine * network.cores + core
    columns[far, 2] = network.down("spine") + far_spine * network.cores + core
    return columns


def _over_cables(network: Network, leaf: Ints, other_leaf: Ints, flows: Hashes, turn: int) -> Ints:
    """Links between leaves of pods that are joined directly, as ``_over_spines``."""
    columns = np.full((len(leaf), 6), NO_LINK, dtype=np.int64)
    direct = np.ones(len(leaf), dtype=np.bool_)
    if network.fabric.routing == "valiant":
        # A pod drawn from all of the plane's; who draws an own one goes directly.
        plane, pod = np.divmod(network.pod(leaf), network.pods)
        third = choice(flows, _THIRD_POD, network.pods)
        direct = (third == pod) | (third == network.pod(other_leaf) % network.pods)
        last = np.minimum((third + 1) * network.leaves_per_pod, network.leaves)
        first = third * network.leaves_per_pod
        back = plane * network.leaves + first + choice(flows, _THIRD_LEAF, last - first)
        by = ~direct
        there = _leg(network, leaf[by], back[by], flows[by], _CABLE, turn)
        on = _leg(network, back[by], other_leaf[by], flows[by], _SECOND_CABLE, turn)
        columns[by] = np.concatenate([there, on], axis=1)
        # What leaves by the spine that it came to has no need of the leaf.
        up, down = network.up("leaf"), network.down("leaf")
        same = columns[:, 2] - down == columns[:, 3] - up
        columns[np.flatnonzero(by & same)[:, None], [2, 3]] = NO_LINK
    columns[np.flatnonzero(direct)[:, None], [0, 1, 5]] = _leg(
        network, leaf[direct], other_leaf[direct], flows[direct], _CABLE, turn
    )
    return columns


def _leg(
    network: Network, leaf: Ints, other_leaf: Ints, flows: Hashes, stage: int, turn: int
) -> Ints:
    """Leaf up, cable, leaf down from a leaf to one of another pod, shape (n, 3)."""
    pod, other_pod = network.pod(leaf), network.pod(other_leaf)
    nth = np.arange(network.cables)
    ways = np.stack(
        [
            network.up("leaf")
            + leaf[:, None] * network.spines
            + network.cable_spine(pod[:, None], other_pod[:, None], nth),
            network.cable(pod[:, None], other_pod[:, None], nth),
            network.down("leaf")
            + other_leaf[:, None] * network.spines
            + network.cable_spine(other_pod[:, None], pod[:, None], nth),
        ],
        axis=2,
    )
    chosen = _pick(np.logical_and.reduce(network.alive[ways], axis=2), flows, stage, turn)
    if chosen is None:
        raise _cut_off(network, "cuts two pods apart")
    return ways[np.arange(len(leaf)), chosen]


def _spine(network: Network, leaf: Ints, other_leaf: Ints, flows: Hashes, turn: int) -> Ints:
    """The place in the pod of the spine each flow climbs to, among those that lead there."""
    alive_up = _alive(network, "leaf", network.spines)
    cores_alive = _alive(network, "spine", network.cores) if network.count["spine"] else None
    if alive_up.all() and (cores_alive is None or cores_alive.all()):
        return (choice(flows, _SPINE, network.spines) + turn) % network.spines
    chosen = np.empty(len(leaf), dtype=np.int64)
    rows = max(1, _AT_ONCE // (network.spines * max(1, network.cores)))
    for begin in range(0, len(leaf), rows):
        part = slice(begin, begin + rows)
        working = alive_up[leaf[part]] & alive_up[other_leaf[part]]
        if cores_alive is not None:
            by_pod = cores_alive.reshape(-1, network.spines, network.cores)
            pod = network.pod(leaf[part])
            other_pod = network.pod(other_leaf[part])
            leads_on = (by_pod[pod] & by_pod[other_pod]).any(axis=2)
            working &= leads_on | (pod == other_pod)[:, None]
        nth = _pick(working, flows[part], _SPINE, turn)
        if nth is None:
            raise _cut_off(network, "cuts two leaf switches apart")
        chosen[part] = nth
    return chosen


def _core(network: Network, spine: Ints, other_spine: Ints, flows: Hashes, turn: int) -> Ints:
    alive = _alive(network, "spine", network.cores)
    if alive.all():
        return (choice(flows, _CORE, network.cores) + turn) % network.cores
    nth = _pick(alive[spine] & alive[other_spine], flows, _CORE, turn)
    if nth is None:
        raise _cut_off(network, "cuts two pods apart")
    return nth


def _cut_off(network: Network, problem: str) -> InputError:
    """What failed leaves no way."""
    failed = [name for name, share in network.fabric.link_health.items() if share == 0]
    more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
    return InputError("topology.link_health", ", ".join(failed[:3]) + more, problem)


def _alive(network: Network, kind: str, across: int) -> NDArray[np.bool_]:
    up = network.up(kind)
    return network.alive[up : up + network.count[kind]].reshape(-1, across)


def _pick(working: NDArray[np.bool_], flows: Hashes, stage: int, turn: int = 0) -> Ints | None:
    """The working option each row takes, as a switch hashes over what is left, or the ``turn``-th
    after that; None: none is."""
    options = working.sum(axis=1)
    if not options.all():
        return None
    nth = (choice(flows, stage, options) + turn) % options
    picked: Ints = np.argmax(working.cumsum(axis=1) > nth[:, None], axis=1)
    return picked
