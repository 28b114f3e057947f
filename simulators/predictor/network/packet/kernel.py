"""The event loop, compiled: packets hop from port to port.

A link is FIFO with a constant delay, so a port has at most one arrival and one transmission due,
whatever it holds, and the heap stays as small as there are ports. Acknowledgements are no packets:
they come back after a constant time, and a flow looks at them when it may send. Timers of DCQCN
are caught up with when a flow sends or is notified.
"""

from __future__ import annotations

from numba import njit

from trainscout.simulators.predictor.network.packet.chance import draw
from trainscout.simulators.predictor.network.packet.dcqcn import catch_up, notified
from trainscout.simulators.predictor.network.packet.delay_control import acknowledged
from trainscout.simulators.predictor.network.packet.engine_arrays import (
    ACK_HEAD,
    ACK_TAIL,
    ALPHA_AT,
    ARRIVE_EVENT,
    ARRIVED,
    ARRIVES,
    ASKED,
    BACK,
    BEFORE,
    BEGAN,
    BROKE_AT,
    BYTES,
    BYTES_SENT,
    CAME_BY,
    CLAIMED,
    DCQCN,
    DELAY,
    DELIVERED,
    DONE,
    DROPPED,
    EARLIEST,
    EPISODE,
    EVENTS_DUE,
    FINISH_EVENT,
    FIRST,
    FIRST_LATER,
    FIRST_TIE,
    FLIP_EVENT,
    FLIPS_AT,
    FLOW,
    FLY_HEAD,
    FLY_TAIL,
    FREE_AT,
    FREE_PACKET,
    HEADER,
    HOP,
    HOPS,
    HOPS_DONE,
    INGRESS,
    KIND_SHIFT,
    LAG,
    LAST_NOTICE,
    LAST_OWN,
    LEFT_AT,
    LIMIT,
    LINK_NEXT,
    MARKED,
    MARKS,
    MOST_FOLLOWERS,
    MOST_MARKED,
    MOST_QUEUED,
    NEXT,
    NO_EVENTS,
    NO_PACKETS,
    NONE,
    NOTICE_GAP,
    NOW,
    OPEN,
    OPENS,
    PACE,
    PACED,
    PACKET,
    PACKETS_OUT,
    PARKED,
    PAUSE,
    PAUSED,
    PAUSED_FOR,
    PAUSED_SINCE,
    PAUSES,
    QUEUE_BYTES,
    QUEUE_HEAD,
    QUEUE_TAIL,
    RATE,
    REACHED,
    RESTING,
    RESUME,
    RING,
    RISE_AT,
    SEED,
    SENT,
    SIZE,
    START_EVENT,
    STATE,
    STOP_AT,
    STOPPED,
    SUBJECT,
    TIME,
    TIMELY,
    TOUCHES_RESTING,
    TX,
    TX_EVENT,
    UNFINISHED,
    USERS,
    WAITING,
    WAITS,
    WAKE,
    WAKE_EVENT,
    WINDOW,
)
from trainscout.simulators.predictor.network.packet.heap import pop, push


@njit(cache=True)
def _transmit(port, packet, now, ports, ps_per_byte, packets, heap, count, header):  # type: ignore[no-untyped-def]
    """Put a packet on the wire: it arrives when sent whole and carried over."""
    size = packets[packet, BYTES] + header
    free_at = now + int(size * ps_per_byte[port] + 0.5)
    ports[port, FREE_AT] = free_at
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
def _take_acks(flow, now, flows, rates, packets, count, whole, part):  # type: ignore[no-untyped-def]
    """Count what has been acknowledged by now as no longer open, and heed what was marked."""
    packet = flows[flow, ACK_HEAD]
    while packet != NONE and packets[packet, TIME] <= now:
        flows[flow, OPEN] -= packets[packet, BYTES]
        if packets[packet, MARKED] == 1 and whole[PACED]:
            notified(flow, packets[packet, TIME], flows, rates, whole, part)
        if whole[PACED] >= TIMELY:
            acked_at = packets[packet, TIME]
            rtt = acked_at - packets[packet, LEFT_AT]
            acknowledged(flow, acked_at, rtt, packets[packet, BYTES], flows, rates, whole, part)
        following = packets[packet, LINK_NEXT]
        packets[packet, LINK_NEXT] = count[FREE_PACKET]
        count[FREE_PACKET] = packet
        count[PACKETS_OUT] -= 1
        packet = following
    flows[flow, ACK_HEAD] = packet
    if packet == NONE:
        flows[flow, ACK_TAIL] = NONE


@njit(cache=True)
def _leave_ring(flow, ports, flows):  # type: ignore[no-untyped-def]
    port, after, before = flows[flow, FIRST], flows[flow, NEXT], flows[flow, BEFORE]
    if after == flow:
        ports[port, RING] = NONE
    else:
        flows[before, NEXT], flows[after, BEFORE] = after, before
        if ports[port, RING] == flow:
            ports[port, RING] = after


