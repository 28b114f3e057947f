"""What a declared network adds to the prices of one job's communication.

The price of a collective is what it takes when its transfers share nothing but their own node's
links (``collectives``, with ``cluster.oversubscription`` 1). A congestion factor says
how many times longer the same transfers take on the declared network, with all groups of that
dimension communicating at once (``network.collectives``). It multiplies what of the
price grows with the size; what the same call takes for next to nothing stays.

Approximations: every dimension is alone with itself on the network (data-parallel traffic
does not meet pipeline traffic); all groups of a dimension begin together, at full size; the
factor of long messages is that of ``most_bytes_per_gpu``, shorter ones are rounded up to a power
of two (the flow engine's factor is the same for all sizes); NVLS moves what two levels move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.collectives.price import (
    CollectivePrice,
    price_exchange,
    price_forced,
    price_send_recv,
)
from trainscout.simulators.predictor.network.choice import CongestedNetwork, NetworkChoice
from trainscout.simulators.predictor.network.collectives.congestion import (
    Congested,
    Pattern,
    congestion_model,
)
from trainscout.simulators.predictor.network.collectives.patterns import OF_NCCL
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.workload.communicators import dimension, spans
from trainscout.simulators.predictor.workload.feed_forward.expert_loads import rank_loads
from trainscout.simulators.predictor.workload.ir import Collective, Communicator, SendRecv
from trainscout.simulators.predictor.workload.shard import Shard

# Bytes the GPU that sends most sends, per byte of NCCL's size.
_TIMES_ROUND = {"all_reduce": 2.0}
# Layers whose hot experts lie elsewhere: the mean of a few is that of all.
_LAYERS = 4


@dataclass(frozen=True)
class Slowed:
    """One communication's congestion: ``factor`` on what of its price grows with the size, and
    what was played for it (of several layers the one that congests most)."""

    factor: float
    congested: Congested | None = None


_FREE = Slowed(1.0)


class Congestion:
    """Slows the communication of one job down, as far as a network's choice covers it.

    Of a communication, ``crosses_nodes`` says whether it leaves an NVLink domain, ``group`` whose
    it is, and ``price`` what it takes with nothing else on the network.
    """

    def __init__(self, job: Job, network: CongestedNetwork, *, alone: bool = False) -> None:
        """``alone``: as if each communication had the network to itself, to be played together.

        Raises:
            InputError: for switches that the job's cluster cannot be wired to.
        """
        self.network = network
        self._choice = network.choice
        self._gpu, self._cluster, self._alone = job.gpu, job.network, alone
        self.model = congestion_model(job.cluster, job.gpu, network.fabric, network.settings)
        self._spans = spans(job)
        self._loads = _loads(job)
        self._in_levels = job.dispatcher == "deepep"
        self._worn_inside = any(
            name.endswith(("nvlink", "pcie")) for name in network.fabric.link_health
        )
        # Everything that factors may depend on.
        self.key = repr((job.cluster, network, self._spans, self._loads, self._in_levels, alone))

    def covers(self, communicator: str) -> bool:
        """Whether this communicator's transfers are played."""
        return dimension(communicator) in self._choice.communicators and (
            communicator in self._spans
        )

    def _priced_on(self, communicator: str) -> Cluster:
        """The cluster to price a communicator on: oversubscription is not counted twice, and
        switches that are declared count whole."""
        own = self._cluster.oversubscription
        counted = 1.0 if self.covers(communicator) else own or 1.0
        return (
            self._cluster if own == counted else replace(self._cluster, oversubscription=counted)
        )

    def alone(
        self, op: Collective | SendRecv, crosses_nodes: bool, group: Communicator
    ) -> CollectivePrice:
        """The price of one communication with nothing else on the network."""
        cluster = self._priced_on(op.communicator)
        if isinstance(op, SendRecv):
            members = group.pair if op.paired else group
            return price_send_recv(op.bytes, crosses_nodes, members, self._gpu, cluster)
        return price_exchange(op, group, self._gpu, cluster)

    def price(
        self, op: Collective | SendRecv, crosses_nodes: bool, group: Communicator
    ) -> CollectivePrice:
        """The price of one communication, congested."""
        price = self.alone(op, crosses_nodes, group)
        if not self._meets_others(op, crosses_nodes, group, price):
            return price
        least_s = self.least_s(op, crosses_nodes, group, price)
        # What takes no longer for its bytes takes no longer for sharing links.
        if price.seconds <= least_s:
            return price
        factor = self.slowed(op, crosses_nodes, group, price).factor
        if factor == 1:
            return price
        seconds = price.seconds + (factor - 1) * (price.seconds - least_s)
        return replace(
            price,
            seconds=seconds,
            wire_bytes_per_s=price.wire_bytes_per_s * price.seconds / seconds,
            evidence=Evidence.ESTIMATED,
        )

    def slowed(
        self,
        op: Collective | SendRecv,
        crosses_nodes: bool,
        group: Communicator,
        price: CollectivePrice,
    ) -> Slowed:
        """The congestion of one communication.

        Raises:
            InputError: when no working path joins two of its GPUs.
        """
        if not self._meets_others(op, crosses_nodes, group, price):
            return _FREE
        patterns = self.patterns(op, price)
        sent = self._bytes_per_gpu(op, group.size)
        played = [self.model.congested(what, sent) for what in patterns]
        factor = float(np.mean([each.factor for each in played]))
        return Slowed(factor, max(played, key=lambda each: each.factor))

    def _meets_others(
        self,
        op: Collective | SendRecv,
        crosses_nodes: bool,
        group: Communicator,
        price: CollectivePrice,
    ) -> bool:
        if self._alone or not self.covers(op.communicator) or group.size <= 1 or not price.seconds:
            return False
        return crosses_nodes or self._worn_inside

    def patterns(self, op: Collective | SendRecv, price: CollectivePrice) -> list[Pattern]:
        """Who sends to whom in one communication; of uneven experts in several layers."""
        span = self._spans[op.communicator]
        if isinstance(op, SendRecv):
            return [Pattern("neighbours" if op.communicator == "pp" else "round", span)]
        if op.communicator == "embedding":
            ends = "mirrored" if op.name == "copies" else "ends"
            return [Pattern(ends, self._spans["pp"], price.channels)]
        algorithm = OF_NCCL[price.algorithm]
        if algorithm == "pairs":
            loads = self._loads if op.communicator == "ep" else ()
            if op.communicator == "ep" and self._in_levels:
                algorithm = "hierarchical_pairs"
            back = op.name.startswith("combine") and bool(loads)
            return [Pattern(algorithm, span, loads=layer, back=back) for layer in loads or ((),)]
        if op.kind != "all_reduce" and algorithm != "pat":
            algorithm = "ring"
        channels = 1 if algorithm == "hierarchical" else price.channels
        return [Pattern(algorithm, span, channels)]

    def _bytes_per_gpu(self, op: Collective | SendRecv, size: int) -> float:
        most = self._choice.most_bytes_per_gpu
        if self._choice.engine == "flow":
            # Hops would weigh more the fewer they are, and more take no longer to play.
            return max(most, NetworkChoice.most_bytes_per_gpu)
        sent = float(op.bytes)
        if isinstance(op, Collective):
            sent *= _TIMES_ROUND.get(op.kind, 1.0) * (size - 1) / size
        return float(min(most, 2 ** math.ceil(math.log2(max(sent, 1.0)))))

    def least_s(
        self,
        op: Collective | SendRecv,
        crosses_nodes: bool,
        group: Communicator,
        price: CollectivePrice,
    ) -> float:
        """What the same call takes for next to nothing."""
        cluster = self._priced_on(op.communicator)
        if isinstance(op, SendRecv):
            return price_send_recv(1, crosses_nodes, group, self._gpu, cluster).seconds
        size, algorithm = 4 * group.size, price.algorithm
        if op.kind == "all_to_all":
            algorithm = ""
        return price_forced(op.kind, size, group, self._gpu, cluster, algorithm, op.dtype).seconds


def _loads(job: Job) -> tuple[tuple[float, ...], ...]:
    """Shares of what is sent that the expert-parallel ranks receive, in a few layers."""
    if job.model.moe is None or job.recipe.ep == 1:
        return ()
    return rank_loads(Shard.of(job), _LAYERS)
