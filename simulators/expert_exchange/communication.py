"""Rounds until everything has arrived, and the time they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numba import njit

from trainscout.simulators.predictor.moe.router import Counts

from .mesh import UNLIMITED, Mesh


@dataclass(frozen=True, eq=False)
class EqualRounds:
    """Rounds one after the other in which the same is sent: packets of each, (nodes, nodes).

    ``first`` counts from 0.
    """

    first: int
    rounds: int
    packets: Counts


@dataclass(frozen=True)
class Communication:
    """One exchange. ``time_ms`` is without the initial CPU delay, which comes once only;
    ``least_rounds`` is what the busiest link or NIC needs by itself."""

    rounds: int
    least_rounds: int
    round_time_ms: float

    @property
    def time_ms(self) -> float:
        return self.rounds * self.round_time_ms

    @property
    def least_time_ms(self) -> float:
        return self.least_rounds * self.round_time_ms


def communicate(load_bytes: Counts, mesh: Mesh) -> Communication:
    """Rounds and time of an exchange on a checked mesh.

    Args:
        load_bytes: bytes from each node to each node, (num_nodes, num_nodes); what stays on its
            node does not travel.
    """
    rounds = sum(run.rounds for run in play(load_bytes, mesh))
    least = least_rounds(packets_of(load_bytes, mesh), mesh)
    return Communication(rounds, least, mesh.round_time_ms())


def play(load_bytes: Counts, mesh: Mesh) -> Iterator[EqualRounds]:
    """The rounds of an exchange (see ``communicate``), equal ones told once."""
    # numba takes most of a second to load.

    waiting = packets_of(load_bytes, mesh)
    link, nic = mesh.link_packets(), mesh.nic_packets
    quota = min(mesh.round_robin_max_packets, UNLIMITED)
    first = 0
    while waiting.any():
        sent = one_round(waiting, link, nic, quota)
        busy = sent > 0
        # The next rounds are like this one while every pair has as many packets left.
        again = int((waiting[busy] // sent[busy]).min())
        yield EqualRounds(first, again, sent)
        waiting = waiting - again * sent
        first += again


def packets_of(load_bytes: Counts, mesh: Mesh) -> Counts:
    """Packets from each node to each other node. The last one of a pair may not be full; it takes
    a whole packet's place."""
    packets = -(-load_bytes.astype(np.int64) // mesh.packet_size)
    np.fill_diagonal(packets, 0)
    return packets


def least_rounds(packets: Counts, mesh: Mesh) -> int:
    """Rounds that no order of sending can do without."""
    on_link = -(-(packets + packets.T) // mesh.link_packets())
    on_nic = -(-np.append(packets.sum(axis=0), packets.sum(axis=1)) // mesh.nic_packets)
    return int(max(on_link.max(), on_nic.max()))


def even_load_time_ms(load_bytes: Counts, mesh: Mesh) -> float | None:
    """What the exchange would take were its bytes spread evenly over all links, without the
    initial CPU delay: the closed formula, whose rounds need not be whole.

    ``rounds = total bytes / (links per pair * pairs * bandwidth)``. None for several clusters,
    whose links differ.
    """
    if not mesh.one_cluster:
        return None
    travelling = load_bytes.sum() - np.trace(load_bytes)
    pairs = mesh.num_nodes * (mesh.num_nodes - 1) / 2
    rounds = float(travelling) / (mesh.num_links * pairs * mesh.intra_bw)
    return mesh.round_time_ms() * rounds


@njit(cache=True)
def one_round(waiting, link_packets, nic_packets, quota):  # type: ignore[no-untyped-def]
    """Packets sent in one round, (nodes, nodes).

    In a turn every (source, destination) that has packets waiting sends up to ``quota`` of them,
    as far as the two nodes' link, which both directions share, and both NICs have room. Turns go
    on until nobody can send. Nodes first serve their next neighbour, then the one after, so no
    NIC's room goes to low-numbered nodes only.

    Args:
        waiting: packets to send, (nodes, nodes) of int64.
        link_packets: packets the links of two nodes carry in a round, (nodes, nodes) of int64.
        nic_packets: packets a node may send, and as many it may receive.
        quota: packets of a pair in a turn.
    """
    nodes = waiting.shape[0]
    left = waiting.copy()
    link = link_packets.copy()
    can_send = np.full(nodes, nic_packets)
    can_receive = np.full(nodes, nic_packets)
    sent = np.zeros_like(waiting)
    turn = np.zeros_like(waiting)
    sends = np.zeros(nodes, np.int64)
    receives = np.zeros(nodes, np.int64)
    while True:
        sends[:] = 0
        receives[:] = 0
        for distance in range(1, nodes):
            for source in range(nodes):
                to = (source + distance) % nodes
                low, high = min(source, to), max(source, to)
                room = min(link[low, high], can_send[source], can_receive[to])
                packets = min(quota, left[source, to], room)
                turn[source, to] = packets
                left[source, to] -= packets
                link[low, high] -= packets
                can_send[source] -= packets
                can_receive[to] -= packets
                sends[source] += packets
                receives[to] += packets
        if sends.sum() == 0:
            return sent
        # The next turns are like this one as long as nothing it used runs out.
        again = nic_packets
        for source in range(nodes):
            if sends[source] > 0:
                again = min(again, can_send[source] // sends[source])
            if receives[source] > 0:
                again = min(again, can_receive[source] // receives[source])
            for to in range(nodes):
                if turn[source, to] > 0:
                    both = turn[source, to] + turn[to, source]
                    low, high = min(source, to), max(source, to)
                    again = min(again, left[source, to] // turn[source, to])
                    again = min(again, link[low, high] // both)
        for source in range(nodes):
            can_send[source] -= again * sends[source]
            can_receive[source] -= again * receives[source]
            for to in range(nodes):
                sent[source, to] += (1 + again) * turn[source, to]
                left[source, to] -= again * turn[source, to]
                if source < to:
                    link[source, to] -= again * (turn[source, to] + turn[to, source])
