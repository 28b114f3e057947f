"""Going back in time: a flow that starts before now undoes what it could have influenced.

What a flow influences from some time on is found generously: every flow that has not drained
before then and is joined to it by shared links, over any number of others. Those return to how
they stood just before, from the history of their rates; all others keep what they have. Playing
on from there repeats what would have happened in order, because rates depend only on which flows
are there (``water_filling``).
"""

from __future__ import annotations

import numpy as np

from trainscout.simulators.predictor.network.compiled import compiled
from trainscout.simulators.predictor.network.union_find import join_links

from . import engine_arrays as t
from .event_queue import put, put_all
from .play import finish_time, note
from .water_filling import attach, detach


@compiled
def _forget_pieces(flow, time, flows, past, counters):  # type: ignore[no-untyped-def]
    """Free the pieces of a flow's history from ``time`` on. Returns the newest that is left."""
    piece = flows.segment[flow]
    while piece >= 0 and past.time[piece] >= time:
        before = past.before[piece]
        past.before[piece] = counters[t.FREE_SEGMENT]
        counters[t.FREE_SEGMENT] = piece
        counters[t.SEGMENTS_FREE] += 1
        piece = before
    flows.segment[flow] = piece
    return piece


@compiled
def _undo(flow, time, flows, links, past, counters):  # type: ignore[no-untyped-def]
    """Put one flow back to just before ``time``."""
    was = flows.state[flow]
    if was == t.PENDING:
        return
    if was == t.DRAINED:
        flows.drained[flow] = t.NONE
        note(flow, flows.logged, flows.log, counters)
    piece = _forget_pieces(flow, time, flows, past, counters)
    paths, following, preceding = flows.paths, flows.following, flows.preceding
    hops, head, occupancy = paths.shape[1], links.head, links.occupancy
    if piece >= 0:
        if was == t.DRAINED:
            attach(flow, paths, hops, head, occupancy, following, preceding)
            counters[t.NUM_LIVE] += 1
            flows.state[flow] = t.LIVE
        event = finish_time(past.time[piece], past.left[piece], past.rate[piece])
    else:
        if was == t.LIVE:
            detach(flow, paths, hops, head, occupancy, following, preceding)
            counters[t.NUM_LIVE] -= 1
        flows.state[flow] = t.PENDING
        event = flows.start[flow]
    flows.event[flow] = event
    counters[t.IN_HEAP] = put(flows.heap, flows.place, flows.event, counters[t.IN_HEAP], flow)


@compiled
def roll_back(late, times, count, flows, links, past, counters):  # type: ignore[no-untyped-def]
    """Undo from ``times[k]`` on what flow ``late[k]`` may influence; times ascending.

    ``count`` is the number of slots in use. ``links.heap`` and ``flows.members`` are used as
    scratch. Flows that were among those undone for an earlier one need no more.
    """
    group, seen, members = links.heap, flows.seen, flows.members
    counters[t.SWEEP] += 1
    sweep = counters[t.SWEEP]
    for at in range(len(late)):
        if seen[late[at]] == sweep:
            continue
        time = times[at]
        found = 0
        for flow in range(count):
            if flows.state[flow] != t.DRAINED or flows.drained[flow] >= time:
                members[found] = flow
                found += 1
        join_links(members[:found], flows.paths, group)
        root = group[flows.paths[late[at], 0]]
        for flow in members[:found]:
            if group[flows.paths[flow, 0]] == root:
                seen[flow] = sweep
                _undo(flow, time, flows, links, past, counters)


@compiled
def trim(time, count, flows, past, counters):  # type: ignore[no-untyped-def]
    """Free history that no return to ``time`` or later needs. Returns how many flows need none.

    Those have drained before ``time`` and been reported.
    """
    # No literal, for which what it is passed to would be compiled once more.
    ended = start = np.int64(0)
    for flow in range(count):
        piece = flows.segment[flow]
        if flows.state[flow] == t.DRAINED and flows.drained[flow] < time:
            if flows.logged[flow] == 0:
                _forget_pieces(flow, start, flows, past, counters)
                ended += 1
            continue
        while piece >= 0 and past.time[piece] >= time:
            piece = past.before[piece]
        if piece < 0:
            continue
        older = past.before[piece]
        past.before[piece] = t.NONE
        while older >= 0:
            before = past.before[older]
            past.before[older] = counters[t.FREE_SEGMENT]
            counters[t.FREE_SEGMENT] = older
            counters[t.SEGMENTS_FREE] += 1
            older = before
    return ended


@compiled
def rebuild_lists(count, flows, links, counters):  # type: ignore[no-untyped-def]
    """Lists of flows on links and the event queue, after slots were renumbered."""
    hops = flows.paths.shape[1]
    links.head[:] = t.NONE
    links.occupancy[:] = 0
    flows.place[:] = t.NONE
    # As in ``trim``.
    queued = empty = np.int64(0)
    for flow in range(count):
        if flows.state[flow] == t.LIVE:
            attach(
                flow,
                flows.paths,
                hops,
                links.head,
                links.occupancy,
                flows.following,
                flows.preceding,
            )
        if flows.state[flow] == t.LIVE or flows.state[flow] == t.PENDING:
            flows.members[queued] = flow
            flows.moments[queued] = flows.event[flow]
            queued += 1
    counters[t.IN_HEAP] = put_all(
        flows.heap, flows.place, flows.event, empty, flows.members, flows.moments, queued
    )