@njit(cache=True)
def _send_own(port, now, ports, ps_per_byte, flows, rates, packets, heap, count, whole, part):  # type: ignore[no-untyped-def]
    """Send a packet of the next flow in turn that may; else find out when one may."""
    flow = ports[port, RING]
    wake = NONE
    first = flow
    while True:
        _take_acks(flow, now, flows, rates, packets, count, whole, part)
        size = min(whole[PACKET], flows[flow, SIZE] - flows[flow, SENT])
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
    flows[flow, SENT] += size
    flows[flow, OPEN] += size
    if whole[PACED] == DCQCN:
        catch_up(flow, now, flows, rates, whole, part)
    if whole[PACED] == DCQCN or whole[PACED] == TIMELY:
        wire = (size + whole[HEADER]) / rates[flow, RATE]
        flows[flow, PACE] = now + int(wire + 0.5)
    ports[port, RING] = flows[flow, NEXT]
    if flows[flow, SENT] == flows[flow, SIZE]:
        _leave_ring(flow, ports, flows)
    _transmit(port, packet, now, ports, ps_per_byte, packets, heap, count, whole[HEADER])
    return True


@njit(cache=True)
def _send_queued(port, now, ports, ps_per_byte, packets, heap, count, whole):  # type: ignore[no-untyped-def]
    """Send the first packet that waits, and let the link it came by go on if it was paused."""
    packet = ports[port, QUEUE_HEAD]
    ports[port, QUEUE_HEAD] = packets[packet, LINK_NEXT]
    if packets[packet, LINK_NEXT] == NONE:
        ports[port, QUEUE_TAIL] = NONE
    size = packets[packet, BYTES] + whole[HEADER]
    ports[port, QUEUE_BYTES] -= size
    link = packets[packet, CAME_BY]
    ports[link, INGRESS] -= size
    if ports[link, ASKED] == 1 and ports[link, INGRESS] <= whole[RESUME]:
        ports[link, ASKED] = 0
        ports[link, FLIPS_AT] = now + ports[link, DELAY]
        push(heap, count, ports[link, FLIPS_AT], FLIP_EVENT, link)
    _transmit(port, packet, now, ports, ps_per_byte, packets, heap, count, whole[HEADER])


@njit(cache=True)
def _send(port, now, ports, ps_per_byte, flows, rates, packets, heap, count, whole, part):  # type: ignore[no-untyped-def]
    """Send what an idle port has, its own flows and what waits taking turns."""
    if ports[port, PAUSED] == 1:
        return
    sent = False
    queued = ports[port, QUEUE_HEAD] != NONE
    own = ports[port, RING] != NONE
    if own and (not queued or ports[port, LAST_OWN] == 0):
        sent = _send_own(
            port, now, ports, ps_per_byte, flows, rates, packets, heap, count, whole, part
        )
        ports[port, LAST_OWN] = 1 if sent else 0
    if not sent and queued:
        _send_queued(port, now, ports, ps_per_byte, packets, heap, count, whole)
        ports[port, LAST_OWN] = 0
        sent = True
    more = ports[port, QUEUE_HEAD] != NONE or ports[port, RING] != NONE
    if sent and more and ports[port, TX] == 0:
        ports[port, TX] = 1
        push(heap, count, ports[port, FREE_AT], TX_EVENT, port)


@njit(cache=True)
def _wait(port, packet, link, now, ports, packets, heap, count, whole, part, mark_from, mark_all):  # type: ignore[no-untyped-def]
    """Put a packet that came over ``link`` into a port's queue; False where it has no room."""
    size = packets[packet, BYTES] + whole[HEADER]
    packets[packet, CAME_BY] = link
    packets[packet, LINK_NEXT] = NONE
    if ports[port, QUEUE_HEAD] == NONE:
        ports[port, QUEUE_HEAD] = packet
    else:
        packets[ports[port, QUEUE_TAIL], LINK_NEXT] = packet
    ports[port, QUEUE_TAIL] = packet
    ports[port, QUEUE_BYTES] += size
    depth = ports[port, QUEUE_BYTES]
    if depth > ports[port, MOST_QUEUED]:
        ports[port, MOST_QUEUED] = depth
    if whole[PACED] == DCQCN and depth > mark_from[port]:
        share = (depth - mark_from[port]) / (mark_all[port] - mark_from[port])
        if share >= 1 or draw(port, ports, whole[SEED]) < share * part[MOST_MARKED]:
            packets[packet, MARKED] = 1
            ports[port, MARKS] += 1
    ports[link, INGRESS] += size
    if whole[PAUSE] > 0:
        if ports[link, ASKED] == 0 and ports[link, INGRESS] > whole[PAUSE]:
            ports[link, ASKED] = 1
            ports[link, PAUSES] += 1
            ports[link, FLIPS_AT] = now + ports[link, DELAY]
            push(heap, count, ports[link, FLIPS_AT], FLIP_EVENT, link)
    elif depth > whole[LIMIT]:
        count[BROKE_AT] = port
        return False
    if ports[port, TX] == 0 and ports[port, PAUSED] == 0:
        ports[port, TX] = 1
        push(heap, count, max(now, ports[port, FREE_AT]), TX_EVENT, port)
    return True


