"""What one job's communication asks of the links of a declared network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.network.choice import CongestedNetwork
from trainscout.simulators.predictor.network.topology.network import Network
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.uncertainty.calibration import Calibration, factors_of
from trainscout.simulators.predictor.workload.communicators import dimension
from trainscout.simulators.predictor.workload.ir import Collective, Communicator, SendRecv
from trainscout.simulators.predictor.workload.program import Workload

from .assemble import Assembler
from .boundary import boundary_crosses_domain
from .congestion import Congestion
from .prices import Pricer

Floats = np.ndarray


@dataclass(frozen=True)
class CommunicatorUse:
    """The longest message of one communicator, all its groups communicating at once.

    ``operation`` sends ``bytes`` (NCCL's size) and takes ``seconds``, of which ``alone_s`` with
    nothing else on the network. ``factor``: how much longer its transfers take for sharing links.
    ``busy``, shape (links,): the share of that time which each link's bytes would take at its
    rate; None where nothing leaves a node.
    """

    communicator: str
    operation: str
    algorithm: str
    bytes: int
    group: Communicator
    groups: int
    alone_s: float
    seconds: float
    factor: float
    busy: Floats | None


@dataclass(frozen=True)
class NetworkUse:
    """Every communicator that an engine plays for one job, on the network it was played on."""

    network: Network
    communicators: tuple[CommunicatorUse, ...]


def network_use(
    job: Job, workload: Workload, of: CongestedNetwork, calibration: Calibration | None = None
) -> NetworkUse:
    """What a valid job's communication asks of a network.

    Raises:
        InputError: when failed links or missing tiers leave GPUs without a path.
    """
    congestion = Congestion(job, of)
    groups = workload.communicators
    pricer = Pricer.of(job, groups, factors_of(calibration), network=congestion)
    longest: dict[str, Collective | SendRecv] = {}
    for op in _communication(job, workload, pricer):
        known = longest.get(op.communicator)
        if congestion.covers(op.communicator) and (known is None or op.bytes > known.bytes):
            longest[op.communicator] = op
    order = of.choice.communicators
    uses = [
        _use(job, congestion, groups[name], longest[name])
        for name in sorted(longest, key=lambda name: order.index(dimension(name)))
        if groups[name].size > 1
    ]
    return NetworkUse(congestion.model.network, tuple(uses))


def _use(
    job: Job, congestion: Congestion, group: Communicator, op: Collective | SendRecv
) -> CommunicatorUse:
    crosses = group.nodes > 1
    if op.communicator == "pp":
        crosses = any(boundary_crosses_domain(job))
    alone = congestion.alone(op, crosses, group)
    congested = congestion.price(op, crosses, group)
    slowed = congestion.slowed(op, crosses, group, alone)
    # Of the ends of a pipeline one, whatever lies between.
    span = congestion.patterns(op, alone)[0].span
    return CommunicatorUse(
        op.communicator,
        op.kind if isinstance(op, Collective) else "send/recv",
        alone.algorithm,
        op.bytes,
        group,
        job.world_size // math.prod(count for count, _ in span),
        alone.seconds,
        congested.seconds,
        slowed.factor,
        None if slowed.congested is None else slowed.congested.played.busy,
    )


def _communication(
    job: Job, workload: Workload, pricer: Pricer
) -> Iterator[Collective | SendRecv]:
    """Every communication of a step, each at least once."""
    program = Assembler(job, workload, pricer).assemble(job.least_micro_batches)
    for block in (*program.blocks.values(), *workload.blocks):
        yield from (op for op in block.ops if isinstance(op, Collective | SendRecv))
    if job.recipe.pp > 1:
        yield SendRecv("boundary", workload.stage_boundary_bytes, "pp")
