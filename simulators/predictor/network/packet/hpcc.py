"""HPCC: a window that goes by what switches stamp on packets (Li et al., SIGCOMM 2019, alg. 1)."""

from __future__ import annotations

from numba import njit

from .engine_arrays import (
    ALPHA,
    BASE_RTT,
    BYTES_SENT,
    ETA,
    FLOW_COLUMNS,
    HOP,
    HOPS,
    HPCC_ADD,
    LEFT_AT,
    LINE,
    NONE,
    PACKET,
    PACKET_COLUMNS,
    QUEUE_BYTES,
    RATE,
    RISES,
    STAGES,
    STAMPED_AT,
    STAMPED_PORT,
    STAMPED_QUEUE,
    STAMPED_SENT,
    STAMPS,
    TARGET,
    TIME,
    WINDOW,
    WINDOW_SET,
)


@njit(cache=True)
def stamp(packet, port, now, ports, packets):  # type: ignore[no-untyped-def]
    """A switch notes on a packet that leaves what its port has sent and what waits there."""
    at = PACKET_COLUMNS + STAMPS * packets[packet, HOP]
    packets[packet, at + STAMPED_AT], packets[packet, at + STAMPED_PORT] = now, port
    packets[packet, at + STAMPED_SENT] = ports[port, BYTES_SENT]
    packets[packet, at + STAMPED_QUEUE] = ports[port, QUEUE_BYTES]


@njit(cache=True)
def acknowledged(flow, packet, ps_per_byte, flows, rates, packets, whole, part):  # type: ignore[no-untyped-def]
    """An acknowledgement brought back its packet's stamps.

    ``rates``' columns: ``RATE`` = W / T, ``TARGET`` the window that steps start from, ``LINE`` the
    most it may be, ``ALPHA`` the estimate U. ``RISES`` counts additive steps in a row. A path's
    first link belongs to the sender, who stamps nothing.
    """
    hops, base = flows[flow, HOPS], flows[flow, BASE_RTT]
    if hops < 2:
        return
    known = flows[flow, FLOW_COLUMNS + STAMPS + STAMPED_AT] != NONE
    most, span = 0.0, base
    for hop in range(1, hops):
        new, old = PACKET_COLUMNS + STAMPS * hop, FLOW_COLUMNS + STAMPS * hop
        apart = packets[packet, new + STAMPED_AT] - flows[flow, old + STAMPED_AT]
        if known and apart > 0:
            cost = ps_per_byte[packets[packet, new + STAMPED_PORT]]
            sent = packets[packet, new + STAMPED_SENT] - flows[flow, old + STAMPED_SENT]
            queue = min(packets[packet, new + STAMPED_QUEUE], flows[flow, old + STAMPED_QUEUE])
            used = queue * cost / base + sent * cost / apart
            if used > most:
                most, span = used, apart
        for each in range(STAMPS):
            flows[flow, old + each] = packets[packet, new + each]
    if not known or most == 0.0:
        return
    share = min(span, base) / base
    rates[flow, ALPHA] = (1 - share) * rates[flow, ALPHA] + share * most
    settle = packets[packet, LEFT_AT] > flows[flow, WINDOW_SET]
    window = rates[flow, TARGET] + whole[HPCC_ADD]
    if rates[flow, ALPHA] >= part[ETA] or flows[flow, RISES] >= whole[STAGES]:
        window = rates[flow, TARGET] * part[ETA] / rates[flow, ALPHA] + whole[HPCC_ADD]
        if settle:
            flows[flow, RISES] = 0
    elif settle:
        flows[flow, RISES] += 1
    window = min(rates[flow, LINE], max(float(whole[PACKET]), window))
    if settle:
        # The next to settle it is a packet that was sent by the new one.
        flows[flow, WINDOW_SET] = packets[packet, TIME]
        rates[flow, TARGET] = window
    flows[flow, WINDOW] = int(window)
    rates[flow, RATE] = window / base
