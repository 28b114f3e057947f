"""A communication on an engine: when it ends, and what it asks of every link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainscout.simulators.predictor.network.choice import (
    ENGINES,
    WHITEBOX,
    CongestedNetwork,
    NetworkChoice,
)
from trainscout.simulators.predictor.network.hybrid.memory import joined
from trainscout.simulators.predictor.network.neighbours import neighbourhood
from trainscout.simulators.predictor.network.packet.settings import PacketSettings
from trainscout.simulators.predictor.network.topology.fabric import Failure
from trainscout.simulators.predictor.network.topology.network import Network
from trainscout.simulators.predictor.network.topology.routing import (
    NO_LINK,
    Routes,
    equal_paths,
    find_routes,
    mixed,
)
from trainscout.simulators.predictor.network.topology.wiring import build_network, links_named
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError, require_choice
from trainscout.simulators.predictor.question.gpu import Gpu

from .transfers import Floats, Ints, Transfers, split

FLUID = NetworkChoice("flow")


@dataclass(frozen=True)
class Played:
    """What a communication came to.

    ``end_s``: of each of its transfers, shape (transfers,). ``link_bytes``: over each link, shape
    (links,); ``busy`` the share of the whole time that it would take at the link's rate.
    """

    end_s: Floats
    link_bytes: Floats
    busy: Floats


def play(
    network: Network,
    what: Transfers,
    size: float,
    settings: NetworkChoice = FLUID,
    others: Sequence[Transfers] = (),
    memory: dict[bytes, Any] | None = None,
) -> Played:
    """Play a communication of ``size`` bytes.

    ``others`` send all the while; what they send is not in the answer. ``memory``: where the
    hybrid engine keeps what it played, for plays of equal ``settings``.

    Raises:
        InputError: for an unknown engine or settings, or GPUs that no working path joins.
    """
    more = 16.0
    while True:
        engine = make_engine(network, settings, memory=memory)
        ours, others_end_s = _played_with_others(
            engine, network, what, size, settings, others, more
        )
        if others_end_s >= ours.end_s.max():
            return ours
        more *= 2


def _played_with_others(
    engine: Any,
    network: Network,
    what: Transfers,
    size: float,
    settings: NetworkChoice,
    others: Sequence[Transfers],
    more: float,
) -> tuple[Played, float]:
    """``play`` where each GPU of the others sends ``more`` times what ours send at most, and when
    the first of the others has sent all (infinite without others)."""
    link_bytes = np.zeros(network.num_links)
    parts = network.planes * settings.queue_pairs
    what = split(what, parts)
    routes, others_of = paths_of(network, what, settings)
    sizes = np.maximum(what.share * size, 1.0)
    sprayed = [routes, *others_of.get("others", [])]
    for each in sprayed:
        np.add.at(link_bytes, *crossings(each, sizes / len(sprayed)))
    if not others and settings.plays_alike:
        first = first_alike(network, routes.links, sizes)
        shown, of_shown = np.unique(first, return_inverse=True)
        few = Routes(routes.links[shown], routes.latency_s[shown])
        ours = engine.add(few, sizes[shown])[of_shown]
    else:
        ours = engine.add(routes, sizes, **others_of)
    others_sent: list[Ints] = []
    for whole in others:
        other = split(whole, parts)
        routes, others_of = paths_of(network, other, settings)
        sizes = np.maximum(other.share * size * more, 1.0)
        others_sent.append(engine.add(routes, sizes, **others_of))
    if not others:
        engine.advance()
    # Nobody waits for the others to end.
    until_s = float((link_bytes / np.maximum(network.rate_bytes_per_s, 1.0)).max())
    while (end_s := engine.completion_s(ours)).max() == np.inf:
        until_s *= 1.5
        engine.advance(until_s)
    others_s = min(
        (float(engine.completion_s(each).min()) for each in others_sent), default=np.inf
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        busy = np.where(link_bytes > 0, link_bytes / network.rate_bytes_per_s / end_s.max(), 0.0)
    return Played(end_s.reshape(-1, parts).max(axis=1), link_bytes, busy), others_s


def paths_of(
    network: Network, what: Transfers, settings: NetworkChoice, first_link: int = 0
) -> tuple[Routes, dict[str, Any]]:
    """The paths of transfers, and as an engine's ``others`` those that their packets may take as
    well; over a copy of the network whose links begin at ``first_link``."""
    found = []
    for turn in range(min(settings.paths, equal_paths(network))):
        routes = find_routes(network, what.source, what.destination, what.label, turn)
        links = np.where(routes.links == NO_LINK, NO_LINK, routes.links + first_link)
        found.append(Routes(links, routes.latency_s))
    return found[0], {"others": found[1:]} if len(found) > 1 else {}


def make_engine(
    network: Network,
    settings: NetworkChoice,
    copies: int = 1,
    memory: dict[bytes, Any] | None = None,
) -> Any:
    """An engine over a network's links, or over ``copies`` of them one after another; the hybrid
    one with what others like it remember.

    Raises:
        InputError: for an unknown engine or settings out of range.
    """
    require_choice("network.engine", settings.engine, ENGINES)
    if settings.engine == "flow":
        from trainscout.simulators.predictor.network.flow.engine import FlowEngine

        return FlowEngine(np.tile(network.rate_bytes_per_s, copies), network.max_hops)
    from trainscout.simulators.predictor.network.packet.engine import PacketEngine
    from trainscout.simulators.predictor.network.packet.failing import FailingEngine

    rates, delays = (np.tile(each, copies) for each in (network.rate_bytes_per_s, network.delay_s))
    links = (rates, delays, network.max_hops)
    packet = settings.packets
    if settings.failures:
        first = np.arange(copies) * network.num_links
        failing = [
            (each, np.add.outer(first, _failing_links(network, each, at)).ravel())
            for at, each in enumerate(settings.failures)
        ]
        return FailingEngine(*links, packet, failing)
    if settings.engine == "packet":
        return PacketEngine(*links, packet)
    from trainscout.simulators.predictor.network.hybrid.engine import HybridEngine

    skippable = PacketSettings()
    for name in ("routing", "recovery", "class_of", "weights"):
        value = getattr(packet, name)
        if value != getattr(skippable, name):
            problem = "is played packet by packet"
            raise InputError(f"network.packet.{name}", value, problem, "network=packet")
    return HybridEngine(*links, packet, settings.hybrid, memory)


def check_playable(of: CongestedNetwork, cluster: Cluster, gpu: Gpu) -> None:
    """Refuse switches that this cluster cannot be wired to, and engines that cannot play."""
    if cluster.measured:
        problem = "plays over again what cluster.measured_collectives holds"
        raise InputError("network.engine", of.choice.engine, problem, WHITEBOX)
    whole = neighbourhood(cluster, of.choice.neighbours).cluster
    make_engine(build_network(whole, gpu, of.fabric), of.choice)


def _failing_links(network: Network, failure: Failure, at: int) -> Ints:
    try:
        return links_named(network, failure.link)
    except InputError as error:
        field = f"network.failures[{at}].link"
        raise InputError(field, failure.link, error.problem, error.allowed) from None


def crossings(routes: Routes, sizes: Floats) -> tuple[Ints, Floats]:
    """Links that flows cross, one entry a crossing, and the bytes that do."""
    there = routes.links >= 0
    return routes.links[there], np.broadcast_to(sizes[:, None], there.shape)[there]


def first_alike(network: Network, links: Ints, sizes: Floats) -> Ints:
    """For each flow the one of the first component that is like its own, shape (flows,).

    Flows that share a link, over any number of others, are a component. Two are alike where their
    flows, in order, have the same sizes, and routes over links of the same rates and delays that
    meet in the same way: whatever goes by nothing else lets both arrive at the same times.

    Args:
        network: what they are routed over.
        links: of each flow, shape (flows, hops), filled up with ``NO_LINK``.
        sizes: bytes, shape (flows,).
    """
    count = len(links)
    no_ties = np.empty((0, 2), dtype=np.int64)
    label = joined(links, no_ties, np.full(network.num_links, -1, dtype=np.int64))
    order = np.argsort(label, kind="stable")
    first = np.flatnonzero(np.diff(label[order], prepend=-1))
    length = np.diff(first, append=count)
    component = np.repeat(np.arange(len(first)), length)
    position = np.arange(count) - first[component]
    routes, there = links[order], links[order] != NO_LINK
    # A link's place among those of its component, in ascending order.
    crossing = (component[:, None] * network.num_links + routes)[there]
    crossed, at = np.unique(crossing, return_inverse=True)
    begin = np.searchsorted(crossed // network.num_links, np.arange(len(first)))
    place = np.full(routes.shape, NO_LINK)
    place[there] = at - begin[np.broadcast_to(component[:, None], routes.shape)[there]]
    delays, rates = network.delay_s, network.rate_bytes_per_s
    own = [sizes[order]]
    for hop in range(links.shape[1]):
        link = routes[:, hop]
        own += [place[:, hop], rates[link], np.where(there[:, hop], delays[link], -1.0)]
    state = np.zeros(count, dtype=np.uint64)
    for words in (*own, position):
        state = mixed(state, words.view(np.int64))
    kinds = np.stack([np.add.reduceat(state, first), length.view(np.uint64)], axis=1)
    _, earliest, kind = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
    like = earliest[kind.reshape(-1)]
    found = np.empty(count, dtype=np.int64)
    found[order] = order[first[like][component] + position]
    return found
