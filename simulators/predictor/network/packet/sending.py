"""What a port sends next: its host's own flows, or packets that wait, class by class."""

from __future__ import annotations

import numpy as np

from trainscout.simulators.predictor.network.compiled import compiled

from . import engine_arrays as t
from .congestion_control import catch_up, delay_came_back, notified, stamp, stamps_came_back
from .heap import push
from .recovery import acknowledged_in_order, free, later_by, leave_ring, resend


@compiled
def main_row(port, whole):  # type: ignore[no-untyped-def]
    """The row that says when the link is free: that of its first class."""
    return port if whole[t.CLASSES] == 1 else port % whole[t.LINKS]


@compiled
def longest_train(flow, flows):  # type: ignore[no-untyped-def]
    """Payload of the longest train that a flow may send as one packet."""
    return min(
        flows[flow, t.SIZE] // t.TRAINS_IN_FLOW, flows[flow, t.WINDOW] // t.TRAINS_IN_WINDOW
    )


@compiled
def expect(port, now, ports, heap, count, whole):  # type: ignore[no-untyped-def]
    """The link looks for something to send as soon as it is free."""
    main = main_row(port, whole)
    if ports[main, t.TX] == 0:
        ports[main, t.TX] = 1
        push(heap, count, max(now, ports[main, t.FREE_AT]), t.TX_EVENT, main)


