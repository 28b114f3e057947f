"""What a port sends next: its host's own flows, or packets that wait, class by class."""

from __future__ import annotations

from numba import njit

from . import hpcc
from .dcqcn import catch_up, notified
from .delay_control import acknowledged
from .engine_arrays import (
    ACK_HEAD,
    ACK_TAIL,
    ARRIVE_EVENT,
    ARRIVES,
    ASKED,
    BYTES,
    BYTES_SENT,
    CAME_BY,
    CLASSES,
    CUT,
    DCQCN,
    DELAY,
    FIRST_BYTE,
    FIRST_PATH,
    FLIP_EVENT,
    FLIPS_AT,
    FLOW,
    FLY_HEAD,
    FLY_TAIL,
    FREE_AT,
    FREE_PACKET,
    GO_BACK_N,
    HEADER,
    HEARD_AT,
    HOP,
    HOPS_DONE,
    HPCC,
    INGRESS,
    LAST_OWN,
    LEFT_AT,
    LINK_NEXT,
    LINKS,
    LOST,
    MARKED,
    NEXT,
    NONE,
    OPEN,
    PACE,
    PACED,
    PACKET,
    PACKETS_OUT,
    PATH,
    PATH_ROW,
    PATHS,
    PAUSED,
    PER_FLOW,
    QUEUE_BYTES,
    QUEUE_HEAD,
    QUEUE_TAIL,
    RATE,
    RECOVERY,
    RESUME,
    RING,
    ROUTING,
    SELECTIVE_REPEAT,
    SENT,
    SERVED,
    SIZE,
    SWIFT,
    TIME,
    TIMELY,
    TRAINS_IN_FLOW,
    TRAINS_IN_WINDOW,
    TURN_AT,
    TURN_COST,
    TX,
    TX_EVENT,
    WAKE,
    WAKE_EVENT,
    WEIGHTED,
    WINDOW,
)
from .heap import push
from .recovery import acknowledged_in_order, free, later_by, leave_ring, resend


@njit(cache=True)
def main_row(port, whole):  # type: ignore[no-untyped-def]
    """The row that says when the link is free: that of its first class."""
    return port if whole[CLASSES] == 1 else port % whole[LINKS]


