"""Transfers of traced ranks as flows over a cluster's links, of the algorithm that NCCL chose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.network.collectives import patterns
from trainscout.simulators.predictor.network.collectives.transfers import (
    Transfers,
    split,
    transfers,
)
from trainscout.simulators.predictor.network.flow.engine import FlowEngine
from trainscout.simulators.predictor.network.topology.network import Network
from trainscout.simulators.predictor.network.topology.routing import Routes, find_routes

# Whose flows are not those of any ring.
_OWN_KINDS = ("all_reduce", "all_to_all", "send_recv")


@dataclass(frozen=True)
class FlowPattern:
    """Flows of one kind of transfer among given ranks: routes and relative sizes, shape (n,).

    ``alone_s``: when the last has arrived, nothing else being sent and sizes being bytes.
    """

    routes: Routes
    shares: NDArray[np.float64]
    alone_s: float


class FlowPatterns:
    """What transfers among ranks, which are a network's GPUs in order, ask of its links.

    A transfer is to become flows of such sizes that alone they take what its price says beyond its
    latency: a protocol that reaches 80 % of a link holds all of it.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._patterns: dict[tuple[str, str, tuple[int, ...]], FlowPattern] = {}

    def of(self, kind: str, chosen: str, ranks: tuple[int, ...]) -> FlowPattern:
        """The flows of a ``kind`` of communication by the algorithm that NCCL chose."""
        algorithm = patterns.OF_NCCL.get(chosen, "ring")
        key = (kind if kind in _OWN_KINDS else "ring", algorithm, ranks)
        found = self._patterns.get(key)
        if found is None:
            flows = split(self._flows(kind, algorithm, ranks), self._network.planes)
            paths = find_routes(self._network, flows.source, flows.destination, flows.label)
            # The price's latency covers the hops.
            routes = Routes(paths.links, np.zeros(len(flows)))
            engine = self.new_engine()
            # Bytes enough for a time that the engine's clock resolves.
            scale = float(self._network.rate_bytes_per_s.max())
            engine.add(routes, scale * flows.share)
            alone_s = float(engine.advance().completion_s.max()) / scale
            found = self._patterns[key] = FlowPattern(routes, flows.share, alone_s)
        return found

    def _flows(self, kind: str, algorithm: str, ranks: tuple[int, ...]) -> Transfers:
        """What each pair of ranks carries of a byte of the transfer, all steps at once.

        Rings and trees are as many as a node has members, each leaving nodes at another's NIC.
        """
        if kind == "send_recv":
            return patterns.send(*ranks)
        members = patterns.by_node(ranks, self._network.nccl_node)
        inside = min(map(len, members))
        if algorithm == "hierarchical" and inside < max(map(len, members)):
            algorithm = "ring"
        known = kind if kind in _OWN_KINDS else "all_gather"
        made = patterns.pattern(known, members, algorithm=algorithm, channels=inside)
        # Channels that join the same two ranks are one flow.
        ends, of = np.unique(
            np.stack([made.source, made.destination], axis=1), axis=0, return_inverse=True
        )
        shares: NDArray[np.float64] = np.bincount(of.ravel(), made.share).astype(np.float64)
        return transfers(ends, shares)

    def new_engine(self) -> FlowEngine:
        """An engine over the network's links."""
        return FlowEngine(self._network.rate_bytes_per_s, self._network.max_hops)
