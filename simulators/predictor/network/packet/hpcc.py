"""HPCC: a window that goes by what switches stamp on packets (Li et al., SIGCOMM 2019, alg. 1)."""

from __future__ import annotations

from numba import njit

from . import engine_arrays as t


@njit(cache=True)
def stamp(packet, port, now, ports, packets):  # type: ignore[no-untyped-def]
    """A switch notes on a packet that leaves what its port has sent and what waits there."""
    at = t.PACKET_COLUMNS + t.STAMPS * packets[packet, t.HOP]
    packets[packet, at + t.STAMPED_AT], packets[packet, at + t.STAMPED_PORT] = now, port
    packets[packet, at + t.STAMPED_SENT] = ports[port, t.BYTES_SENT]
    packets[packet, at + t.STAMPED_QUEUE] = ports[port, t.QUEUE_BYTES]


@njit(cache=True)
def acknowledged(flow, packet, ps_per_byte, flows, rates, packets, whole, part):  # type: ignore[no-untyped-def]
    """An acknowledgement brought back its packet's stamps.

    ``rates``' columns: ``RATE`` = W / T, ``TARGET`` the window that steps start from, ``LINE`` the
    most it may be, ``ALPHA`` the estimate U. ``RISES`` counts additive steps in a row. A path's
    first link belongs to the sender, who stamps nothing.
    """
    hops, base = flows[flow, t.HOPS], flows[flow, t.BASE_RTT]
    if hops < 2:
        return
    known = flows[flow, t.FLOW_COLUMNS + t.STAMPS + t.STAMPED_AT] != t.NONE
    most, span = 0.0, base
    for hop in range(1, hops):
        new, old = t.PACKET_COLUMNS + t.STAMPS * hop, t.FLOW_COLUMNS + t.STAMPS * hop
        apart = packets[packet, new + t.STAMPED_AT] - flows[flow, old + t.STAMPED_AT]
        if known and apart > 0:
            cost = ps_per_byte[packets[packet, new + t.STAMPED_PORT]]
            sent = packets[packet, new + t.STAMPED_SENT] - flows[flow, old + t.STAMPED_SENT]
            queue = min(packets[packet, new + t.STAMPED_QUEUE], flows[flow, old + t.STAMPED_QUEUE])
            used = queue * cost / base + sent * cost / apart
            if used > most:
                most, span = used, apart
        for each in range(t.STAMPS):
            flows[flow, old + each] = packets[packet, new + each]
    if not known or most == 0.0:
        return
    share = min(span, base) / base
    rates[flow, t.ALPHA] = (1 - share) * rates[flow, t.ALPHA] + share * most
    settle = packets[packet, t.LEFT_AT] > flows[flow, t.WINDOW_SET]
    window = rates[flow, t.TARGET] + whole[t.HPCC_ADD]
    if rates[flow, t.ALPHA] >= part[t.ETA] or flows[flow, t.RISES] >= whole[t.STAGES]:
        window = rates[flow, t.TARGET] * part[t.ETA] / rates[flow, t.ALPHA] + whole[t.HPCC_ADD]
        if settle:
            flows[flow, t.RISES] = 0
    elif settle:
        flows[flow, t.RISES] += 1
    window = min(rates[flow, t.LINE], max(float(whole[t.PACKET]), window))
    if settle:
        # The next to settle it is a packet that was sent by the new one.
        flows[flow, t.WINDOW_SET] = packets[packet, t.TIME]
        rates[flow, t.TARGET] = window
    flows[flow, t.WINDOW] = int(window)
    rates[flow, t.RATE] = window / base
