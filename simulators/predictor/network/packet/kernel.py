"""The event loop, compiled: packets hop from port to port.

A link is FIFO with a constant delay, so a port has at most one arrival and one transmission due,
whatever it holds, and the heap stays as small as there are ports. Acknowledgements are no packets:
they come back after a constant time, and a flow looks at them when it may send. Timers of DCQCN
are caught up with when a flow sends or is notified.
"""

from __future__ import annotations

from trainscout.simulators.predictor.network.compiled import compiled

from . import engine_arrays as t
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


@compiled
def _mix(x):  # type: ignore[no-untyped-def]
    """Spread 32 bits over 32 bits (multiply and fold, after Wang)."""
    x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return x ^ (x >> 16)


@compiled
def draw(port, ports, seed):  # type: ignore[no-untyped-def]
    """A port's next number in [0, 1), to which what others do, and when, makes no difference."""
    ports[port, t.DRAWS] += 1
    x = _mix((_mix((seed + port) & 0xFFFFFFFF) + ports[port, t.DRAWS]) & 0xFFFFFFFF)
    return x / 4294967296.0


@compiled
def _wait(  # type: ignore[no-untyped-def]
    port, packet, link, now, ports, flows, packets, heap, count, whole, part, mark_from, mark_all
):
    """Put a packet that came over ``link`` into a port's queue; False where that is an error."""
    size = wire_bytes(packets[packet, t.BYTES], whole)
    if ports[port, t.QUEUE_BYTES] + size > whole[t.LIMIT] or ports[port, t.PAUSED] >= t.DOWN:
        if whole[t.RECOVERY] == t.NO_RECOVERY:
            count[t.BROKE_AT] = port
            return False
        drop(packet, port, now, ports, flows, packets, heap, count, whole)
        return True
    packets[packet, t.CAME_BY] = link
    packets[packet, t.LINK_NEXT] = t.NONE
    if ports[port, t.QUEUE_HEAD] == t.NONE:
        ports[port, t.QUEUE_HEAD] = packet
    else:
        packets[ports[port, t.QUEUE_TAIL], t.LINK_NEXT] = packet
    ports[port, t.QUEUE_TAIL] = packet
    ports[port, t.QUEUE_BYTES] += size
    depth = ports[port, t.QUEUE_BYTES]
    if depth > ports[port, t.MOST_QUEUED]:
        ports[port, t.MOST_QUEUED] = depth
    if whole[t.PACED] == t.DCQCN and depth > mark_from[port]:
        share = (depth - mark_from[port]) / (mark_all[port] - mark_from[port])
        if share >= 1 or draw(port, ports, whole[t.SEED]) < share * part[t.MOST_MARKED]:
            packets[packet, t.MARKED] = 1
            ports[port, t.MARKS] += 1
    ports[link, t.INGRESS] += size
    if (
        whole[t.PAUSE] > 0
        and ports[link, t.ASKED] == 0
        and ports[link, t.INGRESS] > whole[t.PAUSE]
    ):
        ports[link, t.ASKED] = 1
        ports[link, t.PAUSES] += 1
        ports[link, t.FLIPS_AT] = now + ports[link, t.DELAY]
        push(heap, count, ports[link, t.FLIPS_AT], t.FLIP_EVENT, link)
    if ports[port, t.PAUSED] == 0:
        expect(port, now, ports, heap, count, whole)
    return True


@compiled
def _least_queued(row, hop, ports, flow, flows, paths):  # type: ignore[no-untyped-def]
    """Of the paths that begin as a packet's did so far, the one whose next port holds least, as a
    switch chooses that routes packet by packet. A port that is down is not chosen."""
    first, ways = flows[flow, t.FIRST_PATH], flows[flow, t.PATHS]
    best = t.NONE
    for way in range(ways):
        # Who comes first among equals goes round, or all would take the same.
        other = first + (row - first + way) % ways
        same = True
        for before in range(hop):
            if paths[other, before] != paths[row, before]:
                same = False
                break
        port = paths[other, hop]
        if not same or ports[port, t.PAUSED] >= t.DOWN:
            continue
        if best == t.NONE or ports[port, t.QUEUE_BYTES] < ports[paths[best, hop], t.QUEUE_BYTES]:
            best = other
            if ports[port, t.QUEUE_BYTES] == 0 and ports[port, t.TX] == 0:
                break
    return row if best == t.NONE else best


