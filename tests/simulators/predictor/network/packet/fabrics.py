"""A small leaf-spine fabric with every link at one rate."""

import numpy as np

from trainscout.simulators.predictor.network.packet.engine import PacketEngine
from trainscout.simulators.predictor.network.topology.routing import Routes

RATE = 25e9
DELAY_S = 1e-6


class LeafSpine:
    """``hosts`` on ``leaves`` of equal size, each joined to every one of ``spines``."""

    def __init__(self, hosts=16, leaves=4, spines=4):
        self.hosts, self.leaves, self.spines = hosts, leaves, spines
        self.links = 2 * hosts + 2 * leaves * spines

    def route(self, source, destination, spine=0):
        per = self.hosts // self.leaves
        first, second = source // per, destination // per
        down = self.hosts + destination
        if first == second:
            return [source, down, -1, -1]
        across = 2 * self.hosts
        up = across + first * self.spines + spine
        over = across + (self.leaves + second) * self.spines + spine
        return [source, up, over, down]

    def engine(self, settings=None):
        return PacketEngine(np.full(self.links, RATE), DELAY_S, 4, settings)

    def routes(self, flows):
        links = np.array([self.route(*flow) for flow in flows])
        return Routes(links, np.zeros(len(links)))


def alone_s(size_bytes, hops, packet=4096):
    """A flow that has every link for itself: sent, carried, and its last packet sent again."""
    last = size_bytes % packet or packet
    return (size_bytes + (hops - 1) * last) / RATE + hops * DELAY_S
