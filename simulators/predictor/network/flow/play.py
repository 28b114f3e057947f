"""The event loop: flows start and drain, and the component they touch gets new rates.

All events of one moment are taken together. Then the flows that share links with those that
came or went, directly or through others, are found and filled anew; nothing else changes. A flow
whose rate is the same to the last bit keeps its piece of history and its finishing time.
"""

from __future__ import annotations

import numpy as np

from trainscout.simulators.predictor.network.compiled import compiled

from . import engine_arrays as t
from .event_queue import put_all, remove
from .water_filling import attach, detach, fill

REACHED, NO_SPACE, CLOCK_ENDED = range(3)


@compiled
def finish_time(time, left, rate):  # type: ignore[no-untyped-def]
    """When ``left`` bytes are sent at ``rate``, in femtoseconds."""
    duration = left / rate * t.FEMTOSECONDS
    if duration >= t.CLOCK_END - time:
        return t.CLOCK_END
    return time + np.int64(np.rint(duration))


@compiled
def note(flow, logged, log, counters):  # type: ignore[no-untyped-def]
    """Remember that a flow's completion may have changed."""
    if logged[flow] == 0:
        logged[flow] = 1
        log[counters[t.LOGGED]] = flow
        counters[t.LOGGED] += 1


@compiled
def admit(first, last, flows, counters):  # type: ignore[no-untyped-def]
    """Give the flows ``first..last - 1`` their starting events."""
    for at in range(last - first):
        flows.members[at] = first + at
        flows.moments[at] = flows.start[first + at]
        flows.state[first + at] = t.PENDING
    size, heap, place, event = counters[t.IN_HEAP], flows.heap, flows.place, flows.event
    count = last - first
    counters[t.IN_HEAP] = put_all(heap, place, event, size, flows.members, flows.moments, count)


@compiled
def _find_component(touched, sweep, flows, links):  # type: ignore[no-untyped-def]
    """Extend the first ``touched`` links in ``links.touched`` to all that flows connect them to.

    Returns how many links, and how many flows are in ``flows.members``.
    """
    paths, following, seen, members = flows.paths, flows.following, flows.seen, flows.members
    head, link_seen, queue = links.head, links.seen, links.touched
    hops = paths.shape[1]
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


@compiled
def _apply_rates(now, found, flows, past, counters):  # type: ignore[no-untyped-def]
    """New pieces of history and finishing times for members whose rate changed."""
    members, rate, segment, size = flows.members, flows.rate, flows.segment, flows.bytes
    moments = flows.moments
    past_time, past_left, past_rate = past.time, past.left, past.rate
    past_before = past.before
    # No literal, for which ``put_all`` would be compiled once more.
    changed = np.int64(0)
    for at in range(found):
        flow = members[at]
        new_rate = rate[flow]
        piece = segment[flow]
        if piece < 0:
            left = size[flow]
        elif past_rate[piece] == new_rate:
            continue
        else:
            sent = past_rate[piece] * ((now - past_time[piece]) / t.FEMTOSECONDS)
            left = max(0.0, past_left[piece] - sent)
        if piece < 0 or past_time[piece] != now:
            before = piece
            piece = counters[t.FREE_SEGMENT]
            if piece >= 0:
                counters[t.FREE_SEGMENT] = past_before[piece]
                counters[t.SEGMENTS_FREE] -= 1
            else:
                piece = counters[t.SEGMENTS_USED]
                counters[t.SEGMENTS_USED] += 1
            past_before[piece] = before
            segment[flow] = piece
        past_time[piece] = now
        past_left[piece] = left
        past_rate[piece] = new_rate
        # The list of members is overwritten behind the reader.
        members[changed] = flow
        moments[changed] = finish_time(now, left, new_rate)
        changed += 1
    counters[t.IN_HEAP] = put_all(
        flows.heap, flows.place, flows.event, counters[t.IN_HEAP], members, moments, changed
    )


@compiled
def play(until, to_drained, flows, links, past, counters):  # type: ignore[no-untyped-def]
    """Take events up to and including ``until``, or ``to_drained`` until any flow has drained.

    Returns why it stopped, the time of the last events taken (``NONE``: there were none), and
    how often rates were solved. With ``NO_SPACE`` it can be called again after ``past`` grew.
    """
    # Tables are taken apart here: handing them to a function for every flow would copy them.
    heap, place, event, state = flows.heap, flows.place, flows.event, flows.state
    paths, following, preceding = flows.paths, flows.following, flows.preceding
    drained, logged, log = flows.drained, flows.logged, flows.log
    head, occupancy, link_seen, queue = links.head, links.occupancy, links.seen, links.touched
    hops = paths.shape[1]
    last = t.NONE
    solves = 0
    while counters[t.IN_HEAP] > 0:
        now = event[heap[0]]
        if now > until:
            break
        if now >= t.CLOCK_END:
            return CLOCK_ENDED, last, solves
        room = len(past.time) - counters[t.SEGMENTS_USED] + counters[t.SEGMENTS_FREE]
        if room < counters[t.NUM_LIVE] + counters[t.IN_HEAP]:
            return NO_SPACE, last, solves
        counters[t.SWEEP] += 2
        sweep = counters[t.SWEEP] - 1
        # No literal, for which ``_find_component`` would be compiled once more.
        touched = np.int64(0)
        any_drained = False
        size = counters[t.IN_HEAP]
        while size > 0 and event[heap[0]] == now:
            flow = heap[0]
            size = remove(heap, place, event, size, flow)
            if state[flow] == t.PENDING:
                state[flow] = t.LIVE
                counters[t.NUM_LIVE] += 1
                attach(flow, paths, hops, head, occupancy, following, preceding)
            else:
                state[flow] = t.DRAINED
                any_drained = True
                drained[flow] = now
                counters[t.NUM_LIVE] -= 1
                detach(flow, paths, hops, head, occupancy, following, preceding)
                note(flow, logged, log, counters)
            for hop in range(hops):
                link = paths[flow, hop]
                if link < 0:
                    break
                if link_seen[link] != sweep:
                    link_seen[link] = sweep
                    queue[touched] = link
                    touched += 1
        counters[t.IN_HEAP] = size
        touched, found = _find_component(touched, sweep, flows, links)
        fill(found, touched, sweep + 1, paths, hops, links, following, flows.rate, flows.seen)
        solves += 1
        _apply_rates(now, found, flows, past, counters)
        last = now
        if to_drained and any_drained:
            break
    return REACHED, last, solves
