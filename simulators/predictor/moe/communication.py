"""Rounds until everything has arrived, and the time they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.moe.mesh import UNLIMITED, Mesh
from trainscout.simulators.predictor.moe.router import Counts


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
    from trainscout.simulators.predictor.moe.one_round import one_round

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
