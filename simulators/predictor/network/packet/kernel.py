"""The event loop, compiled: packets hop from port to port.

A link is FIFO with a constant delay, so a port has at most one arrival and one transmission due,
whatever it holds, and the heap stays as small as there are ports. Acknowledgements are no packets:
they come back after a constant time, and a flow looks at them when it may send. Timers of DCQCN
are caught up with when a flow sends or is notified.
"""

from __future__ import annotations

from numba import njit

from .chance import draw
from .engine_arrays import (
    ACK_HEAD,
    ACK_TAIL,
    ADAPTIVE,
    ALPHA_AT,
    ARRIVE_EVENT,
    ARRIVED,
    ARRIVES,
    ASKED,
    BACK,
    BEGAN,
    BROKE_AT,
    BYTES,
    CAME_BY,
    CLAIMED,
    CUT,
    DCQCN,
    DELAY,
    DELIVERED,
    DONE,
    DOWN,
    DROPPED,
    EARLIEST,
    EPISODE,
    EVENTS_DUE,
    FINISH_EVENT,
    FIRST,
    FIRST_BYTE,
    FIRST_LATER,
    FIRST_PATH,
    FIRST_TIE,
    FLIP_EVENT,
    FLIPS_AT,
    FLOW,
    FLY_HEAD,
    FLY_TAIL,
    FREE_AT,
    FREE_PACKET,
    GO_BACK_N,
    HEARD_AT,
    HOP,
    HOPS,
    INGRESS,
    KIND_SHIFT,
    LAG,
    LAST_NOTICE,
    LEFT_AT,
    LIMIT,
    LINK_NEXT,
    LOST,
    MARKED,
    MARKS,
    MOST_FOLLOWERS,
    MOST_MARKED,
    MOST_QUEUED,
    NEXT,
    NO_EVENTS,
    NO_PACKETS,
    NO_RECOVERY,
    NONE,
    NOTICE_GAP,
    NOW,
    OPENS,
    PACE,
    PACED,
    PACKET,
    PACKETS_OUT,
    PARKED,
    PATH,
    PATH_ROW,
    PATHS,
    PATIENCE,
    PAUSE,
    PAUSED,
    PAUSED_FOR,
    PAUSED_SINCE,
    PAUSES,
    QUEUE_BYTES,
    QUEUE_HEAD,
    QUEUE_TAIL,
    REACHED,
    RECOVER_EVENT,
    RECOVERY,
    REFUSED,
    RESTING,
    RING,
    RISE_AT,
    ROUTING,
    SEED,
    SELECTIVE_REPEAT,
    SENT,
    SIZE,
    START_EVENT,
    STATE,
    STOP_AT,
    STOPPED,
    SUBJECT,
    TIME,
    TIMER,
    TOLD_TO_STOP,
    TOUCHES_RESTING,
    TX,
    TX_EVENT,
    UNFINISHED,
    USERS,
    WAITING,
    WAITS,
    WAKE,
    WAKE_EVENT,
)
from .heap import pop, push
from .recovery import arm, drop, free, join_ring, leave_ring, look_for_losses
from .sending import (
    expect,
    longest_train,
    main_row,
    serve,
    take_acks,
    take_queued,
    transmit,
    wire_bytes,
)


@njit(cache=True)
def _wait(  # type: ignore[no-untyped-def]
    port, packet, link, now, ports, flows, packets, heap, count, whole, part, mark_from, mark_all
):
    """Put a packet that came over ``link`` into a port's queue; False where that is an error."""
    size = wire_bytes(packets[packet, BYTES], whole)
    if ports[port, QUEUE_BYTES] + size > whole[LIMIT] or ports[port, PAUSED] >= DOWN:
        if whole[RECOVERY] == NO_RECOVERY:
            count[BROKE_AT] = port
            return False
        drop(packet, port, now, ports, flows, packets, heap, count, whole)
        return True
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
    if whole[PAUSE] > 0 and ports[link, ASKED] == 0 and ports[link, INGRESS] > whole[PAUSE]:
        ports[link, ASKED] = 1
        ports[link, PAUSES] += 1
        ports[link, FLIPS_AT] = now + ports[link, DELAY]
        push(heap, count, ports[link, FLIPS_AT], FLIP_EVENT, link)
    if ports[port, PAUSED] == 0:
        expect(port, now, ports, heap, count, whole)
    return True