@njit(cache=True)
def _deliver(packet, now, ports, flows, packets, heap, count, whole):  # type: ignore[no-untyped-def]
    """A packet is there: its acknowledgement sets out. True when it is the flow's last."""
    flow = packets[packet, FLOW]
    flows[flow, DELIVERED] += packets[packet, BYTES]
    packets[packet, TIME] = now + flows[flow, BACK]
    packets[packet, LINK_NEXT] = NONE
    if packets[packet, MARKED] == 1:
        # The receiver notifies no more often than this.
        last = flows[flow, LAST_NOTICE]
        if last != NONE and now - last < whole[NOTICE_GAP]:
            packets[packet, MARKED] = 0
        else:
            flows[flow, LAST_NOTICE] = now
    if flows[flow, ACK_HEAD] == NONE:
        flows[flow, ACK_HEAD] = packet
    else:
        packets[flows[flow, ACK_TAIL], LINK_NEXT] = packet
    flows[flow, ACK_TAIL] = packet
    port, back = flows[flow, FIRST], packets[packet, TIME]
    if (
        flows[flow, SENT] < flows[flow, SIZE]
        and ports[port, TX] == 0
        and (ports[port, WAKE] == NONE or back < ports[port, WAKE])
    ):
        ports[port, WAKE] = back
        push(heap, count, back, WAKE_EVENT, port)
    return flows[flow, DELIVERED] == flows[flow, SIZE]


@njit(cache=True)
def _release(tie, now, flows, ties, heap, count):  # type: ignore[no-untyped-def]
    """Those in a list that waited for nothing else start."""
    while tie != NONE:
        follower = ties[tie, 0]
        flows[follower, WAITS] -= 1
        earliest = max(flows[follower, EARLIEST], now + flows[follower, LAG])
        flows[follower, EARLIEST] = earliest
        if flows[follower, WAITS] == 0:
            push(heap, count, earliest, START_EVENT, follower)
        tie = ties[tie, 1]


@njit(cache=True)
def _finish(flow, now, flows, ties, heap, count, arrived):  # type: ignore[no-untyped-def]
    """A flow has arrived: note it, and let those who were announced later follow."""
    flows[flow, DONE] = now
    count[UNFINISHED] -= 1
    arrived[count[ARRIVED]] = flow
    count[ARRIVED] += 1
    _release(flows[flow, FIRST_LATER], now, flows, ties, heap, count)


@njit(cache=True)
def _forget_acks(flow, flows, packets, count):  # type: ignore[no-untyped-def]
    """Nobody waits for a finished flow's acknowledgements."""
    packet = flows[flow, ACK_HEAD]
    while packet != NONE:
        following = packets[packet, LINK_NEXT]
        packets[packet, LINK_NEXT] = count[FREE_PACKET]
        count[FREE_PACKET] = packet
        count[PACKETS_OUT] -= 1
        packet = following
    flows[flow, ACK_HEAD] = flows[flow, ACK_TAIL] = NONE