@compiled
def wire_bytes(size, whole):  # type: ignore[no-untyped-def]
    """Payload with the header of every packet that it stands for."""
    if size <= whole[t.PACKET]:
        return size + whole[t.HEADER]
    return size + whole[t.HEADER] * (-(-size // whole[t.PACKET]))


@compiled
def transmit(  # type: ignore[no-untyped-def]
    port, packet, now, ports, ps_per_byte, packets, heap, count, whole
):
    """Put a packet on the wire: it arrives when sent whole and carried over."""
    size = wire_bytes(packets[packet, t.BYTES], whole)
    if whole[t.PACED] == t.HPCC and packets[packet, t.HOP] > 0:
        stamp(packet, port, now, ports, packets)
    free_at = now + int(size * ps_per_byte[port] + 0.5)
    ports[main_row(port, whole), t.FREE_AT] = free_at
    ports[port, t.BYTES_SENT] += size
    packets[packet, t.TIME] = free_at + ports[port, t.DELAY]
    packets[packet, t.LINK_NEXT] = t.NONE
    if ports[port, t.FLY_HEAD] == t.NONE:
        ports[port, t.FLY_HEAD] = packet
    else:
        packets[ports[port, t.FLY_TAIL], t.LINK_NEXT] = packet
    ports[port, t.FLY_TAIL] = packet
    if ports[port, t.ARRIVES] == 0:
        ports[port, t.ARRIVES] = 1
        push(heap, count, packets[packet, t.TIME], t.ARRIVE_EVENT, port)
    count[t.HOPS_DONE] += 1


@compiled
def take_acks(  # type: ignore[no-untyped-def]
    flow, now, ps_per_byte, flows, rates, packets, count, whole, part
):
    """Count what has been acknowledged by now as no longer open, and heed what it says."""
    packet = flows[flow, t.ACK_HEAD]
    while packet != t.NONE and packets[packet, t.TIME] <= now:
        size, acked_at = packets[packet, t.BYTES], packets[packet, t.TIME]
        if whole[t.RECOVERY] == t.GO_BACK_N:
            acknowledged_in_order(flow, packet, flows, packets)
            flows[flow, t.HEARD_AT] = acked_at
        else:
            flows[flow, t.OPEN] -= size
        if packets[packet, t.MARKED] == 1 and whole[t.PACED]:
            notified(flow, acked_at, flows, rates, whole, part)
        if size > 0 and (whole[t.PACED] == t.TIMELY or whole[t.PACED] == t.SWIFT):
            rtt = acked_at - packets[packet, t.LEFT_AT]
            delay_came_back(flow, acked_at, rtt, size, flows, rates, whole, part)
        if size > 0 and whole[t.PACED] == t.HPCC:
            stamps_came_back(flow, packet, ps_per_byte, flows, rates, packets, whole, part)
        if whole[t.RECOVERY] == t.SELECTIVE_REPEAT and flows[flow, t.LOST] != t.NONE:
            before = packets[packet, t.LEFT_AT] - later_by(flow, flows, whole)
            resend(flow, before, flows, packets, count)
        following = packets[packet, t.LINK_NEXT]
        free(packet, packets, count)
        packet = following
    flows[flow, t.ACK_HEAD] = packet
    if packet == t.NONE:
        flows[flow, t.ACK_TAIL] = t.NONE


@compiled
def _send_own(  # type: ignore[no-untyped-def]
    port, now, ports, ps_per_byte, flows, rates, packets, heap, count, whole,
    part,
):  # fmt: skip
    """Send a packet of the next flow in turn that may; else find out when one may."""
    flow = ports[port, t.RING]
    wake = t.NONE
    first = flow
    while True:
        acked = flows[flow, t.ACK_HEAD]
        if acked != t.NONE and packets[acked, t.TIME] <= now:
            take_acks(
                flow, now, ps_per_byte, flows, rates, packets, count, whole,
                part,
            )  # fmt: skip
        size = min(flows[flow, t.CUT], flows[flow, t.SIZE] - flows[flow, t.SENT])
        opened = flows[flow, t.OPEN]
        if opened > 0 and opened + size > flows[flow, t.WINDOW]:
            acked = flows[flow, t.ACK_HEAD]
            may = packets[acked, t.TIME] if acked != t.NONE else t.NONE
        else:
            may = flows[flow, t.PACE]
        if may != t.NONE and may <= now:
            break
        if may != t.NONE and (wake == t.NONE or may < wake):
            wake = may
        flow = flows[flow, t.NEXT]
        if flow == first:
            if wake != t.NONE and (ports[port, t.WAKE] == t.NONE or wake < ports[port, t.WAKE]):
                ports[port, t.WAKE] = wake
                push(heap, count, wake, t.WAKE_EVENT, port)
            return False
    packet = count[t.FREE_PACKET]
    count[t.FREE_PACKET] = packets[packet, t.LINK_NEXT]
    count[t.PACKETS_OUT] += 1
    packets[packet, t.FLOW], packets[packet, t.HOP] = flow, 0
    packets[packet, t.BYTES], packets[packet, t.MARKED] = size, 0
    packets[packet, t.CAME_BY], packets[packet, t.LEFT_AT] = t.NONE, now
    packets[packet, t.PATH_ROW] = flows[flow, t.PATH]
    if whole[t.RECOVERY] == t.GO_BACK_N:
        packets[packet, t.FIRST_BYTE] = flows[flow, t.SENT]
    if whole[t.ROUTING] != t.PER_FLOW:
        first_path = flows[flow, t.FIRST_PATH]
        flows[flow, t.PATH] = (
            first_path + (flows[flow, t.PATH] - first_path + 1) % flows[flow, t.PATHS]
        )
    flows[flow, t.SENT] += size
    flows[flow, t.OPEN] += size
    if whole[t.PACED] == t.DCQCN:
        catch_up(flow, now, flows, rates, whole, part)
    if whole[t.PACED] == t.DCQCN or whole[t.PACED] == t.TIMELY or whole[t.PACED] == t.HPCC:
        wire = (size + whole[t.HEADER]) / rates[flow, t.RATE]
        flows[flow, t.PACE] = now + int(wire + 0.5)
    ports[port, t.RING] = flows[flow, t.NEXT]
    if flows[flow, t.SENT] == flows[flow, t.SIZE]:
        leave_ring(flow, ports, flows)
    transmit(port, packet, now, ports, ps_per_byte, packets, heap, count, whole)
    return True


@compiled
def let_go_on(link, size, now, ports, heap, count, whole):  # type: ignore[no-untyped-def]
    """So much that came over a link no longer waits: it may go on if it was told to stop."""
    ports[link, t.INGRESS] -= size
    if ports[link, t.ASKED] == 1 and ports[link, t.INGRESS] <= whole[t.RESUME]:
        ports[link, t.ASKED] = 0
        ports[link, t.FLIPS_AT] = now + ports[link, t.DELAY]
        push(heap, count, ports[link, t.FLIPS_AT], t.FLIP_EVENT, link)


@compiled
def take_queued(port, now, ports, packets, heap, count, whole):  # type: ignore[no-untyped-def]
    """The first packet that waits, out of its queue."""
    packet = ports[port, t.QUEUE_HEAD]
    ports[port, t.QUEUE_HEAD] = packets[packet, t.LINK_NEXT]
    if packets[packet, t.LINK_NEXT] == t.NONE:
        ports[port, t.QUEUE_TAIL] = t.NONE
    size = wire_bytes(packets[packet, t.BYTES], whole)
    ports[port, t.QUEUE_BYTES] -= size
    let_go_on(packets[packet, t.CAME_BY], size, now, ports, heap, count, whole)
    return packet


@compiled
def _send(  # type: ignore[no-untyped-def]
    port, now, ports, ps_per_byte, flows, rates, packets, heap, count, whole,
    part,
):  # fmt: skip
    """Send what a port has of one class, its own flows and what waits taking turns."""
    if ports[port, t.PAUSED] != 0:
        return False
    sent = False
    queued = ports[port, t.QUEUE_HEAD] != t.NONE
    own = ports[port, t.RING] != t.NONE
    if own and (not queued or ports[port, t.LAST_OWN] == 0):
        sent = _send_own(
            port, now, ports, ps_per_byte, flows, rates, packets, heap, count,
            whole, part,
        )  # fmt: skip
        ports[port, t.LAST_OWN] = 1 if sent else 0
    if not sent and queued:
        packet = take_queued(port, now, ports, packets, heap, count, whole)
        transmit(port, packet, now, ports, ps_per_byte, packets, heap, count, whole)
        ports[port, t.LAST_OWN] = 0
        sent = True
    return sent


@compiled
def _has_more(port, ports):  # type: ignore[no-untyped-def]
    return ports[port, t.QUEUE_HEAD] != t.NONE or ports[port, t.RING] != t.NONE


@compiled
def serve(  # type: ignore[no-untyped-def]
    main, now, ports, ps_per_byte, flows, rates, packets, heap, count, whole,
    part,
):  # fmt: skip
    """Let an idle link send: of several classes the first that can, or whose turn it is."""
    if whole[t.CLASSES] == 1:
        sent = _send(
            main, now, ports, ps_per_byte, flows, rates, packets, heap, count,
            whole, part,
        )  # fmt: skip
        if sent and _has_more(main, ports):
            expect(main, now, ports, heap, count, whole)
        return
    # No literal, for which ``_next_class`` would be compiled once more.
    tried = np.int64(0)
    sent = False
    for _ in range(whole[t.CLASSES]):
        row = _next_class(main, tried, ports, whole)
        tried |= 1 << (row // whole[t.LINKS])
        before = ports[row, t.BYTES_SENT]
        if not _has_more(row, ports):
            continue
        sent = _send(
            row, now, ports, ps_per_byte, flows, rates, packets, heap, count,
            whole, part,
        )  # fmt: skip
        if sent:
            # Start-time fair queueing: a class that was idle has saved nothing up.
            turn = max(ports[row, t.SERVED], ports[main, t.TURN_AT])
            ports[main, t.TURN_AT] = turn
            ports[row, t.SERVED] = (
                turn + (ports[row, t.BYTES_SENT] - before) * ports[row, t.TURN_COST]
            )
            break
    if sent:
        for row in range(main, len(ports), whole[t.LINKS]):
            if _has_more(row, ports):
                expect(main, now, ports, heap, count, whole)
                break


@compiled
def _next_class(main, tried, ports, whole):  # type: ignore[no-untyped-def]
    """The row of a link's next class in turn among those not tried yet."""
    best = t.NONE
    for row in range(main, len(ports), whole[t.LINKS]):
        if tried & (1 << (row // whole[t.LINKS])):
            continue
        if best == t.NONE:
            best = row
            if whole[t.WEIGHTED] == 0:
                break
        elif ports[row, t.SERVED] < ports[best, t.SERVED]:
            best = row
    return best
