"""Standing still: a component's packets, queues and clocks, frozen while its time is skipped."""

from __future__ import annotations

from dataclasses import dataclass

from numba import njit

from trainscout.simulators.predictor.network.packet.engine_arrays import (
    ACK_HEAD,
    ALPHA_AT,
    FLY_HEAD,
    FREE_AT,
    LAST_NOTICE,
    LINK_NEXT,
    NONE,
    PACE,
    PAUSED,
    PAUSED_SINCE,
    RISE_AT,
    TIME,
    WAKE,
    Floats,
    Ints,
)


@dataclass(frozen=True, eq=False)
class Parked:
    """A component that stands still from ``since`` on, ``until`` its first flow is nearly sent.

    ``ports`` and ``flows`` are its own; ``speed`` each flow's bytes per picosecond; ``events``
    those taken out of the heap.
    """

    ports: Ints
    flows: Ints
    speed: Floats
    since: int
    until: int
    events: Ints


@njit(cache=True)
def shift(by, own_ports, own_flows, ports, flows, packets):  # type: ignore[no-untyped-def]
    """Move every time that a component still looks at."""
    for port in own_ports:
        ports[port, FREE_AT] += by
        if ports[port, WAKE] != NONE:
            ports[port, WAKE] += by
        if ports[port, PAUSED] == 1:
            ports[port, PAUSED_SINCE] += by
        packet = ports[port, FLY_HEAD]
        while packet != NONE:
            packets[packet, TIME] += by
            packet = packets[packet, LINK_NEXT]
    for flow in own_flows:
        flows[flow, PACE] += by
        flows[flow, ALPHA_AT] += by
        flows[flow, RISE_AT] += by
        if flows[flow, LAST_NOTICE] != NONE:
            flows[flow, LAST_NOTICE] += by
        packet = flows[flow, ACK_HEAD]
        while packet != NONE:
            packets[packet, TIME] += by
            packet = packets[packet, LINK_NEXT]