@njit(cache=True)
def play(  # type: ignore[no-untyped-def]
    until, last_code, ports, ps_per_byte, mark_from, mark_all, flows, rates, paths, ties, packets,
    heap, count, whole, part, episodes, arrived,
):  # fmt: skip
    """Play all events up to and including ``until``, of that very time up to ``last_code``.

    Returns ``REACHED``; or, with the event still to be played, ``NO_PACKETS`` or ``NO_EVENTS``
    when a table has to grow first, ``OPENS`` when flow ``count[BROKE_AT]`` is the first to start
    of an episode that waits to be looked at, ``TOUCHES_RESTING`` when it would start over a port
    that is parked or claimed; or ``DROPPED`` when a queue overflowed at port ``count[BROKE_AT]``;
    or ``STOPPED`` when as many flows have arrived as were waited for.
    """
    while count[EVENTS_DUE] > 0 and heap[0, 0] <= until:
        if 0 < count[STOP_AT] <= count[ARRIVED]:
            return STOPPED
        if heap[0, 0] == until and heap[0, 1] > last_code:
            break
        if count[FREE_PACKET] == NONE:
            return NO_PACKETS
        if count[EVENTS_DUE] + count[MOST_FOLLOWERS] + 8 > len(heap):
            return NO_EVENTS
        now, code = heap[0, 0], heap[0, 1]
        kind, subject = code >> KIND_SHIFT, code & SUBJECT
        if kind == START_EVENT and flows[subject, RESTING] == 0:
            count[BROKE_AT] = subject
            episode = flows[subject, EPISODE]
            if episode != NONE and episodes[episode, STATE] == WAITING:
                return OPENS
            for hop in range(flows[subject, HOPS]):
                port = paths[subject, hop]
                if ports[port, PARKED] == 1 or ports[port, CLAIMED] > now:
                    return TOUCHES_RESTING
        count[NOW] = now
        pop(heap, count)
        if kind == ARRIVE_EVENT:
            packet = ports[subject, FLY_HEAD]
            following = packets[packet, LINK_NEXT]
            ports[subject, FLY_HEAD] = following
            if following == NONE:
                ports[subject, FLY_TAIL] = NONE
                ports[subject, ARRIVES] = 0
            else:
                push(heap, count, packets[following, TIME], ARRIVE_EVENT, subject)
            flow = packets[packet, FLOW]
            hop = packets[packet, HOP] + 1
            if hop == flows[flow, HOPS]:
                if _deliver(packet, now, ports, flows, packets, heap, count, whole):
                    _forget_acks(flow, flows, packets, count)
                    _release(flows[flow, FIRST_TIE], now, flows, ties, heap, count)
                    _finish(flow, now, flows, ties, heap, count, arrived)
                    for hop in range(flows[flow, HOPS]):
                        ports[paths[flow, hop], USERS] -= 1
                continue
            packets[packet, HOP] = hop
            port = paths[flow, hop]
            if (
                ports[port, FREE_AT] <= now
                and ports[port, PAUSED] == 0
                and ports[port, TX] == 0
                and ports[port, QUEUE_HEAD] == NONE
                and ports[port, RING] == NONE
            ):
                _transmit(
                    port, packet, now, ports, ps_per_byte, packets, heap, count, whole[HEADER]
                )
            elif not _wait(
                port, packet, subject, now, ports, packets, heap, count, whole, part,
                mark_from, mark_all,
            ):  # fmt: skip
                return DROPPED
        elif kind == TX_EVENT:
            ports[subject, TX] = 0
            _send(
                subject, now, ports, ps_per_byte, flows, rates, packets, heap, count, whole, part
            )
        elif kind == WAKE_EVENT:
            # One that an earlier wake-up overtook has nothing to do.
            if ports[subject, WAKE] == now:
                ports[subject, WAKE] = NONE
                idle = ports[subject, TX] == 0 and ports[subject, FREE_AT] <= now
                if idle and ports[subject, RING] != NONE:
                    _send(subject, now, ports, ps_per_byte, flows, rates, packets, heap, count,
                          whole, part)  # fmt: skip
        elif kind == START_EVENT:
            if flows[subject, RESTING] == 1:
                continue
            port = flows[subject, FIRST]
            flows[subject, BEGAN] = flows[subject, PACE] = now
            flows[subject, ALPHA_AT] = flows[subject, RISE_AT] = now
            for hop in range(flows[subject, HOPS]):
                ports[paths[subject, hop], USERS] += 1
            head = ports[port, RING]
            if head == NONE:
                flows[subject, NEXT] = flows[subject, BEFORE] = subject
                ports[port, RING] = subject
                # Whose turn it is does not depend on what was sent long ago.
                ports[port, LAST_OWN] = 0
            else:
                tail = flows[head, BEFORE]
                flows[subject, NEXT], flows[subject, BEFORE] = head, tail
                flows[tail, NEXT] = flows[head, BEFORE] = subject
            if ports[port, TX] == 0:
                ports[port, TX] = 1
                push(heap, count, max(now, ports[port, FREE_AT]), TX_EVENT, port)
        elif kind == FINISH_EVENT:
            # One that is no longer played from memory arrives with its packets.
            if flows[subject, RESTING] == 0:
                continue
            flows[subject, DELIVERED] = flows[subject, SENT] = flows[subject, SIZE]
            _finish(subject, now, flows, ties, heap, count, arrived)
        elif ports[subject, PAUSED] == 0:
            ports[subject, PAUSED], ports[subject, PAUSED_SINCE] = 1, now
        else:
            ports[subject, PAUSED] = 0
            ports[subject, PAUSED_FOR] += now - ports[subject, PAUSED_SINCE]
            waits = ports[subject, QUEUE_HEAD] != NONE or ports[subject, RING] != NONE
            if waits and ports[subject, TX] == 0:
                ports[subject, TX] = 1
                push(heap, count, max(now, ports[subject, FREE_AT]), TX_EVENT, subject)
    return STOPPED if 0 < count[STOP_AT] <= count[ARRIVED] else REACHED
