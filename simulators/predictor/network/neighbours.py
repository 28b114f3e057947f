"""Other jobs on the same switches: what they send, and where they stand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)

Ints = NDArray[np.int64]

KINDS = ("all_reduce", "all_to_all")
PLACES = ("between", "after")


@dataclass(frozen=True)
class Neighbour:
    """A job of its own nodes, equal to ours, whose GPUs all communicate with each other."""

    nodes: int
    """How many nodes it has."""
    kind: str = "all_reduce"
    """Which collective: ``all_reduce`` (rings, one for each GPU of a node) or ``all_to_all``
    (to sixteen evenly spaced peers, where there are more)."""
    busy: float = 1.0
    """The share of the time in which it communicates."""
    placed: str = "between"
    """``between`` spreads its nodes evenly between ours, which then stand further apart than
    without it; ``after`` puts them behind ours, which stay where they are."""

    def check(self, field: str) -> None:
        """Refuse what is no job."""
        require_positive(f"{field}.nodes", self.nodes)
        if self.nodes < 2:
            raise InputError(f"{field}.nodes", self.nodes, "sends nothing to others", ">= 2")
        require_choice(f"{field}.kind", self.kind, KINDS)
        require_choice(f"{field}.placed", self.placed, PLACES)
        if not 0 < self.busy <= 1:
            raise InputError(f"{field}.busy", self.busy, "is out of range", "0 < busy <= 1")


@dataclass(frozen=True, eq=False, repr=False)
class Neighbourhood:
    """Our cluster with its neighbours' nodes in it, and whose GPU is which.

    ``ours``: the place of each of our GPUs, shape (GPUs,); ``others``: those of each neighbour.
    """

    cluster: Cluster
    ours: Ints
    others: tuple[Ints, ...]


def neighbourhood(cluster: Cluster, neighbours: Sequence[Neighbour]) -> Neighbourhood:
    """Where everybody stands. NVLink domains stay whole.

    Raises:
        InputError: for nodes that would share an NVLink domain with another job's, or too many.
    """
    from .topology.wiring import require_wirable

    nodes = cluster.num_nodes + sum(each.nodes for each in neighbours)
    whole = replace(cluster, num_nodes=nodes)
    require_wirable(whole)
    unit = max(1, cluster.domain // cluster.gpus_per_node)
    counts = []
    for at, nodes in enumerate([cluster.num_nodes, *(each.nodes for each in neighbours)]):
        if nodes % unit and len(neighbours):
            field = f"network.neighbours[{at - 1}].nodes" if at else "cluster.num_nodes"
            problem = "shares an NVLink domain with another job"
            raise InputError(field, nodes, problem, f"multiples of {unit}")
        counts.append(math.ceil(nodes / unit))
    between = [0, *(at + 1 for at, each in enumerate(neighbours) if each.placed == "between")]
    # Whoever has n units has them at the middles of n equal parts.
    middles = np.concatenate([(np.arange(counts[who]) + 0.5) / counts[who] for who in between])
    owners = np.repeat(between, [counts[who] for who in between])
    owners = owners[np.argsort(middles, kind="stable")]
    behind = [at + 1 for at, each in enumerate(neighbours) if each.placed == "after"]
    owners = np.concatenate([owners, np.repeat(behind, [counts[who] for who in behind])])
    gpus = unit * cluster.gpus_per_node
    inside = np.arange(gpus)
    places = [
        (np.flatnonzero(owners == who)[:, None] * gpus + inside).ravel()
        for who in range(len(counts))
    ]
    return Neighbourhood(whole, places[0][: cluster.num_gpus], tuple(places[1:]))
