"""The arrays that a flow engine's kernels work on, and how they grow.

Times are whole femtoseconds. Floats would give two flows of equal rate and size finishing times
that differ in the last bit, and each its own re-solve; a femtosecond at 400 Gb/s is 5e-5 bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

FEMTOSECONDS = 1e15
# int64 ends at 9223 s.
CLOCK_END = 9_200_000_000_000_000_000
NONE = -1

# A flow has yet to start; it sends; all bytes are sent.
PENDING, LIVE, DRAINED = range(3)

# Places in ``counters``.
IN_HEAP, SEGMENTS_USED, SEGMENTS_FREE, FREE_SEGMENT, LOGGED, SWEEP, NUM_LIVE = range(7)
NUM_COUNTERS = 7


class FlowTable(NamedTuple):
    """Flows by slot; shape (capacity,) but for ``paths`` (capacity, hops) and the two lists.

    ``start`` is the announced one, ``latency`` what passes between drained and arrived.
    ``segment`` is the newest piece of the rate's history, ``event`` the time of the next event and
    ``place`` where it stands in ``heap``. ``logged``: in ``log`` since the last report, which said
    ``reported``. ``following`` and ``preceding`` link the entries ``slot * hops + hop`` of flows
    on one link. ``seen``, ``rate``, ``members`` and ``moments`` are scratch.
    """

    identity: Ints
    paths: Ints
    bytes: Floats
    state: Ints
    start: Ints
    latency: Ints
    drained: Ints
    reported: Ints
    segment: Ints
    event: Ints
    place: Ints
    logged: Ints
    log: Ints
    heap: Ints
    following: Ints
    preceding: Ints
    seen: Ints
    rate: Floats
    members: Ints
    moments: Ints


class History(NamedTuple):
    """Pieces of constant rate: since ``time`` at ``rate``, when ``left`` bytes were left.

    ``before`` is the piece before it, or the next free one in the list of free ones.
    """

    time: Ints
    left: Floats
    rate: Floats
    before: Ints


Table = TypeVar("Table", FlowTable, History)

# What an entry of a new table holds where it is not zero.
_NOTHING = {
    *("paths", "drained", "reported", "segment", "place", "following", "preceding", "before")
}
_FLOATS = {"bytes", "rate", "left"}


def flow_table(capacity: int, hops: int) -> FlowTable:
    shapes = {"paths": (capacity, hops), "following": (capacity * hops,)}
    shapes["preceding"] = shapes["following"]
    return FlowTable._make(
        _column(name, shapes.get(name, (capacity,))) for name in FlowTable._fields
    )


def history(capacity: int) -> History:
    return History._make(_column(name, (capacity,)) for name in History._fields)


def _column(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    kind = np.float64 if name in _FLOATS else np.int64
    return np.full(shape, NONE if name in _NOTHING else 0, dtype=kind)


def with_contents(table: Table, old: Table) -> Table:
    """``table`` with what ``old``, of no greater capacity, holds copied to its beginning."""
    for column, content in zip(table, old, strict=True):
        column[: len(content)] = content
    return table


def to_femtoseconds(seconds: NDArray[np.float64]) -> Ints:
    return np.rint(np.asarray(seconds) * FEMTOSECONDS).astype(np.int64)