@njit(cache=True)
def _least_queued(row, hop, ports, flow, flows, paths):  # type: ignore[no-untyped-def]
    """Of the paths that begin as a packet's did so far, the one whose next port holds least, as a
    switch chooses that routes packet by packet. A port that is down is not chosen."""
    first, ways = flows[flow, FIRST_PATH], flows[flow, PATHS]
    best = NONE
    for way in range(ways):
        # Who comes first among equals goes round, or all would take the same.
        other = first + (row - first + way) % ways
        same = True
        for before in range(hop):
            if paths[other, before] != paths[row, before]:
                same = False
                break
        port = paths[other, hop]
        if not same or ports[port, PAUSED] >= DOWN:
            continue
        if best == NONE or ports[port, QUEUE_BYTES] < ports[paths[best, hop], QUEUE_BYTES]:
            best = other
            if ports[port, QUEUE_BYTES] == 0 and ports[port, TX] == 0:
                break
    return row if best == NONE else best


@njit(cache=True)
def lose_queue(port, now, ports, flows, packets, heap, count, whole):  # type: ignore[no-untyped-def]
    """A link went down: what waits for it is lost."""
    while ports[port, QUEUE_HEAD] != NONE:
        packet = take_queued(port, now, ports, packets, heap, count, whole)
        drop(packet, port, now, ports, flows, packets, heap, count, whole)


@njit(cache=True)
def _accept(flow, packet, now, flows, packets, heap, count, whole):  # type: ignore[no-untyped-def]
    """Whether a receiver answers a packet; one that is refused becomes an answer of no bytes."""
    if flows[flow, DONE] != NONE:
        free(packet, packets, count)
        return False
    if whole[RECOVERY] == SELECTIVE_REPEAT:
        if flows[flow, LOST] != NONE and flows[flow, NEXT] == NONE:
            # Nothing else makes the sender read what it hears.
            arm(flow, now + flows[flow, BACK], flows, heap, count)
        return True
    if packets[packet, FIRST_BYTE] == flows[flow, DELIVERED]:
        flows[flow, REFUSED] = NONE
        return True
    if packets[packet, FIRST_BYTE] > flows[flow, DELIVERED]:
        if flows[flow, REFUSED] != NONE:
            # Should the packet that is asked for be refused too, only the sender's patience helps.
            arm(flow, max(now, packets[packet, LEFT_AT] + whole[PATIENCE]), flows, heap, count)
            free(packet, packets, count)
            return False
        flows[flow, REFUSED] = now
        arm(flow, now + flows[flow, BACK], flows, heap, count)
        packets[packet, BYTES] = 0
        return True
    # What is here already needs no answer: none is ever lost.
    free(packet, packets, count)
    return False


