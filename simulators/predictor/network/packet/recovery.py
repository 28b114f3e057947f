"""Losses: who notices them, when, and what is sent again.

Go-back-N is what RoCE adapters do: a receiver takes nothing out of order, refuses the first packet
that is not what it expects, and the sender goes back to it. Selective repeat (IRN, Mittal et al.,
SIGCOMM 2018; Ultra Ethernet) takes everything, and only what was lost is sent again, once a packet
sent later has been acknowledged. Who hears nothing for ``PATIENCE`` does either by itself.
"""

from __future__ import annotations

from trainscout.simulators.predictor.network.compiled import compiled

from . import engine_arrays as t
from .heap import push


@compiled
def free(packet, packets, count):  # type: ignore[no-untyped-def]
    """A packet's row is no longer needed."""
    packets[packet, t.LINK_NEXT] = count[t.FREE_PACKET]
    count[t.FREE_PACKET] = packet
    count[t.PACKETS_OUT] -= 1


@compiled
def join_ring(flow, ports, flows):  # type: ignore[no-untyped-def]
    """A flow has something to send: it is the last in turn at its host's port."""
    port = flows[flow, t.FIRST]
    head = ports[port, t.RING]
    if head == t.NONE:
        flows[flow, t.NEXT] = flows[flow, t.BEFORE] = flow
        ports[port, t.RING] = flow
        # Whose turn it is does not depend on what was sent long ago.
        ports[port, t.LAST_OWN] = 0
    else:
        tail = flows[head, t.BEFORE]
        flows[flow, t.NEXT], flows[flow, t.BEFORE] = head, tail
        flows[tail, t.NEXT] = flows[head, t.BEFORE] = flow


@compiled
def leave_ring(flow, ports, flows):  # type: ignore[no-untyped-def]
    """A flow has nothing more to send."""
    port, after, before = flows[flow, t.FIRST], flows[flow, t.NEXT], flows[flow, t.BEFORE]
    if after == flow:
        ports[port, t.RING] = t.NONE
    else:
        flows[before, t.NEXT], flows[after, t.BEFORE] = after, before
        if ports[port, t.RING] == flow:
            ports[port, t.RING] = after
    flows[flow, t.NEXT] = t.NONE


@compiled
def arm(flow, due, flows, heap, count):  # type: ignore[no-untyped-def]
    """Let a sender look for losses at ``due``, if it does not sooner."""
    if flows[flow, t.TIMER] == t.NONE or due < flows[flow, t.TIMER]:
        flows[flow, t.TIMER] = due
        push(heap, count, due, t.RECOVER_EVENT, flow)


@compiled
def drop(packet, port, now, ports, flows, packets, heap, count, whole):  # type: ignore[no-untyped-def]
    """A packet finds no room at a port."""
    ports[port, t.DROPS] += 1
    flow, left_at = packets[packet, t.FLOW], packets[packet, t.LEFT_AT]
    if flows[flow, t.DONE] != t.NONE:
        free(packet, packets, count)
        return
    if whole[t.RECOVERY] == t.SELECTIVE_REPEAT:
        packets[packet, t.LINK_NEXT] = flows[flow, t.LOST]
        flows[flow, t.LOST] = packet
    else:
        free(packet, packets, count)
    arm(flow, max(now, left_at + whole[t.PATIENCE]), flows, heap, count)


@compiled
def resend(flow, before, flows, packets, count):  # type: ignore[no-untyped-def]
    """Lost packets that were sent before a time are to be sent again."""
    kept = t.NONE
    packet = flows[flow, t.LOST]
    while packet != t.NONE:
        following = packets[packet, t.LINK_NEXT]
        if packets[packet, t.LEFT_AT] < before:
            flows[flow, t.SENT] -= packets[packet, t.BYTES]
            flows[flow, t.OPEN] -= packets[packet, t.BYTES]
            flows[flow, t.RESENT] += packets[packet, t.BYTES]
            free(packet, packets, count)
        else:
            packets[packet, t.LINK_NEXT] = kept
            kept = packet
        packet = following
    flows[flow, t.LOST] = kept


@compiled
def later_by(flow, flows, whole):  # type: ignore[no-untyped-def]
    """How much later a packet must have been sent for its acknowledgement to say that an earlier
    one is lost: on one path they keep their order, on several not."""
    return 0 if whole[t.ROUTING] == t.PER_FLOW else flows[flow, t.BASE_RTT]


@compiled
def acknowledged_in_order(flow, packet, flows, packets):  # type: ignore[no-untyped-def]
    """The receiver of a flow that goes back N expects what the acknowledgement says; one of no
    bytes refuses what came."""
    expected = packets[packet, t.FIRST_BYTE]
    if expected > flows[flow, t.ACKED_TO]:
        flows[flow, t.ACKED_TO] = expected
    if packets[packet, t.BYTES] == 0:
        flows[flow, t.RESENT] += max(0, flows[flow, t.SENT] - flows[flow, t.ACKED_TO])
        flows[flow, t.SENT] = flows[flow, t.ACKED_TO]
    flows[flow, t.SENT] = max(flows[flow, t.SENT], flows[flow, t.ACKED_TO])
    flows[flow, t.OPEN] = flows[flow, t.SENT] - flows[flow, t.ACKED_TO]


@compiled
def look_for_losses(flow, now, flows, packets, heap, count, whole):  # type: ignore[no-untyped-def]
    """A sender whose timer rang, and who has read all acknowledgements, decides what is lost."""
    if whole[t.RECOVERY] == t.GO_BACK_N:
        if flows[flow, t.OPEN] > 0 and now - flows[flow, t.HEARD_AT] >= whole[t.PATIENCE]:
            flows[flow, t.RESENT] += flows[flow, t.OPEN]
            flows[flow, t.SENT] = flows[flow, t.ACKED_TO]
            flows[flow, t.OPEN] = 0
            flows[flow, t.HEARD_AT] = now
        elif flows[flow, t.OPEN] > 0:
            arm(flow, flows[flow, t.HEARD_AT] + whole[t.PATIENCE], flows, heap, count)
        return
    resend(flow, now - whole[t.PATIENCE] + 1, flows, packets, count)
    oldest = t.NONE
    packet = flows[flow, t.LOST]
    while packet != t.NONE:
        if oldest == t.NONE or packets[packet, t.LEFT_AT] < oldest:
            oldest = packets[packet, t.LEFT_AT]
        packet = packets[packet, t.LINK_NEXT]
    if oldest != t.NONE:
        arm(flow, max(now + 1, oldest + whole[t.PATIENCE]), flows, heap, count)
