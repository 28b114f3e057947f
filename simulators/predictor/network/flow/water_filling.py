"""Max-min fair rates by filling bottlenecks, the smallest fair share first.

A link's fair share is what is left of its rate over the flows on it that have no rate yet. The
link with the smallest share is a bottleneck: its flows get that share, which is taken off every
other link they cross, and it is done (Bertsekas and Gallager, Data Networks, section 6.5.2).
Shares of the others can only rise, so a heap entry is brought up to date when it is popped.

Rates are the same to the last bit whatever the order in which flows are numbered or listed, and
whether a connected component is solved alone or with others: links are taken by share, then by
number, and all that happens between two of them is one value subtracted a number of times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainscout.simulators.predictor.network.compiled import compiled
from trainscout.simulators.predictor.network.topology.routing import check_routes
from trainscout.simulators.predictor.question.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class LinkTable(NamedTuple):
    """Links and who is on them; shape (links,).

    ``head`` starts the list of a link's flows: entry ``flow * hops + hop`` for the link that is
    the flow's ``hop``-th; ``occupancy`` is its length. The rest is scratch: ``left``, ``room`` and
    ``share`` of a link while it is filled, ``heap`` and ``touched`` lists of links, ``seen``
    the last sweep that came by.
    """

    rate: Floats
    head: Ints
    occupancy: Ints
    left: Ints
    room: Floats
    share: Floats
    heap: Ints
    touched: Ints
    seen: Ints


def link_table(rate_bytes_per_s: ArrayLike) -> LinkTable:
    """Empty links.

    Raises:
        InputError: for a rate below zero or not finite.
    """
    rate = np.array(rate_bytes_per_s, dtype=np.float64)
    if not (np.isfinite(rate).all() and (rate >= 0).all()):
        raise InputError("link.rate_bytes_per_s", float(rate.min()), "is out of range", ">= 0")
    links = len(rate)
    return LinkTable(
        rate=rate,
        head=np.full(links, -1, dtype=np.int64),
        occupancy=np.zeros(links, dtype=np.int64),
        left=np.zeros(links, dtype=np.int64),
        room=np.zeros(links),
        share=np.zeros(links),
        heap=np.zeros(links, dtype=np.int64),
        touched=np.zeros(links, dtype=np.int64),
        seen=np.zeros(links, dtype=np.int64),
    )


def max_min_rates(routes: ArrayLike, rate_bytes_per_s: ArrayLike) -> Floats:
    """Max-min fair rates of flows that all run at once, in bytes/s, shape (flows,).

    Args:
        routes: links of each flow, filled up with -1 on the right, shape (flows, hops).
        rate_bytes_per_s: shape (links,).

    Raises:
        InputError: for a flow without a link or over a link that does not exist or carries
            nothing.
    """
    paths = np.ascontiguousarray(routes, dtype=np.int64)
    table = link_table(rate_bytes_per_s)
    check_routes(paths, table.rate)
    flows = len(paths)
    following = np.full(paths.size, -1, dtype=np.int64)
    preceding = np.full(paths.size, -1, dtype=np.int64)
    rates = np.zeros(flows)
    seen = np.zeros(flows, dtype=np.int64)
    _solve(paths, table, following, preceding, rates, seen)
    return rates


@compiled
def _solve(paths, table, following, preceding, rates, seen):  # type: ignore[no-untyped-def]
    flows, hops = paths.shape
    links = len(table.rate)
    for flow in range(flows):
        attach(flow, paths, hops, table.head, table.occupancy, following, preceding)
    for link in range(links):
        table.touched[link] = link
    fill(flows, links, np.int64(1), paths, hops, table, following, rates, seen)


@compiled
def attach(flow, paths, hops, head, occupancy, following, preceding):  # type: ignore[no-untyped-def]
    """Put a flow on the lists of its links."""
    for hop in range(hops):
        link = paths[flow, hop]
        if link < 0:
            break
        entry = flow * hops + hop
        old = head[link]
        following[entry] = old
        preceding[entry] = -1
        if old >= 0:
            preceding[old] = entry
        head[link] = entry
        occupancy[link] += 1


@compiled
def detach(flow, paths, hops, head, occupancy, following, preceding):  # type: ignore[no-untyped-def]
    """Take a flow off the lists of its links."""
    for hop in range(hops):
        link = paths[flow, hop]
        if link < 0:
            break
        entry = flow * hops + hop
        before, after = preceding[entry], following[entry]
        if before >= 0:
            following[before] = after
        else:
            head[link] = after
        if after >= 0:
            preceding[after] = before
        occupancy[link] -= 1


@compiled
def _sink(heap, at, size, share):  # type: ignore[no-untyped-def]
    link = heap[at]
    key = share[link]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        other = heap[below]
        if below + 1 < size:
            right = heap[below + 1]
            if share[right] < share[other] or (share[right] == share[other] and right < other):
                below += 1
                other = right
        if key < share[other] or (key == share[other] and link < other):
            break
        heap[at] = other
        at = below
    heap[at] = link


@compiled
def _limits(link, flow, paths, hops, rate, occupancy):  # type: ignore[no-untyped-def]
    """Whether a link that only ``flow`` is on can be its bottleneck, given the rest of its way.

    Half of the links of a large, lightly loaded fabric cannot, and need not be looked at.
    """
    for hop in range(hops):
        other = paths[flow, hop]
        if other < 0:
            break
        if rate[other] < rate[link]:
            return False
        if rate[other] == rate[link] and (occupancy[other] > 1 or other < link):
            return False
    return True


@compiled
def fill(flows, links, sweep, paths, hops, table, following, rates, fixed):  # type: ignore[no-untyped-def]
    """Rates of the ``flows`` flows on the ``links`` links in ``table.touched``, into ``rates``.

    The links must be all that those flows cross, the flows all that are on them. ``sweep`` marks
    in ``fixed`` the flows that have their rate; it may not have been used there before.
    """
    rate, head, occupancy = table.rate, table.head, table.occupancy
    left, room, share, heap = table.left, table.room, table.share, table.heap
    touched = table.touched
    # A literal would be a type of its own, for which what it is passed to is compiled again.
    size = first = np.int64(0)
    for at in range(links):
        link = touched[at]
        on_it = occupancy[link]
        if on_it > 0:
            left[link] = on_it
            room[link] = rate[link]
            if on_it > 1 or _limits(link, head[link] // hops, paths, hops, rate, occupancy):
                share[link] = rate[link] / on_it
                heap[size] = link
                size += 1
    for at in range((size >> 1) - 1, -1, -1):
        _sink(heap, at, size, share)
    while flows > 0:
        link = heap[0]
        if left[link] > 0:
            fair = room[link] / left[link]
            if fair > share[link]:
                share[link] = fair
                _sink(heap, first, size, share)
                continue
            entry = head[link]
            while entry >= 0:
                flow = entry // hops
                if fixed[flow] != sweep:
                    fixed[flow] = sweep
                    rates[flow] = fair
                    flows -= 1
                    for hop in range(hops):
                        other = paths[flow, hop]
                        if other < 0:
                            break
                        left[other] -= 1
                        room[other] -= fair
                entry = following[entry]
        size -= 1
        heap[0] = heap[size]
        _sink(heap, first, size, share)