@compiled
def lose_queue(port, now, ports, flows, packets, heap, count, whole):  # type: ignore[no-untyped-def]
    """A link went down: what waits for it is lost."""
    while ports[port, t.QUEUE_HEAD] != t.NONE:
        packet = take_queued(port, now, ports, packets, heap, count, whole)
        drop(packet, port, now, ports, flows, packets, heap, count, whole)


@compiled
def _accept(flow, packet, now, flows, packets, heap, count, whole):  # type: ignore[no-untyped-def]
    """Whether a receiver answers a packet; one that is refused becomes an answer of no bytes."""
    if flows[flow, t.DONE] != t.NONE:
        free(packet, packets, count)
        return False
    if whole[t.RECOVERY] == t.SELECTIVE_REPEAT:
        if flows[flow, t.LOST] != t.NONE and flows[flow, t.NEXT] == t.NONE:
            # Nothing else makes the sender read what it hears.
            arm(flow, now + flows[flow, t.BACK], flows, heap, count)
        return True
    if packets[packet, t.FIRST_BYTE] == flows[flow, t.DELIVERED]:
        flows[flow, t.REFUSED] = t.NONE
        return True
    if packets[packet, t.FIRST_BYTE] > flows[flow, t.DELIVERED]:
        if flows[flow, t.REFUSED] != t.NONE:
            # Should the packet that is asked for be refused too, only the sender's patience helps.
            arm(flow, max(now, packets[packet, t.LEFT_AT] + whole[t.PATIENCE]), flows, heap, count)
            free(packet, packets, count)
            return False
        flows[flow, t.REFUSED] = now
        arm(flow, now + flows[flow, t.BACK], flows, heap, count)
        packets[packet, t.BYTES] = 0
        return True
    # What is here already needs no answer: none is ever lost.
    free(packet, packets, count)
    return False


@compiled
def _deliver(packet, now, ports, flows, packets, heap, count, whole):  # type: ignore[no-untyped-def]
    """A packet is there: its acknowledgement sets out. True when it is the flow's last."""
    flow = packets[packet, t.FLOW]
    if whole[t.RECOVERY] != t.NO_RECOVERY and not _accept(
        flow, packet, now, flows, packets, heap, count, whole
    ):
        return False
    flows[flow, t.DELIVERED] += packets[packet, t.BYTES]
    if whole[t.RECOVERY] == t.GO_BACK_N:
        packets[packet, t.FIRST_BYTE] = flows[flow, t.DELIVERED]
    packets[packet, t.TIME] = now + flows[flow, t.BACK]
    packets[packet, t.LINK_NEXT] = t.NONE
    if packets[packet, t.MARKED] == 1:
        # The receiver notifies no more often than this.
        last = flows[flow, t.LAST_NOTICE]
        if last != t.NONE and now - last < whole[t.NOTICE_GAP]:
            packets[packet, t.MARKED] = 0
        else:
            flows[flow, t.LAST_NOTICE] = now
    if flows[flow, t.ACK_HEAD] == t.NONE:
        flows[flow, t.ACK_HEAD] = packet
    else:
        packets[flows[flow, t.ACK_TAIL], t.LINK_NEXT] = packet
    flows[flow, t.ACK_TAIL] = packet
    port, back = flows[flow, t.FIRST], packets[packet, t.TIME]
    if (
        flows[flow, t.SENT] < flows[flow, t.SIZE]
        and ports[port, t.TX] == 0
        and (ports[port, t.WAKE] == t.NONE or back < ports[port, t.WAKE])
    ):
        ports[port, t.WAKE] = back
        push(heap, count, back, t.WAKE_EVENT, port)
    return flows[flow, t.DELIVERED] == flows[flow, t.SIZE]