@njit(cache=True)
def longest_train(flow, flows):  # type: ignore[no-untyped-def]
    """Payload of the longest train that a flow may send as one packet."""
    return min(flows[flow, SIZE] // TRAINS_IN_FLOW, flows[flow, WINDOW] // TRAINS_IN_WINDOW)


@njit(cache=True)
def expect(port, now, ports, heap, count, whole):  # type: ignore[no-untyped-def]
    """The link looks for something to send as soon as it is free."""
    main = main_row(port, whole)
    if ports[main, TX] == 0:
        ports[main, TX] = 1
        push(heap, count, max(now, ports[main, FREE_AT]), TX_EVENT, main)


@njit(cache=True)
def wire_bytes(size, whole):  # type: ignore[no-untyped-def]
    """Payload with the header of every packet that it stands for."""
    if size <= whole[PACKET]:
        return size + whole[HEADER]
    return size + whole[HEADER] * (-(-size // whole[PACKET]))


@njit(cache=True)
def transmit(  # type: ignore[no-untyped-def]
    port, packet, now, ports, ps_per_byte, packets, heap, count, whole
):
    """Put a packet on the wire: it arrives when sent whole and carried over."""
    size = wire_bytes(packets[packet, BYTES], whole)
    if whole[PACED] == HPCC and packets[packet, HOP] > 0:
        hpcc.stamp(packet, port, now, ports, packets)
    free_at = now + int(size * ps_per_byte[port] + 0.5)
    ports[main_row(port, whole), FREE_AT] = free_at
    ports[port, BYTES_SENT] += size
    packets[packet, TIME] = free_at + ports[port, DELAY]
    packets[packet, LINK_NEXT] = NONE
    if ports[port, FLY_HEAD] == NONE:
        ports[port, FLY_HEAD] = packet
    else:
        packets[ports[port, FLY_TAIL], LINK_NEXT] = packet
    ports[port, FLY_TAIL] = packet
    if ports[port, ARRIVES] == 0:
        ports[port, ARRIVES] = 1
        push(heap, count, packets[packet, TIME], ARRIVE_EVENT, port)
    count[HOPS_DONE] += 1


@njit(cache=True)
def take_acks(  # type: ignore[no-untyped-def]
    flow, now, ps_per_byte, flows, rates, packets, count, whole, part
):
    """Count what has been acknowledged by now as no longer open, and heed what it says."""
    packet = flows[flow, ACK_HEAD]
    while packet != NONE and packets[packet, TIME] <= now:
        size, acked_at = packets[packet, BYTES], packets[packet, TIME]
        if whole[RECOVERY] == GO_BACK_N:
            acknowledged_in_order(flow, packet, flows, packets)
            flows[flow, HEARD_AT] = acked_at
        else:
            flows[flow, OPEN] -= size
        if packets[packet, MARKED] == 1 and whole[PACED]:
            notified(flow, acked_at, flows, rates, whole, part)
        if size > 0 and (whole[PACED] == TIMELY or whole[PACED] == SWIFT):
            rtt = acked_at - packets[packet, LEFT_AT]
            acknowledged(flow, acked_at, rtt, size, flows, rates, whole, part)
        if size > 0 and whole[PACED] == HPCC:
            hpcc.acknowledged(flow, packet, ps_per_byte, flows, rates, packets, whole, part)
        if whole[RECOVERY] == SELECTIVE_REPEAT and flows[flow, LOST] != NONE:
            before = packets[packet, LEFT_AT] - later_by(flow, flows, whole)
            resend(flow, before, flows, packets, count)
        following = packets[packet, LINK_NEXT]
        free(packet, packets, count)
        packet = following
    flows[flow, ACK_HEAD] = packet
    if packet == NONE:
        flows[flow, ACK_TAIL] = NONE


@njit(cache=True)
def _send_own(  # type: ignore[no-untyped-def]
    port, now, ports, ps_per_byte, flows, rates, packets, heap, count, whole,
    part,
):  # fmt: skip
    """Send a packet of the next flow in turn that may; else find out when one may."""
    flow = ports[port, RING]
    wake = NONE
    first = flow
    while True:
        acked = flows[flow, ACK_HEAD]
        if acked != NONE and packets[acked, TIME] <= now:
            take_acks(
                flow, now, ps_per_byte, flows, rates, packets, count, whole,
                part,
            )  # fmt: skip
        size = min(flows[flow, CUT], flows[flow, SIZE] - flows[flow, SENT])
        opened = flows[flow, OPEN]
        if opened > 0 and opened + size > flows[flow, WINDOW]:
            acked = flows[flow, ACK_HEAD]
            may = packets[acked, TIME] if acked != NONE else NONE
        else:
            may = flows[flow, PACE]
        if may != NONE and may <= now:
            break
        if may != NONE and (wake == NONE or may < wake):
            wake = may
        flow = flows[flow, NEXT]
        if flow == first:
            if wake != NONE and (ports[port, WAKE] == NONE or wake < ports[port, WAKE]):
                ports[port, WAKE] = wake
                push(heap, count, wake, WAKE_EVENT, port)
            return False
    packet = count[FREE_PACKET]
    count[FREE_PACKET] = packets[packet, LINK_NEXT]
    count[PACKETS_OUT] += 1
    packets[packet, FLOW], packets[packet, HOP] = flow, 0
    packets[packet, BYTES], packets[packet, MARKED] = size, 0
    packets[packet, CAME_BY], packets[packet, LEFT_AT] = NONE, now
    packets[packet, PATH_ROW] = flows[flow, PATH]
    if whole[RECOVERY] == GO_BACK_N:
        packets[packet, FIRST_BYTE] = flows[flow, SENT]
    if whole[ROUTING] != PER_FLOW:
        first_path = flows[flow, FIRST_PATH]
        flows[flow, PATH] = first_path + (flows[flow, PATH] - first_path + 1) % flows[flow, PATHS]
    flows[flow, SENT] += size
    flows[flow, OPEN] += size
    if whole[PACED] == DCQCN:
        catch_up(flow, now, flows, rates, whole, part)
    if whole[PACED] == DCQCN or whole[PACED] == TIMELY or whole[PACED] == HPCC:
        wire = (size + whole[HEADER]) / rates[flow, RATE]
        flows[flow, PACE] = now + int(wire + 0.5)
    ports[port, RING] = flows[flow, NEXT]
    if flows[flow, SENT] == flows[flow, SIZE]:
        leave_ring(flow, ports, flows)
    transmit(port, packet, now, ports, ps_per_byte, packets, heap, count, whole)
    return True


@njit(cache=True)
def let_go_on(link, size, now, ports, heap, count, whole):  # type: ignore[no-untyped-def]
    """So much that came over a link no longer waits: it may go on if it was told to stop."""
    ports[link, INGRESS] -= size
    if ports[link, ASKED] == 1 and ports[link, INGRESS] <= whole[RESUME]:
        ports[link, ASKED] = 0
        ports[link, FLIPS_AT] = now + ports[link, DELAY]
        push(heap, count, ports[link, FLIPS_AT], FLIP_EVENT, link)


@njit(cache=True)
def take_queued(port, now, ports, packets, heap, count, whole):  # type: ignore[no-untyped-def]
    """The first packet that waits, out of its queue."""
    packet = ports[port, QUEUE_HEAD]
    ports[port, QUEUE_HEAD] = packets[packet, LINK_NEXT]
    if packets[packet, LINK_NEXT] == NONE:
        ports[port, QUEUE_TAIL] = NONE
    size = wire_bytes(packets[packet, BYTES], whole)
    ports[port, QUEUE_BYTES] -= size
    let_go_on(packets[packet, CAME_BY], size, now, ports, heap, count, whole)
    return packet


@njit(cache=True)
def _send(  # type: ignore[no-untyped-def]
    port, now, ports, ps_per_byte, flows, rates, packets, heap, count, whole,
    part,
):  # fmt: skip
    """Send what a port has of one class, its own flows and what waits taking turns."""
    if ports[port, PAUSED] != 0:
        return False
    sent = False
    queued = ports[port, QUEUE_HEAD] != NONE
    own = ports[port, RING] != NONE
    if own and (not queued or ports[port, LAST_OWN] == 0):
        sent = _send_own(
            port, now, ports, ps_per_byte, flows, rates, packets, heap, count,
            whole, part,
        )  # fmt: skip
        ports[port, LAST_OWN] = 1 if sent else 0
    if not sent and queued:
        packet = take_queued(port, now, ports, packets, heap, count, whole)
        transmit(port, packet, now, ports, ps_per_byte, packets, heap, count, whole)
        ports[port, LAST_OWN] = 0
        sent = True
    return sent


@njit(cache=True)
def _has_more(port, ports):  # type: ignore[no-untyped-def]
    return ports[port, QUEUE_HEAD] != NONE or ports[port, RING] != NONE


@njit(cache=True)
def serve(  # type: ignore[no-untyped-def]
    main, now, ports, ps_per_byte, flows, rates, packets, heap, count, whole,
    part,
):  # fmt: skip
    """Let an idle link send: of several classes the first that can, or whose turn it is."""
    if whole[CLASSES] == 1:
        sent = _send(
            main, now, ports, ps_per_byte, flows, rates, packets, heap, count,
            whole, part,
        )  # fmt: skip
        if sent and _has_more(main, ports):
            expect(main, now, ports, heap, count, whole)
        return
    tried = 0
    sent = False
    for _ in range(whole[CLASSES]):
        row = _next_class(main, tried, ports, whole)
        tried |= 1 << (row // whole[LINKS])
        before = ports[row, BYTES_SENT]
        if not _has_more(row, ports):
            continue
        sent = _send(
            row, now, ports, ps_per_byte, flows, rates, packets, heap, count,
            whole, part,
        )  # fmt: skip
        if sent:
            # Start-time fair queueing: a class that was idle has saved nothing up.
            turn = max(ports[row, SERVED], ports[main, TURN_AT])
            ports[main, TURN_AT] = turn
            ports[row, SERVED] = turn + (ports[row, BYTES_SENT] - before) * ports[row, TURN_COST]
            break
    if sent:
        for row in range(main, len(ports), whole[LINKS]):
            if _has_more(row, ports):
                expect(main, now, ports, heap, count, whole)
                break


@njit(cache=True)
def _next_class(main, tried, ports, whole):  # type: ignore[no-untyped-def]
    """The row of a link's next class in turn among those not tried yet."""
    best = NONE
    for row in range(main, len(ports), whole[LINKS]):
        if tried & (1 << (row // whole[LINKS])):
            continue
        if best == NONE:
            best = row
            if whole[WEIGHTED] == 0:
                break
        elif ports[row, SERVED] < ports[best, SERVED]:
            best = row
    return best