@njit(cache=True)
def _deliver(packet, now, ports, flows, packets, heap, count, whole):  # type: ignore[no-untyped-def]
    """A packet is there: its acknowledgement sets out. True when it is the flow's last."""
    flow = packets[packet, FLOW]
    if whole[RECOVERY] != NO_RECOVERY and not _accept(
        flow, packet, now, flows, packets, heap, count, whole
    ):
        return False
    flows[flow, DELIVERED] += packets[packet, BYTES]
    if whole[RECOVERY] == GO_BACK_N:
        packets[packet, FIRST_BYTE] = flows[flow, DELIVERED]
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
    if flows[flow, DONE] != NONE:
        # It was said to have (``RepeatingEngine``).
        return
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
                port = paths[flows[subject, PATH], hop]
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
                    if flows[flow, NEXT] != NONE:
                        # A sender that went back too far has not heard yet.
                        leave_ring(flow, ports, flows)
                    for hop in range(flows[flow, HOPS]):
                        ports[paths[flows[flow, FIRST_PATH], hop], USERS] -= 1
                continue
            packets[packet, HOP] = hop
            row = packets[packet, PATH_ROW]
            if whole[ROUTING] == ADAPTIVE:
                row = _least_queued(row, hop, ports, flow, flows, paths)
                packets[packet, PATH_ROW] = row
            port = paths[row, hop]
            main = main_row(port, whole)
            if (
                ports[main, FREE_AT] <= now
                and ports[port, PAUSED] == 0
                and ports[main, TX] == 0
                and ports[port, QUEUE_HEAD] == NONE
                and ports[port, RING] == NONE
            ):
                transmit(port, packet, now, ports, ps_per_byte, packets, heap, count, whole)
            elif not _wait(
                port, packet, subject, now, ports, flows, packets, heap, count, whole, part,
                mark_from, mark_all,
            ):  # fmt: skip
                return DROPPED
        elif kind == TX_EVENT:
            ports[subject, TX] = 0
            serve(
                subject, now, ports, ps_per_byte, flows, rates, packets, heap,
                count, whole, part,
            )  # fmt: skip
        elif kind == WAKE_EVENT:
            # One that an earlier wake-up overtook has nothing to do.
            if ports[subject, WAKE] == now:
                ports[subject, WAKE] = NONE
                main = main_row(subject, whole)
                idle = ports[main, TX] == 0 and ports[main, FREE_AT] <= now
                if idle and ports[subject, RING] != NONE:
                    serve(
                        main, now, ports, ps_per_byte, flows, rates, packets,
                        heap, count, whole, part,
                    )  # fmt: skip
        elif kind == START_EVENT:
            if flows[subject, RESTING] == 1:
                continue
            flows[subject, BEGAN] = flows[subject, PACE] = now
            flows[subject, ALPHA_AT] = flows[subject, RISE_AT] = flows[subject, HEARD_AT] = now
            for hop in range(flows[subject, HOPS]):
                ports[paths[flows[subject, FIRST_PATH], hop], USERS] += 1
            join_ring(subject, ports, flows)
            # Flows of one host take turns: they send as much each, packets where that is too much.
            flows[subject, CUT] = flows[flows[subject, NEXT], CUT]
            if flows[subject, CUT] > longest_train(subject, flows):
                other = subject
                while flows[other, CUT] > whole[PACKET]:
                    flows[other, CUT] = whole[PACKET]
                    other = flows[other, NEXT]
            expect(flows[subject, FIRST], now, ports, heap, count, whole)
        elif kind == RECOVER_EVENT:
            if flows[subject, TIMER] != now or flows[subject, DONE] != NONE:
                continue
            flows[subject, TIMER] = NONE
            take_acks(
                subject, now, ps_per_byte, flows, rates, packets, count,
                whole, part,
            )  # fmt: skip
            look_for_losses(subject, now, flows, packets, heap, count, whole)
            if flows[subject, SENT] < flows[subject, SIZE]:
                if flows[subject, NEXT] == NONE:
                    join_ring(subject, ports, flows)
                expect(flows[subject, FIRST], now, ports, heap, count, whole)
        elif kind == FINISH_EVENT:
            # One that is no longer played from memory arrives with its packets.
            if flows[subject, RESTING] == 0:
                continue
            flows[subject, DELIVERED] = flows[subject, SENT] = flows[subject, SIZE]
            _finish(subject, now, flows, ties, heap, count, arrived)
        elif ports[subject, PAUSED] & TOLD_TO_STOP == 0:
            ports[subject, PAUSED] |= TOLD_TO_STOP
            ports[subject, PAUSED_SINCE] = now
        else:
            ports[subject, PAUSED] &= ~TOLD_TO_STOP
            ports[subject, PAUSED_FOR] += now - ports[subject, PAUSED_SINCE]
            if ports[subject, QUEUE_HEAD] != NONE or ports[subject, RING] != NONE:
                expect(subject, now, ports, heap, count, whole)
    return STOPPED if 0 < count[STOP_AT] <= count[ARRIVED] else REACHED