@compiled
def _release(tie, now, flows, ties, heap, count):  # type: ignore[no-untyped-def]
    """Those in a list that waited for nothing else start."""
    while tie != t.NONE:
        follower = ties[tie, 0]
        flows[follower, t.WAITS] -= 1
        earliest = max(flows[follower, t.EARLIEST], now + flows[follower, t.LAG])
        flows[follower, t.EARLIEST] = earliest
        if flows[follower, t.WAITS] == 0:
            push(heap, count, earliest, t.START_EVENT, follower)
        tie = ties[tie, 1]


@compiled
def _finish(flow, now, flows, ties, heap, count, arrived):  # type: ignore[no-untyped-def]
    """A flow has arrived: note it, and let those who were announced later follow."""
    if flows[flow, t.DONE] != t.NONE:
        # It was said to have (``RepeatingEngine``).
        return
    flows[flow, t.DONE] = now
    count[t.UNFINISHED] -= 1
    arrived[count[t.ARRIVED]] = flow
    count[t.ARRIVED] += 1
    _release(flows[flow, t.FIRST_LATER], now, flows, ties, heap, count)


@compiled
def _forget_acks(flow, flows, packets, count):  # type: ignore[no-untyped-def]
    """Nobody waits for a finished flow's acknowledgements."""
    packet = flows[flow, t.ACK_HEAD]
    while packet != t.NONE:
        following = packets[packet, t.LINK_NEXT]
        packets[packet, t.LINK_NEXT] = count[t.FREE_PACKET]
        count[t.FREE_PACKET] = packet
        count[t.PACKETS_OUT] -= 1
        packet = following
    flows[flow, t.ACK_HEAD] = flows[flow, t.ACK_TAIL] = t.NONE


