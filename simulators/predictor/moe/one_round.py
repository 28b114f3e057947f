"""What is sent in one round, turn by turn. Compiled on import; ``.py_func`` is plain Python."""

from __future__ import annotations

import numpy as np
from numba import njit


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
