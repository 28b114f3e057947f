"""The event loop: flows start and drain, and the component they touch gets new rates.

All events of one moment are taken together. Then the flows that share links with those that
came or went, directly or through others, are found and filled anew; nothing else changes. A flow
whose rate is the same to the last bit keeps its piece of history and its finishing time.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from simulators.network.flow.event_queue import put, put_all, remove
from simulators.network.flow.tables import (
    CLOCK_END,
    DRAINED,
    FEMTOSECONDS,
    FREE_SEGMENT,
    IN_HEAP,
    LIVE,
    LOGGED,
    NONE,
    NUM_LIVE,
    PENDING,
    SEGMENTS_FREE,
    SEGMENTS_USED,
    SWEEP,
)
from simulators.network.flow.water_filling import attach, detach, fill

REACHED, NO_SPACE, CLOCK_ENDED = range(3)


@njit(cache=True)
def finish_time(time, left, rate):  # type: ignore[no-untyped-def]
    """When ``left`` bytes are sent at ``rate``, in femtoseconds."""
    duration = left / rate * FEMTOSECONDS
    if duration >= CLOCK_END - time:
        return CLOCK_END
    return time + np.int64(np.rint(duration))


@njit(cache=True)
def release_time(flow, flows, ties):  # type: ignore[no-untyped-def]
    """When a flow starts whose parents have all drained."""
    time = flows.earliest[flow]
    tie = flows.parents[flow]
    while tie >= 0:
        parent = ties.parent[tie]
        arrived = flows.drained[parent] + flows.latency[parent] + flows.delay[flow]
        time = max(time, arrived)
        tie = ties.next_of_child[tie]
    return min(time, CLOCK_END)


@njit(cache=True)
def note(flow, flows, counters):  # type: ignore[no-untyped-def]
    """Remember that a flow's completion may have changed."""
    if flows.logged[flow] == 0:
        flows.logged[flow] = 1
        flows.log[counters[LOGGED]] = flow
        counters[LOGGED] += 1


@njit(cache=True)
def admit(first, last, flows, ties, counters):  # type: ignore[no-untyped-def]
    """Give the new flows ``first..last - 1`` that wait for nothing their starting event."""
    ready = 0
    for flow in range(first, last):
        if flows.waiting[flow] == 0:
            flows.state[flow] = PENDING
            flows.event[flow] = release_time(flow, flows, ties)
            flows.members[ready] = flow
            ready += 1
    counters[IN_HEAP] = put_all(
        flows.heap, flows.place, flows.event, counters[IN_HEAP], flows.members, ready
    )


@njit(cache=True)
def tie_up(first, last, flows, ties):  # type: ignore[no-untyped-def]
    """Enter the ties ``first..last - 1`` in the lists of both ends."""
    for tie in range(first, last):
        parent, child = ties.parent[tie], ties.child[tie]
        ties.next_of_parent[tie] = flows.children[parent]
        flows.children[parent] = tie
        ties.next_of_child[tie] = flows.parents[child]
        flows.parents[child] = tie


@njit(cache=True)
def _drain(flow, now, flows, ties, counters):  # type: ignore[no-untyped-def]
    """All bytes of a flow are sent: flows that waited for nothing else learn their start."""
    flows.state[flow] = DRAINED
    flows.drained[flow] = now
    note(flow, flows, counters)
    tie = flows.children[flow]
    while tie >= 0:
        child = ties.child[tie]
        flows.waiting[child] -= 1
        if flows.waiting[child] == 0:
            flows.state[child] = PENDING
            flows.event[child] = release_time(child, flows, ties)
            counters[IN_HEAP] = put(flows.heap, flows.place, flows.event, counters[IN_HEAP], child)
        tie = ties.next_of_parent[tie]


@njit(cache=True)
def _find_component(touched, sweep, flows, hops, links):  # type: ignore[no-untyped-def]
    """Extend the first ``touched`` links in ``links.touched`` to all that flows connect them to.

    Returns how many links, and how many flows are in ``flows.members``.
    """
    paths, following, seen, members = flows.paths, flows.following, flows.seen, flows.members
    head, link_seen, queue = links.head, links.seen, links.touched
    found = 0
    at = 0
    while at < touched:
        entry = head[queue[at]]
        at += 1
        while entry >= 0:
            flow = entry // hops
            if seen[flow] != sweep:
                seen[flow] = sweep
                members[found] = flow
                found += 1
                for hop in range(hops):
                    link = paths[flow, hop]
                    if link < 0:
                        break
                    if link_seen[link] != sweep:
                        link_seen[link] = sweep
                        queue[touched] = link
                        touched += 1
            entry = following[entry]
    return touched, found