@compiled
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
    while count[t.EVENTS_DUE] > 0 and heap[0, 0] <= until:
        if 0 < count[t.STOP_AT] <= count[t.ARRIVED]:
            return t.STOPPED
        if heap[0, 0] == until and heap[0, 1] > last_code:
            break
        if count[t.FREE_PACKET] == t.NONE:
            return t.NO_PACKETS
        if count[t.EVENTS_DUE] + count[t.MOST_FOLLOWERS] + 8 > len(heap):
            return t.NO_EVENTS
        now, code = heap[0, 0], heap[0, 1]
        kind, subject = code >> t.KIND_SHIFT, code & t.SUBJECT
        if kind == t.START_EVENT and flows[subject, t.RESTING] == 0:
            count[t.BROKE_AT] = subject
            episode = flows[subject, t.EPISODE]
            if episode != t.NONE and episodes[episode, t.STATE] == t.WAITING:
                return t.OPENS
            for hop in range(flows[subject, t.HOPS]):
                port = paths[flows[subject, t.PATH], hop]
                if ports[port, t.PARKED] == 1 or ports[port, t.CLAIMED] > now:
                    return t.TOUCHES_RESTING
        count[t.NOW] = now
        pop(heap, count)
        if kind == t.ARRIVE_EVENT:
            packet = ports[subject, t.FLY_HEAD]
            following = packets[packet, t.LINK_NEXT]
            ports[subject, t.FLY_HEAD] = following
            if following == t.NONE:
                ports[subject, t.FLY_TAIL] = t.NONE
                ports[subject, t.ARRIVES] = 0
            else:
                push(heap, count, packets[following, t.TIME], t.ARRIVE_EVENT, subject)
            flow = packets[packet, t.FLOW]
            hop = packets[packet, t.HOP] + 1
            if hop == flows[flow, t.HOPS]:
                if _deliver(packet, now, ports, flows, packets, heap, count, whole):
                    _forget_acks(flow, flows, packets, count)
                    _release(flows[flow, t.FIRST_TIE], now, flows, ties, heap, count)
                    _finish(flow, now, flows, ties, heap, count, arrived)
                    if flows[flow, t.NEXT] != t.NONE:
                        # A sender that went back too far has not heard yet.
                        leave_ring(flow, ports, flows)
                    for hop in range(flows[flow, t.HOPS]):
                        ports[paths[flows[flow, t.FIRST_PATH], hop], t.USERS] -= 1
                continue
            packets[packet, t.HOP] = hop
            row = packets[packet, t.PATH_ROW]
            if whole[t.ROUTING] == t.ADAPTIVE:
                row = _least_queued(row, hop, ports, flow, flows, paths)
                packets[packet, t.PATH_ROW] = row
            port = paths[row, hop]
            main = main_row(port, whole)
            if (
                ports[main, t.FREE_AT] <= now
                and ports[port, t.PAUSED] == 0
                and ports[main, t.TX] == 0
                and ports[port, t.QUEUE_HEAD] == t.NONE
                and ports[port, t.RING] == t.NONE
            ):
                transmit(port, packet, now, ports, ps_per_byte, packets, heap, count, whole)
            elif not _wait(
                port, packet, subject, now, ports, flows, packets, heap, count, whole, part,
                mark_from, mark_all,
            ):  # fmt: skip
                return t.DROPPED
        elif kind == t.TX_EVENT:
            ports[subject, t.TX] = 0
            serve(
                subject, now, ports, ps_per_byte, flows, rates, packets, heap,
                count, whole, part,
            )  # fmt: skip
        elif kind == t.WAKE_EVENT:
            # One that an earlier wake-up overtook has nothing to do.
            if ports[subject, t.WAKE] == now:
                ports[subject, t.WAKE] = t.NONE
                main = main_row(subject, whole)
                idle = ports[main, t.TX] == 0 and ports[main, t.FREE_AT] <= now
                if idle and ports[subject, t.RING] != t.NONE:
                    serve(
                        main, now, ports, ps_per_byte, flows, rates, packets,
                        heap, count, whole, part,
                    )  # fmt: skip
        elif kind == t.START_EVENT:
            if flows[subject, t.RESTING] == 1:
                continue
            flows[subject, t.BEGAN] = flows[subject, t.PACE] = now
            flows[subject, t.ALPHA_AT] = flows[subject, t.RISE_AT] = flows[subject, t.HEARD_AT] = (
                now
            )
            for hop in range(flows[subject, t.HOPS]):
                ports[paths[flows[subject, t.FIRST_PATH], hop], t.USERS] += 1
            join_ring(subject, ports, flows)
            # Flows of one host take turns: they send as much each, packets where that is too much.
            flows[subject, t.CUT] = flows[flows[subject, t.NEXT], t.CUT]
            if flows[subject, t.CUT] > longest_train(subject, flows):
                other = subject
                while flows[other, t.CUT] > whole[t.PACKET]:
                    flows[other, t.CUT] = whole[t.PACKET]
                    other = flows[other, t.NEXT]
            expect(flows[subject, t.FIRST], now, ports, heap, count, whole)
        elif kind == t.RECOVER_EVENT:
            if flows[subject, t.TIMER] != now or flows[subject, t.DONE] != t.NONE:
                continue
            flows[subject, t.TIMER] = t.NONE
            take_acks(
                subject, now, ps_per_byte, flows, rates, packets, count,
                whole, part,
            )  # fmt: skip
            look_for_losses(subject, now, flows, packets, heap, count, whole)
            if flows[subject, t.SENT] < flows[subject, t.SIZE]:
                if flows[subject, t.NEXT] == t.NONE:
                    join_ring(subject, ports, flows)
                expect(flows[subject, t.FIRST], now, ports, heap, count, whole)
        elif kind == t.FINISH_EVENT:
            # One that is no longer played from memory arrives with its packets.
            if flows[subject, t.RESTING] == 0:
                continue
            flows[subject, t.DELIVERED] = flows[subject, t.SENT] = flows[subject, t.SIZE]
            _finish(subject, now, flows, ties, heap, count, arrived)
        elif ports[subject, t.PAUSED] & t.TOLD_TO_STOP == 0:
            ports[subject, t.PAUSED] |= t.TOLD_TO_STOP
            ports[subject, t.PAUSED_SINCE] = now
        else:
            ports[subject, t.PAUSED] &= ~t.TOLD_TO_STOP
            ports[subject, t.PAUSED_FOR] += now - ports[subject, t.PAUSED_SINCE]
            if ports[subject, t.QUEUE_HEAD] != t.NONE or ports[subject, t.RING] != t.NONE:
                expect(subject, now, ports, heap, count, whole)
    return t.STOPPED if 0 < count[t.STOP_AT] <= count[t.ARRIVED] else t.REACHED
