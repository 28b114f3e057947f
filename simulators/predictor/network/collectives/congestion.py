"""How much longer communication takes because it shares links: the same transfers twice.

Once over the network as declared, with all groups of a dimension at the same time, ECMP,
oversubscription and links that failed; once over the same cluster where only NICs, NVLink and PCIe
limit: switches between NICs carry anything, and every link is whole. The ratio says what sharing
costs, whatever both runs leave out of how NCCL works.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainscout.simulators.predictor.network.choice import NetworkChoice
from trainscout.simulators.predictor.network.neighbours import Neighbour, neighbourhood
from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric
from trainscout.simulators.predictor.network.topology.network import Network
from trainscout.simulators.predictor.network.topology.wiring import build_network
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu

from .patterns import by_node, exchange, pattern
from .play import Played, play
from .transfers import Floats, Ints, Transfers, groups, together, transfers

RING, TREE, HIERARCHICAL = "ring", "tree", "hierarchical"
ENDS, MIRRORED = "ends", "mirrored"
PAIRS, HIERARCHICAL_PAIRS, NEIGHBOURS, ROUND = (
    *("pairs", "hierarchical_pairs"),
    *("neighbours", "round"),
)
# Femtoseconds of rounding are no congestion.
_ROUNDING = 1e-9
# A neighbour's all-to-all goes to so many evenly spaced peers of each GPU: where its bytes cross
# the fabric is much the same, and a quarter of a million flows of 512 GPUs need not be shared out.
_MOST_PEERS = 16


@dataclass(frozen=True)
class Pattern:
    """Who sends to whom in the groups of one dimension, all of them at the same time.

    ``algorithm``: ``ring``, ``tree``, ``hierarchical`` with ``channels``, or ``pat``; ``pairs``:
    all to everybody, member ``j`` of every group receiving ``loads[j]`` of all that is sent
    (empty: as much as any other), or sending it where ``back``; ``hierarchical_pairs``: the same
    in two levels, over the network to the GPU of the same place in the other node, which passes it
    on (DeepEP, HybridEP); ``neighbours``: every member to the next and to the one before;
    ``round``: every member to the next, the last to the first; ``ends``: a ring of the first and
    the last alone, with ``channels``, ``mirrored``: of these, of those next to them, and so on.
    ``span`` is where groups lie (``transfers.groups``).
    """

    algorithm: str
    span: tuple[tuple[int, int], ...]
    channels: int = 1
    loads: tuple[float, ...] = ()
    back: bool = False


def transfers_of(what: Pattern, gpus: int, node: int) -> list[Transfers]:
    """The transfers of every group of so many GPUs in nodes of that size, shares so that the GPU
    that sends most sends 1 in all."""
    members = groups(gpus, what.span)
    made = [group_transfers(what, ranks, node) for ranks in members]
    sent = np.zeros(gpus)
    for each in made:
        np.add.at(sent, each.source, each.share)
    return [replace(each, share=each.share / sent.max()) for each in made]


def group_transfers(what: Pattern, ranks: Ints, node: int) -> Transfers:
    """The transfers of one group of ``ranks``, by the bytes that a member has."""
    if what.algorithm in (ENDS, MIRRORED):
        pairs = np.stack([ranks, ranks[::-1]], axis=1)[: len(ranks) // 2].tolist()
        pairs = pairs[:1] if what.algorithm == ENDS else pairs
        two = [by_node(each, node) for each in pairs]
        return together([pattern("all_reduce", each, channels=what.channels) for each in two])
    members = by_node(ranks.tolist(), node)
    if what.algorithm in (PAIRS, HIERARCHICAL_PAIRS):
        return _pairs(what, ranks, members)
    if what.algorithm in (NEIGHBOURS, ROUND):
        steps = list(itertools.pairwise(ranks.tolist()))
        if what.algorithm == NEIGHBOURS:
            steps += [(after, before) for before, after in steps]
        else:
            steps.append((int(ranks[-1]), int(ranks[0])))
        return transfers(steps, 1.0)
    algorithm = what.algorithm
    if algorithm == HIERARCHICAL and len({len(node) for node in members}) > 1:
        algorithm = RING
    return pattern("all_reduce", members, algorithm=algorithm, channels=what.channels)


def _pairs(what: Pattern, ranks: Ints, members: list[list[int]]) -> Transfers:
    count, inside = len(ranks), len(members[0])
    in_levels = what.algorithm == HIERARCHICAL_PAIRS and len(members) > 1 and inside > 1
    in_levels &= all(len(node) == inside for node in members)
    if not what.loads and not in_levels:
        return pattern("all_to_all", members)
    matrix = np.tile(np.array(what.loads or [1 / count] * count) / count, (count, 1))
    if in_levels:
        # By node and place of sender, and of receiver: over the network to the own place there,
        # then on to the others' inside.
        four = matrix.reshape(len(members), inside, len(members), inside)
        places = np.eye(inside)
        across = four.sum(axis=3)[..., None] * places[:, None, :]
        away = four * (1 - np.eye(len(members)))[:, None, :, None]
        nodes = np.eye(len(members))
        # What came to a place from all other nodes, and what never leaves its node.
        passed_on = away.sum(axis=0).transpose(1, 0, 2)[:, :, None, :] * nodes[:, None, :, None]
        own = four * nodes[:, None, :, None]
        crossing = across * (1 - nodes)[:, None, :, None]
        matrix = (crossing + passed_on + own).reshape(count, count)
    return exchange(ranks.tolist(), matrix.T if what.back else matrix)


@dataclass(frozen=True)
class Congested:
    """One pattern on the declared network: ``factor`` (at least 1) times what it would take on
    one where nothing is shared, and what it asked of links."""

    factor: float
    played: Played


class CongestionModel:
    """Plays patterns on one cluster's network; each once per size."""

    def __init__(
        self, cluster: Cluster, gpu: Gpu, fabric: SwitchFabric, settings: NetworkChoice
    ) -> None:
        """
        Raises:
            InputError: for a fabric that this cluster cannot be wired to.
        """
        self._where = neighbourhood(cluster, settings.neighbours)
        self.network = build_network(self._where.cluster, gpu, fabric)
        self._others = [
            (each.busy, self._of_neighbour(each, places))
            for each, places in zip(settings.neighbours, self._where.others, strict=True)
        ]
        self.ideal = unshared(cluster, gpu, fabric)
        self.settings = settings
        # A GPU that only computes faster plays the same transfers over the same links.
        content = repr((self.network.content, self.ideal.content, settings))
        self._known, self._memory = _plays(content)

    def congested(self, what: Pattern, bytes_per_gpu: float) -> Congested:
        """What sharing costs when the busiest sender sends so many bytes.

        Raises:
            InputError: when failed links or missing tiers leave GPUs without a path.
        """
        key = (what, bytes_per_gpu)
        if key not in self._known:
            groups = transfers_of(what, self.ideal.gpus, self.ideal.nccl_node)
            made = together(groups)
            placed = _at(made, self._where.ours)
            alone = play(self.ideal, made, bytes_per_gpu, self.settings, memory=self._memory)
            of_groups = len(groups) if what.algorithm == NEIGHBOURS else 0
            declared, mean_s = self._among_others(placed, bytes_per_gpu, of_groups)
            ratio = mean_s / _lasts_s(alone, of_groups)
            self._known[key] = Congested(ratio if ratio > 1 + _ROUNDING else 1.0, declared)
        return self._known[key]

    def _among_others(
        self, made: Transfers, bytes_per_gpu: float, of_groups: int
    ) -> tuple[Played, float]:
        """Ours beside all neighbours, and how long ours takes on average: neighbours communicate
        at random, each as much of the time as it is busy."""
        likely: dict[tuple[bool, ...], float] = {}
        for states in itertools.product((False, True), repeat=len(self._others)):
            chance = 1.0
            for on, (busy, _) in zip(states, self._others, strict=True):
                chance *= busy if on else 1 - busy
            if chance:
                likely[states] = chance
        mean_s = 0.0
        for states, chance in likely.items():
            others = [sent for on, (_, sent) in zip(states, self._others, strict=True) if on]
            played = play(self.network, made, bytes_per_gpu, self.settings, others, self._memory)
            mean_s += chance * _lasts_s(played, of_groups)
        return played, mean_s

    def _of_neighbour(self, neighbour: Neighbour, places: Ints) -> Transfers:
        """What a neighbour sends; the GPU that sends most sends 1 in all."""
        count = len(places)
        if neighbour.kind == "all_to_all":
            steps = np.unique(np.linspace(1, count - 1, min(count - 1, _MOST_PEERS)).round())
            sender = np.arange(count)
            pairs = [(sender, (sender + step) % count) for step in steps.astype(np.int64)]
            ends = np.concatenate([np.stack(each, axis=1) for each in pairs])
            return _at(transfers(ends, 1 / len(steps)), places)
        what = Pattern(RING, ((count, 1),), self.network.gpus_per_node)
        return _at(together(transfers_of(what, count, self.network.nccl_node)), places)


