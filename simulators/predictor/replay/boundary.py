"""What travels between neighbouring pipeline stages, and how long it takes."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trainscout.simulators.predictor.collectives.price import (
    CollectivePrice,
    price_collective,
    price_send_recv,
)
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.uncertainty.factors import AS_IT_COMES, Factors
from trainscout.simulators.predictor.workload.communicators import spans
from trainscout.simulators.predictor.workload.ir import Collective, SendRecv
from trainscout.simulators.predictor.workload.program import Workload

from .engine import Floats
from .prices import calibrated_price

if TYPE_CHECKING:
    from .congestion import Congestion


@dataclass(frozen=True)
class Boundary:
    """One micro-batch's way from a stage to the next.

    ``sent``, priced ``price`` and noticed ``noticed_s`` later, then among the tensor-parallel
    ranks ``gathered``, priced ``gather_price``, where each of them sent its share only.
    """

    sent: SendRecv
    price: CollectivePrice
    gathered: Collective | None = None
    gather_price: CollectivePrice | None = None
    noticed_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.price.seconds + self.arrived_s

    @property
    def arrived_s(self) -> float:
        """Seconds after what was sent is there."""
        return self.noticed_s + (0.0 if self.gather_price is None else self.gather_price.seconds)


def boundary_transfers(
    job: Job,
    workload: Workload,
    congestion: Congestion | None = None,
    factors: Factors = AS_IT_COMES,
) -> tuple[Boundary, ...]:
    """From each stage to the next; the last entry is the wrap-around of the interleaved schedule.

    With ``scatter_gather_p2p`` each tensor-parallel rank sends its share of a tensor that all of
    them hold, and they gather it on arrival. None at all where there is one stage.
    """
    if job.recipe.pp == 1:
        return ()
    group, peers = workload.communicators["pp"], workload.communicators["tp"]
    sent = SendRecv("boundary", workload.stage_boundary_bytes, "pp")
    gathered = gather_price = None
    if job.framework.scatter_gather_p2p and peers.size > 1 and not job.recipe.sp:
        gathered = Collective("boundary_all_gather", "all_gather", sent.bytes, "tp")
        gather_price = price_collective("all_gather", sent.bytes, peers, job.gpu, job.network)
        sent = SendRecv("boundary", sent.bytes // peers.size, "pp")
        gather_price = calibrated_price(gather_price, peers.nodes > 1, factors)
    links = list(zip(boundary_crosses_domain(job), boundary_leaves_node(job), strict=True))
    transfers = {}
    for crosses, leaves in set(links):
        if crosses > leaves and job.cluster.num_nodes > 1:
            # Between islands of one server, past the network.
            server = replace(job.network, num_nodes=1)
            price = price_send_recv(sent.bytes, crosses, group, job.gpu, server)
        elif congestion is None:
            price = price_send_recv(sent.bytes, crosses, group, job.gpu, job.network)
        else:
            price = congestion.price(sent, crosses, group)
        price = calibrated_price(price, crosses, factors)
        noticed_s = job.framework.p2p_poll_s if crosses else 0.0
        transfers[crosses, leaves] = Boundary(sent, price, gathered, gather_price, noticed_s)
    return tuple(transfers[link] for link in links)


def boundary_seconds(job: Job, workload: Workload, factors: Factors = AS_IT_COMES) -> Floats:
    """Seconds of ``boundary_transfers``, shape (stages,); of a single stage 0."""
    boundaries = boundary_transfers(job, workload, factors=factors)
    return np.array([each.seconds for each in boundaries]) if boundaries else np.zeros(1)


def boundary_crosses_domain(job: Job) -> list[bool]:
    """Whether each stage and the next (the last: and the first) lie in different domains."""
    ((_, apart),) = spans(job)["pp"]
    return list(_crosses(job.recipe.pp, apart, job.cluster.domain, job.world_size))


def boundary_leaves_node(job: Job) -> list[bool]:
    """Whether what each stage sends to the next (the last: to the first) takes the network: they
    lie in different domains and in different servers."""
    ((_, apart),) = spans(job)["pp"]
    node = max(job.cluster.domain, job.cluster.gpus_per_node)
    return list(_crosses(job.recipe.pp, apart, node, job.world_size))


@functools.lru_cache(maxsize=1024)
def _crosses(stages: int, apart: int, domain: int, world_size: int) -> tuple[bool, ...]:
    """``boundary_crosses_domain`` of stages ``apart`` ranks apart."""
    crosses = []
    for stage in range(stages):
        after = (stage + 1) % stages
        # The first and the last rank of both, in every pipeline that lies beside others.
        low = min(stage, after) * apart
        high = (max(stage, after) + 1) * apart - 1
        pipelines = range(0, world_size, stages * apart)
        crosses.append(any((low + at) // domain != (high + at) // domain for at in pipelines))
    return tuple(crosses)
