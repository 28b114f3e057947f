"""Losses: who notices them, when, and what is sent again.

Go-back-N is what RoCE adapters do: a receiver takes nothing out of order, refuses the first packet
that is not what it expects, and the sender goes back to it. Selective repeat (IRN, Mittal et al.,
SIGCOMM 2018; Ultra Ethernet) takes everything, and only what was lost is sent again, once a packet
sent later has been acknowledged. Who hears nothing for ``PATIENCE`` does either by itself.
"""

from __future__ import annotations

from numba import njit

from .engine_arrays import (
    ACKED_TO,
    BASE_RTT,
    BEFORE,
    BYTES,
    DONE,
    DROPS,
    FIRST,
    FIRST_BYTE,
    FLOW,
    FREE_PACKET,
    GO_BACK_N,
    HEARD_AT,
    LAST_OWN,
    LEFT_AT,
    LINK_NEXT,
    LOST,
    NEXT,
    NONE,
    OPEN,
    PACKETS_OUT,
    PATIENCE,
    PER_FLOW,
    RECOVER_EVENT,
    RECOVERY,
    RESENT,
    RING,
    ROUTING,
    SELECTIVE_REPEAT,
    SENT,
    TIMER,
)
from .heap import push


@njit(cache=True)
def free(packet, packets, count):  # type: ignore[no-untyped-def]
    """A packet's row is no longer needed."""
    packets[packet, LINK_NEXT] = count[FREE_PACKET]
    count[FREE_PACKET] = packet
    count[PACKETS_OUT] -= 1


@njit(cache=True)
def join_ring(flow, ports, flows):  # type: ignore[no-untyped-def]
    """A flow has something to send: it is the last in turn at its host's port."""
    port = flows[flow, FIRST]
    head = ports[port, RING]
    if head == NONE:
        flows[flow, NEXT] = flows[flow, BEFORE] = flow
        ports[port, RING] = flow
        # Whose turn it is does not depend on what was sent long ago.
        ports[port, LAST_OWN] = 0
    else:
        tail = flows[head, BEFORE]
        flows[flow, NEXT], flows[flow, BEFORE] = head, tail
        flows[tail, NEXT] = flows[head, BEFORE] = flow


@njit(cache=True)
def leave_ring(flow, ports, flows):  # type: ignore[no-untyped-def]
    """A flow has nothing more to send."""
    port, after, before = flows[flow, FIRST], flows[flow, NEXT], flows[flow, BEFORE]
    if after == flow:
        ports[port, RING] = NONE
    else:
        flows[before, NEXT], flows[after, BEFORE] = after, before
        if ports[port, RING] == flow:
            ports[port, RING] = after
    flows[flow, NEXT] = NONE


@njit(cache=True)
def arm(flow, due, flows, heap, count):  # type: ignore[no-untyped-def]
    """Let a sender look for losses at ``due``, if it does not sooner."""
    if flows[flow, TIMER] == NONE or due < flows[flow, TIMER]:
        flows[flow, TIMER] = due
        push(heap, count, due, RECOVER_EVENT, flow)


@njit(cache=True)
def drop(packet, port, now, ports, flows, packets, heap, count, whole):  # type: ignore[no-untyped-def]
    """A packet finds no room at a port."""
    ports[port, DROPS] += 1
    flow, left_at = packets[packet, FLOW], packets[packet, LEFT_AT]
    if flows[flow, DONE] != NONE:
        free(packet, packets, count)
        return
    if whole[RECOVERY] == SELECTIVE_REPEAT:
        packets[packet, LINK_NEXT] = flows[flow, LOST]
        flows[flow, LOST] = packet
    else:
        free(packet, packets, count)
    arm(flow, max(now, left_at + whole[PATIENCE]), flows, heap, count)


@njit(cache=True)
def resend(flow, before, flows, packets, count):  # type: ignore[no-untyped-def]
    """Lost packets that were sent before a time are to be sent again."""
    kept = NONE
    packet = flows[flow, LOST]
    while packet != NONE:
        following = packets[packet, LINK_NEXT]
        if packets[packet, LEFT_AT] < before:
            flows[flow, SENT] -= packets[packet, BYTES]
            flows[flow, OPEN] -= packets[packet, BYTES]
            flows[flow, RESENT] += packets[packet, BYTES]
            free(packet, packets, count)
        else:
            packets[packet, LINK_NEXT] = kept
            kept = packet
        packet = following
    flows[flow, LOST] = kept


@njit(cache=True)
def later_by(flow, flows, whole):  # type: ignore[no-untyped-def]
    """How much later a packet must have been sent for its acknowledgement to say that an earlier
    one is lost: on one path they keep their order, on several not."""
    return 0 if whole[ROUTING] == PER_FLOW else flows[flow, BASE_RTT]


@njit(cache=True)
def acknowledged_in_order(flow, packet, flows, packets):  # type: ignore[no-untyped-def]
    """The receiver of a flow that goes back N expects what the acknowledgement says; one of no
    bytes refuses what came."""
    expected = packets[packet, FIRST_BYTE]
    if expected > flows[flow, ACKED_TO]:
        flows[flow, ACKED_TO] = expected
    if packets[packet, BYTES] == 0:
        flows[flow, RESENT] += max(0, flows[flow, SENT] - flows[flow, ACKED_TO])
        flows[flow, SENT] = flows[flow, ACKED_TO]
    flows[flow, SENT] = max(flows[flow, SENT], flows[flow, ACKED_TO])
    flows[flow, OPEN] = flows[flow, SENT] - flows[flow, ACKED_TO]


@njit(cache=True)
def look_for_losses(flow, now, flows, packets, heap, count, whole):  # type: ignore[no-untyped-def]
    """A sender whose timer rang, and who has read all acknowledgements, decides what is lost."""
    if whole[RECOVERY] == GO_BACK_N:
        if flows[flow, OPEN] > 0 and now - flows[flow, HEARD_AT] >= whole[PATIENCE]:
            flows[flow, RESENT] += flows[flow, OPEN]
            flows[flow, SENT] = flows[flow, ACKED_TO]
            flows[flow, OPEN] = 0
            flows[flow, HEARD_AT] = now
        elif flows[flow, OPEN] > 0:
            arm(flow, flows[flow, HEARD_AT] + whole[PATIENCE], flows, heap, count)
        return
    resend(flow, now - whole[PATIENCE] + 1, flows, packets, count)
    oldest = NONE
    packet = flows[flow, LOST]
    while packet != NONE:
        if oldest == NONE or packets[packet, LEFT_AT] < oldest:
            oldest = packets[packet, LEFT_AT]
        packet = packets[packet, LINK_NEXT]
    if oldest != NONE:
        arm(flow, max(now + 1, oldest + whole[PATIENCE]), flows, heap, count)