def _lasts_s(played: Played, pipelines: int) -> float:
    """How long a dimension communicates: until its last group is done. Pipelines' transfers follow
    each other, so that a micro-batch waits for each in turn: of the slowest of ``pipelines`` the
    mean over its transfers."""
    if pipelines:
        return float(played.end_s.reshape(pipelines, -1).mean(axis=1).max())
    return float(played.end_s.max())


def _at(made: Transfers, places: Ints) -> Transfers:
    """Transfers between GPUs of a job as those between the GPUs where they stand."""
    return replace(made, source=places[made.source], destination=places[made.destination])


def unshared(cluster: Cluster, gpu: Gpu, fabric: SwitchFabric) -> Network:
    """The network on which nothing but a GPU's own links and NICs limits: every link is whole, and
    each NIC has switches to itself, whose links carry what a pod of NICs can send."""
    whole = replace(fabric, oversubscription=1.0, pod_oversubscription=1.0, link_health={})
    network = build_network(cluster, gpu, whole)
    nics = float(fabric.nics_per_leaf * (fabric.leaves_per_pod or network.leaves_per_pod))
    switches = network.num_links + network.max_hops * network.count["nic"]
    rates: Floats = np.full(switches, cluster.nic_gbps * 1e9 / 8 * nics)
    rates[: network.first["leaf"]] = network.rate_bytes_per_s[: network.first["leaf"]]
    return replace(network, rate_bytes_per_s=rates, unshared=True)


def congestion_model(
    cluster: Cluster, gpu: Gpu, fabric: SwitchFabric, settings: NetworkChoice
) -> CongestionModel:
    """The one of this process for these declarations: what was played is not played again.

    Raises:
        InputError: for a fabric that this cluster cannot be wired to.
    """
    # Spelled out, as a Gpu hashes by a few of its fields and a fabric by none.
    key = repr((cluster, gpu, fabric, settings))
    if key not in _MODELS:
        if len(_MODELS) >= _MOST_MODELS:
            _MODELS.clear()
        _MODELS[key] = CongestionModel(cluster, gpu, fabric, settings)
    return _MODELS[key]


@functools.lru_cache(maxsize=16)
def _plays(content: str) -> tuple[dict[tuple[Pattern, float], Congested], dict[bytes, Any]]:
    """Of networks and an engine of this content: what was played, and what the hybrid engine
    remembers, which is alike for all patterns, as everything begins at once."""
    return {}, {}


_MODELS: dict[str, CongestionModel] = {}
_MOST_MODELS = 16
