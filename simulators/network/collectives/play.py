"""Communications on an engine: when they end, and what they ask of every link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulators.errors import require_choice
from simulators.network.collectives.transfers import Floats, Ints, Transfers
from simulators.network.topology import Network, Routes, find_routes

ENGINES = ("flow", "packet", "hybrid")


@dataclass(frozen=True)
class EngineSettings:
    """Which engine, and its own settings (``PacketSettings``, ``HybridSettings`` fields)."""

    name: str = "flow"
    packet: dict[str, Any] = field(default_factory=dict)
    hybrid: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Played:
    """What communications that began together came to.

    ``end_s``: of each, shape (communications,). ``link_bytes``: over each link, shape (links,);
    ``busy`` the share of the whole time that it would take at the link's rate.
    """

    end_s: Floats
    link_bytes: Floats
    busy: Floats


def play(
    network: Network,
    communications: Sequence[tuple[Transfers, float]],
    settings: EngineSettings | None = None,
) -> Played:
    """Play communications, all beginning at once, each with its size in bytes.

    Raises:
        InputError: for an unknown engine or settings, or GPUs that no working path joins.
    """
    settings = EngineSettings() if settings is None else settings
    engine = make_engine(network, settings)
    numbers: list[Ints] = []
    link_bytes = np.zeros(network.num_links)
    for what, size in communications:
        routes = find_routes(network, what.source, what.destination, what.label)
        sizes = np.maximum(what.share * size, 1.0)
        np.add.at(link_bytes, *_crossings(routes, sizes))
        numbers.append(engine.add(routes, sizes, after=what.after + engine.next_flow))
    engine.advance()
    end_s = np.array([engine.completion_s(each).max() for each in numbers])
    whole_s = end_s.max()
    with np.errstate(invalid="ignore", divide="ignore"):
        busy = np.where(link_bytes > 0, link_bytes / network.rate_bytes_per_s / whole_s, 0.0)
    return Played(end_s, link_bytes, busy)


def make_engine(network: Network, settings: EngineSettings) -> Any:
    """An engine over a network's links.

    Raises:
        InputError: for an unknown engine or settings out of range.
    """
    require_choice("network.engine", settings.name, ENGINES)
    if settings.name == "flow":
        from simulators.network.flow import FlowEngine

        return FlowEngine(network.rate_bytes_per_s, network.max_hops)
    from simulators.network.packet import PacketEngine, PacketSettings

    links = (network.rate_bytes_per_s, network.delay_s, network.max_hops)
    packet = PacketSettings(**settings.packet)
    if settings.name == "packet":
        return PacketEngine(*links, packet)
    from simulators.network.hybrid import HybridEngine, HybridSettings

    return HybridEngine(*links, packet, HybridSettings(**settings.hybrid))


def _crossings(routes: Routes, sizes: Floats) -> tuple[Ints, Floats]:
    """Links that flows cross, one entry a crossing, and the bytes that do."""
    there = routes.links >= 0
    return routes.links[there], np.broadcast_to(sizes[:, None], there.shape)[there]
