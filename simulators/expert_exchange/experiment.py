"""One question to the routing simulator, and its answer layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.moe.loads import (
    copies_between,
    copies_by_expert,
    cut_to_capacity,
)
from trainscout.simulators.predictor.moe.router import Counts, Experts, Router, parameter, route
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_positive,
    require_whole,
)

from .communication import Communication, communicate, even_load_time_ms
from .mesh import UNLIMITED, Mesh


@dataclass(frozen=True)
class Message:
    """Sizes in bytes of what travels with each copy of a token that goes to an expert."""

    weight_precision: int = parameter(2, "bytes of the router's weight of a copy")
    routing_precision: int = parameter(2, "bytes that name the destination")
    id_precision: int = parameter(4, "bytes that name the source, and as many for the position")
    embed_dim: int = parameter(0, "elements of a token's embedding; 0: only routing data travels")
    embed_precision: int = parameter(2, "bytes of one element of an embedding")
    return_bytes: int = parameter(
        0, "bytes of a copy that return to its source when its expert is done (combine)"
    )

    def check(self) -> None:
        """Refuse sizes that are not whole numbers of bytes, and an empty message."""
        for name in ("routing_precision", "id_precision", "embed_precision"):
            require_whole(name, getattr(self, name))
        for name in ("weight_precision", "embed_dim", "return_bytes"):
            require_whole(name, getattr(self, name), 0)

    @property
    def copy_bytes(self) -> int:
        """Weight, destination, source and position in the sequence, and the embedding."""
        identity = self.routing_precision + 2 * self.id_precision
        return self.weight_precision + identity + self.embed_dim * self.embed_precision


MOST_ROUTINGS = 1 << 28
"""Of one layer: about a gigabyte of experts' numbers."""


@dataclass(frozen=True)
class Extent:
    """How much of the model is routed, and whether anything is."""

    num_layers: int = parameter(1, "layers with experts, each routed on its own")
    capacity_factor: float | None = parameter(
        None, "an expert takes this many times its even share, the rest is dropped (default: all)"
    )
    load_per_node: int | None = parameter(
        None, "bytes each node sends, evenly to all others, in place of a routing"
    )

    def check(self) -> None:
        """Refuse an extent that holds nothing."""
        require_whole("num_layers", self.num_layers)
        if self.capacity_factor is not None:
            require_positive("capacity_factor", self.capacity_factor)
        if self.load_per_node is not None:
            require_whole("load_per_node", self.load_per_node, 0)
            if self.capacity_factor is not None:
                problem = "has nothing to cut: load_per_node is in place of a routing"
                raise InputError("capacity_factor", self.capacity_factor, problem)


@dataclass(frozen=True)
class Experiment:
    """What is routed, what it weighs and what it crosses."""

    router: Router
    message: Message
    mesh: Mesh
    extent: Extent

    def check(self) -> None:
        """Refuse parameters that are wrong by themselves or together."""
        for part in (self.router, self.message, self.mesh, self.extent):
            part.check()
        nodes, layers = self.mesh.num_nodes, self.extent.num_layers
        if self.extent.load_per_node is not None:
            load = self.extent.load_per_node
            _require_countable("load_per_node", load, load * nodes)
            if load % (nodes - 1):
                allowed = f"a multiple of num_nodes - 1 = {nodes - 1}"
                raise InputError("load_per_node", load, "does not divide evenly", allowed)
            return
        if self.router.num_experts % nodes:
            experts, allowed = self.router.num_experts, f"a multiple of num_nodes={nodes}"
            raise InputError("num_experts", experts, "does not divide evenly", allowed)
        if self.router.seqlen < nodes:
            seqlen, allowed = self.router.seqlen, f">= num_nodes={nodes}"
            raise InputError("seqlen", seqlen, "leaves a node without a token", allowed)
        if self.router.seqlen * self.router.top_k > MOST_ROUTINGS:
            allowed = (
                f"at most {MOST_ROUTINGS // self.router.top_k} with top_k={self.router.top_k}"
            )
            raise InputError("seqlen", self.router.seqlen, "is too long", allowed)
        routings = self.router.seqlen * self.router.top_k
        for name, size in (
            ("embed_dim", self.message.copy_bytes),
            ("return_bytes", self.message.return_bytes),
        ):
            _require_countable(name, getattr(self.message, name), routings * size)
        measured = self.router.measured
        if measured is not None and len(measured) not in (1, layers):
            problem = f"does not match the {len(measured)} layers of the histogram"
            raise InputError("num_layers", layers, problem, str(len(measured)))


def _require_countable(name: str, value: int, total_bytes: int) -> None:
    if total_bytes > UNLIMITED:
        raise InputError(name, value, f"makes {total_bytes:.2g} bytes travel", "at most 4.6e18")


@dataclass(frozen=True, eq=False)
class Routed:
    """A layer's routing: experts of each token, (tokens, top_k); copies asked for and copies
    kept by source and expert, (num_nodes, num_experts)."""

    chosen: Experts
    requested: Counts
    kept: Counts


@dataclass(frozen=True, eq=False)
class Layer:
    """What one layer routed and what its exchange took.

    ``load_bytes`` is from each node to each node; what a node keeps, its diagonal, does not
    travel. ``even_time_ms``: ``communication.even_load_time_ms``. An even load has no routing.
    ``back``: what copies return to their sources, where they return anything.
    """

    number: int
    routed: Routed | None
    load_bytes: Counts
    communication: Communication
    even_time_ms: float | None
    back: Communication | None = None


def layers_of(experiment: Experiment) -> Iterator[Layer]:
    """Each layer of a checked experiment in turn; only one is held at a time."""
    mesh, load = experiment.mesh, experiment.extent.load_per_node
    for number in range(experiment.extent.num_layers):
        routed = back = None
        if load is not None:
            load_bytes = np.full((mesh.num_nodes, mesh.num_nodes), load // (mesh.num_nodes - 1))
            np.fill_diagonal(load_bytes, 0)
        else:
            routed = _route(experiment, number)
            load_bytes = copies_between(routed.kept) * experiment.message.copy_bytes
            if returned := experiment.message.return_bytes:
                back = communicate(copies_between(routed.kept).T * returned, mesh)
        communication = communicate(load_bytes, mesh)
        even_ms = even_load_time_ms(load_bytes, mesh)
        yield Layer(number, routed, load_bytes, communication, even_ms, back)


def _route(experiment: Experiment, layer: int) -> Routed:
    router, factor = experiment.router, experiment.extent.capacity_factor
    chosen = route(router, layer)
    requested = copies_by_expert(chosen, router.num_experts, experiment.mesh.num_nodes)
    kept = requested
    if factor is not None:
        kept = cut_to_capacity(requested, router.seqlen, router.top_k, factor)
    return Routed(chosen, requested, kept)
