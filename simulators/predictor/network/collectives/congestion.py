"""How much longer communication takes because it shares links: the same transfers twice.

Once over the network as declared, with all groups of a dimension at the same time, ECMP,
oversubscription and links that failed; once over the same cluster where only NICs, NVLink and PCIe
limit: switches between NICs carry anything, and every link is whole. The ratio says what sharing
costs, whatever both runs leave out of how NCCL works.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from trainscout.simulators.predictor.network.collectives.patterns import by_node, exchange, pattern
from trainscout.simulators.predictor.network.collectives.placement import groups
from trainscout.simulators.predictor.network.collectives.play import EngineSettings, Played, play
from trainscout.simulators.predictor.network.collectives.transfers import (
    Floats,
    Ints,
    Transfers,
    together,
    transfers,
)
from trainscout.simulators.predictor.network.topology import Network, SwitchFabric, build_network
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu

RING, TREE, HIERARCHICAL, PAIRS, NEIGHBOURS, ROUND = (
    *("ring", "tree", "hierarchical"),
    *("pairs", "neighbours", "round"),
)
# Femtoseconds of rounding are no congestion.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Pattern:
    """Who sends to whom in the groups of one dimension, all of them at the same time.

    ``algorithm``: ``ring``, ``tree`` or ``hierarchical`` with ``channels``; ``pairs``: everybody
    to everybody, member ``j`` of every group receiving ``loads[j]`` of all that is sent (empty:
    as much as any other); ``neighbours``: every member to the next and to the one before;
    ``round``: every member to the next, the last to the first. ``span`` is where groups lie
    (``placement.groups``).
    """

    algorithm: str
    span: tuple[tuple[int, int], ...]
    channels: int = 1
    loads: tuple[float, ...] = ()


def transfers_of(what: Pattern, network: Network) -> list[Transfers]:
    """The transfers of every group, shares so that the GPU that sends most sends 1 in all.

    Long messages keep every step of a ring or a tree busy at once: nothing waits for anything.
    """
    members = groups(network.gpus, what.span)
    made = [group_transfers(what, ranks, network.domain) for ranks in members]
    sent = np.zeros(network.gpus)
    for each in made:
        np.add.at(sent, each.source, each.share)
    none = np.empty((0, 2), dtype=np.int64)
    most = sent.max()
    return [replace(each, share=each.share / most, after=none) for each in made]


def group_transfers(what: Pattern, ranks: Ints, domain: int) -> Transfers:
    """The transfers of one group of ``ranks``, by the bytes that a member has."""
    members = by_node(ranks.tolist(), domain)
    if what.algorithm == PAIRS:
        if not what.loads:
            return pattern("all_to_all", members)
        matrix = np.tile(np.array(what.loads) / len(ranks), (len(ranks), 1))
        return exchange(ranks.tolist(), matrix)
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


@dataclass(frozen=True)
class Congested:
    """One pattern on the declared network: ``factor`` (at least 1) times what it would take on
    one where nothing is shared, and what it asked of links."""

    factor: float
    played: Played


class CongestionModel:
    """Plays patterns on one cluster's network; each once per size."""

    def __init__(
        self, cluster: Cluster, gpu: Gpu, fabric: SwitchFabric, settings: EngineSettings
    ) -> None:
        """
        Raises:
            InputError: for a fabric that this cluster cannot be wired to.
        """
        self.network = build_network(cluster, gpu, fabric)
        self.ideal = unshared(cluster, gpu, fabric)
        self.settings = settings
        self._known: dict[tuple[Pattern, float], Congested] = {}

    def congested(self, what: Pattern, bytes_per_gpu: float) -> Congested:
        """What sharing costs when the busiest sender sends so many bytes.

        Raises:
            InputError: when failed links or missing tiers leave GPUs without a path.
        """
        key = (what, bytes_per_gpu)
        if key not in self._known:
            made = together(transfers_of(what, self.network))
            declared, alone = (
                play(network, [(made, bytes_per_gpu)], self.settings)
                for network in (self.network, self.ideal)
            )
            ratio = float(declared.end_s.max() / alone.end_s.max())
            self._known[key] = Congested(ratio if ratio > 1 + _ROUNDING else 1.0, declared)
        return self._known[key]


def unshared(cluster: Cluster, gpu: Gpu, fabric: SwitchFabric) -> Network:
    """The network on which nothing but a GPU's own links and NICs limits: every link is whole, and
    one between switches carries what all NICs below it can send."""
    whole = replace(fabric, oversubscription=1.0, pod_oversubscription=1.0, link_health={})
    network = build_network(cluster, gpu, whole)
    rates: Floats = network.rate_bytes_per_s.copy()
    nics = float(fabric.nics_per_leaf * (fabric.leaves_per_pod or network.leaves_per_pod))
    rates[network.first["leaf"] :] = cluster.nic_gbps * 1e9 / 8 * nics
    return replace(network, rate_bytes_per_s=rates)


def congestion_model(
    cluster: Cluster, gpu: Gpu, fabric: SwitchFabric, settings: EngineSettings
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


_MODELS: dict[str, CongestionModel] = {}
_MOST_MODELS = 16