@njit(cache=True)
def _apply_rates(now, found, flows, past, counters):  # type: ignore[no-untyped-def]
    """New pieces of history and finishing times for members whose rate changed."""
    members, rate, segment = flows.members, flows.rate, flows.segment
    changed = 0
    for at in range(found):
        flow = members[at]
        new_rate = rate[flow]
        piece = segment[flow]
        if piece < 0:
            left = flows.bytes[flow]
        elif past.rate[piece] == new_rate:
            continue
        else:
            sent = past.rate[piece] * ((now - past.time[piece]) / FEMTOSECONDS)
            left = max(0.0, past.left[piece] - sent)
        if piece < 0 or past.time[piece] != now:
            before = piece
            piece = counters[FREE_SEGMENT]
            if piece >= 0:
                counters[FREE_SEGMENT] = past.before[piece]
                counters[SEGMENTS_FREE] -= 1
            else:
                piece = counters[SEGMENTS_USED]
                counters[SEGMENTS_USED] += 1
            past.before[piece] = before
            segment[flow] = piece
        past.time[piece] = now
        past.left[piece] = left
        past.rate[piece] = new_rate
        flows.event[flow] = finish_time(now, left, new_rate)
        # The list of members is overwritten behind the reader.
        members[changed] = flow
        changed += 1
    counters[IN_HEAP] = put_all(
        flows.heap, flows.place, flows.event, counters[IN_HEAP], members, changed
    )


@njit(cache=True)
def play(until, target, flows, links, past, ties, counters):  # type: ignore[no-untyped-def]
    """Take events up to and including ``until``, or until flow ``target`` has drained.

    Returns why it stopped, the time of the last events taken (``NONE``: there were none), and
    how often rates were solved. With ``NO_SPACE`` it can be called again after ``past`` grew.
    """
    hops = flows.paths.shape[1]
    heap, place, event, paths = flows.heap, flows.place, flows.event, flows.paths
    last = NONE
    solves = 0
    while counters[IN_HEAP] > 0:
        now = event[heap[0]]
        if now > until:
            break
        if now >= CLOCK_END:
            return CLOCK_ENDED, last, solves
        room = len(past.time) - counters[SEGMENTS_USED] + counters[SEGMENTS_FREE]
        if room < counters[NUM_LIVE] + counters[IN_HEAP]:
            return NO_SPACE, last, solves
        counters[SWEEP] += 1
        sweep = counters[SWEEP]
        touched = 0
        while counters[IN_HEAP] > 0 and event[heap[0]] == now:
            flow = heap[0]
            counters[IN_HEAP] = remove(heap, place, event, counters[IN_HEAP], flow)
            if flows.state[flow] == PENDING:
                flows.state[flow] = LIVE
                counters[NUM_LIVE] += 1
                attach(
                    flow,
                    paths,
                    hops,
                    links.head,
                    links.occupancy,
                    flows.following,
                    flows.preceding,
                )
            else:
                counters[NUM_LIVE] -= 1
                detach(
                    flow,
                    paths,
                    hops,
                    links.head,
                    links.occupancy,
                    flows.following,
                    flows.preceding,
                )
                _drain(flow, now, flows, ties, counters)
            for hop in range(hops):
                link = paths[flow, hop]
                if link < 0:
                    break
                if links.seen[link] != sweep:
                    links.seen[link] = sweep
                    links.touched[touched] = link
                    touched += 1
        touched, found = _find_component(touched, sweep, flows, hops, links)
        counters[SWEEP] += 1
        fill(
            found,
            touched,
            counters[SWEEP],
            paths,
            hops,
            links,
            flows.following,
            flows.rate,
            flows.seen,
        )
        solves += 1
        _apply_rates(now, found, flows, past, counters)
        last = now
        if target >= 0 and flows.state[target] == DRAINED:
            break
    return REACHED, last, solves
