"""Components of flows that begin together and do the same: one of each kind need be played."""

from __future__ import annotations

import numpy as np

from trainscout.simulators.predictor.network.collectives.transfers import Floats, Ints
from trainscout.simulators.predictor.network.hybrid.memory import joined
from trainscout.simulators.predictor.network.topology.ecmp import mixed
from trainscout.simulators.predictor.network.topology.network import Network
from trainscout.simulators.predictor.network.topology.routing import NO_LINK


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
