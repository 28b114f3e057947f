"""What the simulation asks of prices: replay's own, of a GPU and a cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainscout.simulators.predictor.interference.overlap import overlap_slowdowns
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.framework import UNDECLARED, Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.workload.ir import Communicator
from trainscout.simulators.virtual_cluster.traces.lowering.tensors import Lowered
from trainscout.simulators.virtual_cluster.walk.communicators import (
    communicator_of,
    levels_crossed,
    narrowed,
)
from trainscout.simulators.virtual_cluster.walk.prices import SHARED_GPU, Price, price_contents
from trainscout.simulators.virtual_cluster.walk.rendezvous import Call


class Prices:
    """Prices of ``replay`` for what ranks launch, each content priced once.

    ``slowdown_of_two``: factor by which two kernels that run at the same time are slowed.

    Args:
        gpu, cluster, framework: as in ``replay_ranks``; the cluster's nodes are those in use.
        alone: price transfers as if no other shared the node's NICs or the fabric, for a network
            that plays sharing itself.
    """

    slowdown_of_two = SHARED_GPU

    def __init__(
        self, gpu: Gpu, cluster: Cluster, framework: Framework = UNDECLARED, *, alone: bool = False
    ) -> None:
        self._gpu = gpu
        self._cluster = replace(cluster, oversubscription=1.0) if alone else cluster
        self._alone = alone
        self._groups: dict[str, Communicator] = {}
        self._names: dict[tuple[tuple[int, ...], bool], str] = {}
        self._pricer = Pricer(gpu, self._cluster, framework, self._groups)
        # By identity: lowering gives equal operations one object, which is kept with its price.
        self._kernels: dict[int, tuple[Lowered, Price]] = {}
        self._communications: dict[tuple[object, ...], Price] = {}
        self._slowdowns: dict[tuple[bytes, float, float], tuple[float, float]] = {}

    def kernel(self, content: object) -> Price:
        """The price of a launch's content (``rank_walk.Launch``)."""
        assert isinstance(content, Lowered)
        known = self._kernels.get(id(content))
        if known is None:
            (price,) = price_contents(self._pricer, [content])
            known = self._kernels[id(content)] = (content, price)
        return known[1]

    def communication(
        self,
        call: Call,
        group: tuple[int, ...],
        ends: tuple[int, int] | None = None,
        *,
        collnet: bool = False,
    ) -> Price:
        """The price of a collective of ``group``, or a transfer between two ``ends`` of it;
        ``collnet``: it asked for switches that sum."""
        crossed = None if ends is None else levels_crossed(*ends, self._cluster)
        key = (call, group, crossed, collnet)
        price = self._communications.get(key)
        if price is None:
            name = self._communicator(group, collnet, crossed)
            (price,) = price_contents(self._pricer, [call.operation(name)])
            self._communications[key] = price
        return price

    def slowdowns(self, kernel: Price, communication: Price) -> tuple[float, float]:
        """Factors by which the kernel and the communication run longer side by side, >= 1."""
        if not kernel.mix or not communication.seconds:
            return 1.0, 1.0
        key = (kernel.mix, communication.channels, communication.memory_bytes_per_s)
        factors = self._slowdowns.get(key)
        if factors is None:
            on_kernel, on_transfer = overlap_slowdowns(
                self._gpu,
                np.frombuffer(kernel.mix).reshape(1, 2, -1),
                np.array([communication.channels]),
                np.array([communication.memory_bytes_per_s]),
            )
            factors = float(on_kernel[0, 0]), float(on_transfer[0, 0])
            self._slowdowns[key] = factors
        return factors

    def _communicator(self, group: tuple[int, ...], collnet: bool, crossed: int | None) -> str:
        """The name a group has for the pricer; ``crossed``: by a transfer between two of it."""
        name = self._names.setdefault((group, collnet), f"group {len(self._names)}")
        known = communicator_of(name, group, self._cluster, collnet=collnet)
        if self._alone:
            known = replace(known, siblings=1)
        if crossed is not None:
            known = narrowed(known, crossed)
        self._groups.setdefault(known.name, known)
        return known.name
