"""Flows as fluid: max-min fair rates, exact history, and flows that are announced late."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainscout.simulators.predictor.network.topology.routing import Routes, check_routes
from trainscout.simulators.predictor.question.errors import InputError

from . import engine_arrays as t
from . import play, rollback
from .engine_arrays import Floats, Ints, to_femtoseconds
from .water_filling import link_table

_LONGEST_S = t.CLOCK_END / t.FEMTOSECONDS


@dataclass(frozen=True)
class Progress:
    """What a report tells, for each flow it names; shape (n,), flows ascending.

    ``completion_s`` is when the last byte arrives; infinite where an earlier report no longer
    holds and the flow is still sending at ``now_s``. ``changed``: an earlier report said
    something else.
    """

    now_s: float
    flows: Ints
    completion_s: Floats
    changed: NDArray[np.bool_]


class FlowEngine:
    """Plays flows over links that all flows on them share max-min fairly.

    A flow sends from its start until all its bytes are sent, then arrives one route latency later.
    Flows may be added in any order and in the past: the engine goes back, and what it reports in
    the end is what it would have reported had they come in order, to the last bit. ``forget``
    bounds how far back it goes, and frees the rest.

    >>> engine = FlowEngine([100.0], max_hops=1)
    >>> one_link = Routes(np.array([[0]]), np.zeros(1))
    >>> first = engine.add(one_link, 100.0)
    >>> engine.advance(2.0).completion_s
    array([1.])
    >>> late = engine.add(one_link, 100.0, start_s=0.5)
    >>> report = engine.advance(2.0)
    >>> report.flows, report.completion_s, report.changed
    (array([0, 1]), array([1.5, 2. ]), array([ True, False]))
    """

    def __init__(self, rate_bytes_per_s: ArrayLike, max_hops: int) -> None:
        """
        Args:
            rate_bytes_per_s: of each link, shape (links,).
            max_hops: most links that a route crosses.

        Raises:
            InputError: for a rate below zero or not finite.
        """
        self._links = link_table(rate_bytes_per_s)
        self._flows = t.flow_table(64, max_hops)
        self._history = t.history(256)
        self._counters = np.zeros(t.NUM_COUNTERS, dtype=np.int64)
        self._counters[t.FREE_SEGMENT] = t.NONE
        self._used = 0
        self._next = 0
        self._now = t.NONE
        self._floor = 0
        # Whether a return to the past has not been played up to now again.
        self._behind = False
        self.solves = 0

    @property
    def next_flow(self) -> int:
        """The number that the next flow added will get; flows are numbered from 0 on."""
        return self._next

    @property
    def now_s(self) -> float:
        """The time up to which everything announced has been played."""
        return max(0, self._now) / t.FEMTOSECONDS

    def add(self, routes: Routes, size_bytes: ArrayLike, start_s: ArrayLike = 0.0) -> Ints:
        """Announce flows, late or not; returns their numbers, consecutive from ``next_flow``.

        Args:
            routes: their paths, shape (n, hops), and latencies.
            size_bytes, start_s: shape (n,) or one for all.

        Raises:
            InputError: for sizes, times or links out of range, or a start before what was
                forgotten.
        """
        count = len(routes.links)
        sizes, starts = (
            np.broadcast_to(np.asarray(values, dtype=np.float64), (count,))
            for values in (size_bytes, start_s)
        )
        latencies = np.asarray(routes.latency_s, dtype=np.float64)
        _require(sizes, "flow.size_bytes", float("inf"), positive=True)
        _require(starts, "flow.start_s", _LONGEST_S)
        _require(latencies, "flow.latency_s", _LONGEST_S)
        check_routes(np.asarray(routes.links), self._links.rate)
        moments = to_femtoseconds(starts)
        self._require_remembered(moments)
        first = self._used
        self._reserve(count)
        new = slice(first, first + count)
        flows = self._flows
        flows.identity[new] = np.arange(self._next, self._next + count)
        flows.paths[new, : routes.links.shape[1]] = routes.links
        flows.paths[new, routes.links.shape[1] :] = t.NONE
        flows.bytes[new] = sizes
        flows.start[new] = moments
        flows.latency[new] = to_femtoseconds(latencies)
        self._used += count
        self._next += count
        play.admit(first, self._used, flows, self._counters)
        late = first + np.flatnonzero(moments <= self._now)
        late = late[np.argsort(flows.event[late], kind="stable")]
        self._roll_back(late, flows.event[late])
        return flows.identity[new].copy()

    def advance(self, until_s: float | None = None) -> Progress:
        """Play up to and including ``until_s`` (None: until every flow has drained).

        Returns the flows that drained since the last report, and those for which it was wrong.

        Raises:
            InputError: when a flow would end beyond the clock's 9,200 s.
        """
        until = t.CLOCK_END
        if until_s is not None:
            _require(np.array([until_s]), "until_s", _LONGEST_S)
            until = max(self._now, int(to_femtoseconds(np.array([until_s]))[0]))
        last = self._play(until)
        self._now = max(self._now, last) if until_s is None else until
        return self._report()

    def advance_to_arrival(self, until_s: float) -> Progress:
        """Play up to the next moment at which any flow drains, at most up to ``until_s``.

        Raises:
            InputError: when a flow would end beyond the clock's 9,200 s.
        """
        until = t.CLOCK_END
        if until_s < _LONGEST_S:
            until = max(self._now, int(to_femtoseconds(np.array([until_s]))[0]))
        if self._behind:
            self._play(self._now)
        last = self._play(until, to_drained=True)
        drained = bool(self._counters[t.LOGGED])
        self._now = max(self._now, last) if drained or until == t.CLOCK_END else until
        return self._report()

    def completion_s(self, flows: ArrayLike) -> Floats:
        """When flows arrive; infinite for those that have not drained by now, shape (n,).

        Raises:
            InputError: for flows that are unknown or forgotten.
        """
        if self._behind:
            self._play(self._now)
        return self._arrivals_s(self._slots(flows))

    def _arrivals_s(self, slots: Ints) -> Floats:
        drained = self._flows.drained[slots]
        arrived = (drained + self._flows.latency[slots]) / t.FEMTOSECONDS
        return np.where(drained == t.NONE, np.inf, arrived)

    def forget(self, before_s: float) -> None:
        """Promise that no flow will start before ``before_s``; frees what that needs.

        Flows that drained before then, and have been reported, may no longer be asked for.

        Raises:
            InputError: when the time is out of range.
        """
        _require(np.array([before_s]), "before_s", _LONGEST_S)
        self._floor = max(self._floor, int(to_femtoseconds(np.array([before_s]))[0]))
        ended = rollback.trim(self._floor, self._used, self._flows, self._history, self._counters)
        # Half or more: what is moved is paid for by what was added.
        if 2 * ended >= max(self._used, 64):
            self._compact()

    @property
    def pieces_kept(self) -> int:
        """Pieces of rate history that are remembered."""
        return int(self._counters[t.SEGMENTS_USED] - self._counters[t.SEGMENTS_FREE])

    def _roll_back(self, late: Ints, times: Ints) -> None:
        """Undo what flows may influence from certain times on, which ascend."""
        if not len(late):
            return
        rollback.roll_back(
            late, times, self._used, self._flows, self._links, self._history, self._counters
        )
        self._behind = self._behind or bool(times[0] <= self._now)

    def _play(self, until: int, *, to_drained: bool = False) -> int:
        last = t.NONE
        while True:
            status, reached, solves = play.play(
                until, to_drained, self._flows, self._links, self._history, self._counters
            )
            last = max(last, int(reached))
            self.solves += int(solves)
            if status != play.NO_SPACE:
                break
            wanted = 2 * len(self._history.time) + 2 * self._used
            self._history = t.with_contents(t.history(wanted), self._history)
        self._behind = False
        if status == play.CLOCK_ENDED:
            self._now = max(self._now, last)
            raise InputError(
                "flow.size_bytes", "a flow", "would not end", f"within {_LONGEST_S:.0f} s"
            )
        return last

    def _report(self) -> Progress:
        flows, logged = self._flows, int(self._counters[t.LOGGED])
        slots = np.sort(flows.log[:logged])
        flows.logged[slots] = 0
        self._counters[t.LOGGED] = 0
        slots = slots[flows.drained[slots] != flows.reported[slots]]
        changed = flows.reported[slots] != t.NONE
        flows.reported[slots] = flows.drained[slots]
        return Progress(self.now_s, flows.identity[slots], self._arrivals_s(slots), changed)

    def _slots(self, flows: ArrayLike) -> Ints:
        """Slots of flows by number; numbers ascend with slots."""
        wanted = np.atleast_1d(np.asarray(flows, dtype=np.int64))
        known = self._flows.identity[: self._used]
        slots = np.searchsorted(known, wanted)
        missing = slots >= self._used
        missing[~missing] = known[slots[~missing]] != wanted[~missing]
        if missing.any():
            number = int(wanted[missing][0])
            problem = "was forgotten" if 0 <= number < self._next else "was never added"
            raise InputError("flow", number, problem, f"a flow up to {self._next - 1}")
        return slots

    def _require_remembered(self, times: Ints) -> None:
        if len(times) and times.min() < self._floor:
            start_s = float(times.min()) / t.FEMTOSECONDS
            floor_s = self._floor / t.FEMTOSECONDS
            raise InputError("flow.start_s", start_s, "was forgotten", f">= {floor_s}")

    def _reserve(self, flows: int) -> None:
        hops = self._flows.paths.shape[1]
        if self._used + flows > len(self._flows.state):
            larger = t.flow_table(2 * (self._used + flows), hops)
            self._flows = t.with_contents(larger, self._flows)

    def _compact(self) -> None:
        """Drop flows that need no memory and renumber the slots of the others, in order."""
        old, used = self._flows, self._used
        ended = (old.state == t.DRAINED) & (old.drained < self._floor) & (old.logged == 0)
        keep = np.flatnonzero(~ended[:used])
        slot_of = np.full(used, t.NONE, dtype=np.int64)
        slot_of[keep] = np.arange(len(keep))

        hops = old.paths.shape[1]
        flows = t.flow_table(max(64, 2 * len(keep)), hops)
        scratch = {"heap", "place", "members", "moments"}
        lists = {"log", "following", "preceding"}
        for name in set(t.FlowTable._fields) - scratch - lists:
            getattr(flows, name)[: len(keep)] = getattr(old, name)[keep]
        logged = int(self._counters[t.LOGGED])
        flows.log[:logged] = slot_of[old.log[:logged]]
        self._flows, self._used = flows, len(keep)
        rollback.rebuild_lists(len(keep), flows, self._links, self._counters)


def _require(values: Floats, field: str, limit: float, *, positive: bool = False) -> None:
    low = values <= 0 if positive else values < 0
    wrong = low | ~(values < limit)
    if wrong.any():
        bound = "> 0" if positive else ">= 0"
        raise InputError(
            field, float(values[wrong][0]), "is out of range", f"{bound} and < {limit:g}"
        )
