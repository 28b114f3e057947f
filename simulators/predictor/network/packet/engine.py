"""The packet engine: flows in, completion times out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from trainscout.simulators.predictor.network.compiled import compiled
from trainscout.simulators.predictor.network.topology.routing import NO_LINK, Routes, check_routes
from trainscout.simulators.predictor.question.errors import InputError

from . import engine_arrays as t
from . import kernel
from .engine_arrays import Floats, Ints
from .heap import push
from .settings import PacketSettings

_LONGEST_S = t.CLOCK_END / t.PICOSECONDS
# Thresholds of marking are declared for this rate.
_MARKED_BYTES_PER_S = 12.5e9


class DroppedPacketError(RuntimeError):
    """A queue outgrew its switch, and nothing was declared to recover what is lost."""


@dataclass(frozen=True)
class Arrivals:
    """Flows whose last byte arrived, ascending, and when; shape (n,)."""

    now_s: float
    flows: Ints
    completion_s: Floats


class PacketEngine:
    """Plays flows packet by packet: store-and-forward switches, queues, marks and pauses.

    Flows must be announced before their start is played; time does not go back.

    >>> engine = PacketEngine([1e9], [1e-6], max_hops=1)
    >>> one_link = Routes(np.array([[0]]), np.zeros(1))
    >>> flow = engine.add(one_link, 1e6)
    >>> engine.advance().completion_s
    array([0.001001])
    """

    def __init__(
        self,
        rate_bytes_per_s: ArrayLike,
        delay_s: ArrayLike,
        max_hops: int,
        settings: PacketSettings | None = None,
    ) -> None:
        """
        Args:
            rate_bytes_per_s: of each link, shape (links,).
            delay_s: propagation over each link, shape (links,) or one for all.
            max_hops: most links that a route crosses.
            settings: packets, windows, queues.

        Raises:
            InputError: for rates, delays or settings out of range.
        """
        self.settings = PacketSettings() if settings is None else settings
        self.settings.check()
        rates = np.asarray(rate_bytes_per_s, dtype=np.float64)
        if not np.isfinite(rates).all() or (rates < 0).any():
            raise InputError("link.rate", float(rates.min()), "is no rate", "0 or more bytes/s")
        delays = np.broadcast_to(np.asarray(delay_s, dtype=np.float64), rates.shape)
        _require(delays, "link.delay_s")
        # A row for each link and traffic class.
        self._links, classes = len(rates), self.settings.classes
        self._rates = rates = np.tile(rates, classes)
        with np.errstate(divide="ignore"):
            self._ps_per_byte = t.PICOSECONDS / rates
        self._ports = t.idle_ports(np.tile(t.to_picoseconds(delays), classes))
        weights = self.settings.weights or [1] * classes
        self._ports[:, t.TURN_COST] = np.repeat(t.WEIGHT_UNIT // np.array(weights), self._links)
        grow = rates / _MARKED_BYTES_PER_S
        self._mark_from = self.settings.dcqcn.mark_from_bytes * grow
        self._mark_all = self.settings.dcqcn.mark_all_bytes * grow
        stamped = self.settings.congestion == "hpcc" or self.settings.recovery == "go_back_n"
        stamps = t.STAMPS * max_hops * stamped
        self._flows = t.blank(64, t.FLOW_COLUMNS + stamps)
        self._flow_rates = np.zeros((64, 4))
        self._paths = np.full((64, max_hops), NO_LINK, dtype=np.int64)
        self._ties = t.blank(64, 2)
        self._packets = t.blank(0, t.PACKET_COLUMNS + stamps)
        self._heap = np.zeros((1024, 2), dtype=np.int64)
        self._count = np.zeros(t.COUNTERS, dtype=np.int64)
        self._count[t.FREE_PACKET] = t.NONE
        self._whole, self._part = t.constants(self.settings, self._links)
        self._used = self._tied = self._reported = self._rows = 0
        self._episodes = t.blank(1, t.EPISODE_COLUMNS)
        self._arrived = t.blank(64, 1)

    @property
    def next_flow(self) -> int:
        """The number that the next flow added will get; flows are numbered from 0 on."""
        return self._used

    @property
    def now_s(self) -> float:
        """The time of the last event played."""
        return float(self._count[t.NOW] / t.PICOSECONDS)

    @property
    def packet_hops(self) -> int:
        """Packets sent over links so far."""
        return int(self._count[t.HOPS_DONE])

    def add(
        self,
        routes: Routes,
        size_bytes: ArrayLike,
        start_s: ArrayLike = 0.0,
        *,
        after: ArrayLike | None = None,
        delay_s: ArrayLike = 0.0,
        others: Sequence[Routes] = (),
        traffic_class: ArrayLike = 0,
    ) -> Ints:
        """Announce flows; returns their numbers, consecutive from ``next_flow``.

        Args:
            routes: their paths, shape (n, hops); latencies are the links' own here.
            size_bytes, start_s, delay_s: shape (n,) or one for all; sizes in whole bytes.
            after: pairs (flow, earlier flow), shape (m, 2): the flow, one of these, starts no
                sooner than ``delay_s`` after the last byte of the earlier one has arrived.
            others: further paths of the same flows, for packets that are routed one by one and
                for flows whose link fails; one of other length, or from another port, is not used.
            traffic_class: shape (n,) or one for all.

        Raises:
            InputError: for sizes, times, classes or links out of range, a start that has been
                played already, or a wait for a flow that is unknown or not earlier.
        """
        links = np.atleast_2d(np.asarray(routes.links, dtype=np.int64))
        count = len(links)
        sizes, starts, delays = (
            np.broadcast_to(np.asarray(values, dtype=np.float64), (count,))
            for values in (size_bytes, start_s, delay_s)
        )
        if not (sizes >= 1).all() or not np.isfinite(sizes).all():
            raise InputError("flow.size_bytes", float(sizes.min()), "is no size", ">= 1 byte")
        _require(starts, "flow.start_s")
        _require(delays, "flow.delay_s")
        earliest = t.to_picoseconds(starts)
        if count and earliest.min() < self._count[t.NOW]:
            problem = f"was played already (now is {self.now_s:.9f} s)"
            raise InputError("flow.start_s", float(starts.min()), problem, "a later start")
        ways = [links, *(np.atleast_2d(np.asarray(each.links, np.int64)) for each in others)]
        for way in ways:
            check_routes(way, self._rates)
            if way.shape[1] > self._paths.shape[1]:
                most = f"1..{self._paths.shape[1]} links"
                raise InputError("flow.route", way.shape[1], "is no number of links", most)
        ways = self._of_classes(ways, np.asarray(traffic_class, dtype=np.int64))
        pairs = np.empty((0, 2), dtype=np.int64) if after is None else np.asarray(after)
        pairs = pairs.astype(np.int64).reshape(-1, 2)
        first = self._used
        self._check_pairs(pairs, first, count)
        self._reserve(first + count, self._tied + len(pairs))
        new = slice(first, first + count)
        self._fill(new, ways, sizes, earliest, t.to_picoseconds(delays))
        self._tie(pairs)
        self._used += count
        self._count[t.UNFINISHED] += count
        self._announce(first, pairs)
        self._heap = t.grown(self._heap, int(self._count[t.EVENTS_DUE]) + count)
        schedule(first, first + count, self._flows, self._heap, self._count)
        return np.arange(first, first + count)

    def advance(self, until_s: float | None = None) -> Arrivals:
        """Play up to and including ``until_s`` (None: until every flow has arrived).

        Returns the flows that arrived since the last report.

        Raises:
            DroppedPacketError: when a queue overflows, which only happens without pauses.
            RuntimeError: when flows wait for each other and none can arrive.
        """
        until = t.CLOCK_END if until_s is None else int(t.to_picoseconds(np.array([until_s]))[0])
        self._run(until)
        if until_s is None and self._count[t.UNFINISHED]:
            raise RuntimeError(f"{self._count[t.UNFINISHED]} flows never arrive: they are stuck")
        return self._report()

    def advance_to_arrival(self, until_s: float) -> Arrivals:
        """Play up to the next arrival of any flow, at most up to ``until_s`` (may be infinite).

        Returns the flows that arrived since the last report.

        Raises:
            DroppedPacketError: when a queue overflows, which only happens without pauses.
        """
        until = t.CLOCK_END
        if until_s < _LONGEST_S:
            until = int(t.to_picoseconds(np.array([until_s]))[0])
        self._count[t.STOP_AT] = self._reported + 1
        self._run(until)
        self._count[t.STOP_AT] = 0
        return self._report()

    def _report(self) -> Arrivals:
        arrived = int(self._count[t.ARRIVED])
        fresh = np.sort(self._arrived[self._reported : arrived, 0])
        self._reported = arrived
        return Arrivals(self.now_s, fresh, self._flows[fresh, t.DONE] / t.PICOSECONDS)

    def completion_s(self, flows: ArrayLike) -> Floats:
        """When flows' last bytes arrive; infinite for those that have not by now, shape (n,)."""
        done = self._flows[np.asarray(flows, dtype=np.int64), t.DONE]
        return np.where(done == t.NONE, np.inf, done / t.PICOSECONDS)

    def start_s(self, flows: ArrayLike) -> Floats:
        """When flows began to send; infinite for those that have not, shape (n,)."""
        began = self._flows[np.asarray(flows, dtype=np.int64), t.BEGAN]
        return np.where(began == t.NONE, np.inf, began / t.PICOSECONDS)

    def _run(self, until: int) -> None:
        """Play up to and including ``until``."""
        self._play(until)

    def _announce(self, first: int, pairs: Ints) -> None:
        """Flows from ``first`` on were announced; engines that do more than play look at them."""

    def _play(self, until: int, last_code: int = t.LAST_CODE) -> int:
        """Play up to ``until``, or to what only engines that rest some links have to see to."""
        while True:
            outcome = kernel.play(
                until,
                last_code,
                self._ports,
                self._ps_per_byte,
                self._mark_from,
                self._mark_all,
                self._flows,
                self._flow_rates,
                self._paths,
                self._ties,
                self._packets,
                self._heap,
                self._count,
                self._whole,
                self._part,
                self._episodes,
                self._arrived[:, 0],
            )
            if outcome == t.NO_PACKETS:
                self._grow_packets()
            elif outcome == t.NO_EVENTS:
                self._heap = t.grown(self._heap, 2 * len(self._heap))
            elif outcome == t.DROPPED:
                port = int(self._count[t.BROKE_AT])
                size = self._ports[port, t.QUEUE_BYTES]
                raise DroppedPacketError(f"link {port}: {size:,} bytes wait and do not fit")
            else:
                return int(outcome)

    def _check_pairs(self, pairs: Ints, first: int, count: int) -> None:
        if not len(pairs):
            return
        children, parents = pairs[:, 0], pairs[:, 1]
        if children.min() < first or children.max() >= first + count:
            raise InputError("flow.after", int(children.min()), "is none of these flows")
        if (parents < 0).any() or (parents >= children).any():
            raise InputError("flow.after", int(parents.max()), "is not an earlier flow")

    def _of_classes(self, ways: list[Ints], traffic_class: Ints) -> list[Ints]:
        """Paths over the rows of flows' classes."""
        highest = self.settings.classes - 1
        if traffic_class.size and not 0 <= traffic_class.min() <= traffic_class.max() <= highest:
            wrong = int(traffic_class.max())
            raise InputError("flow.traffic_class", wrong, "is no class", f"0..{highest}")
        offset = np.atleast_1d(traffic_class)[:, None] * self._links
        return [np.where(way == NO_LINK, NO_LINK, way + offset) for way in ways]

    def _reserve(self, flows: int, ties: int) -> None:
        self._flows = t.grown(self._flows, flows)
        self._flow_rates = t.grown(self._flow_rates, flows)
        self._paths = t.grown(self._paths, flows)
        self._ties = t.grown(self._ties, ties)
        self._arrived = t.grown(self._arrived, flows)

    def _fill(
        self, new: slice, ways: list[Ints], sizes: Floats, earliest: Ints, delays: Ints
    ) -> None:
        flows, settings = self._flows, self.settings
        links = ways[0]
        flows[new] = t.NONE
        flows[new, t.FIRST_PATH] = self._add_paths(ways)
        flows[new, t.PATHS] = len(ways)
        # Flows that spray begin at different paths.
        begin = np.arange(new.start, new.stop) % (1 if settings.routing == "flow" else len(ways))
        flows[new, t.PATH] = flows[new, t.FIRST_PATH] + begin
        crossed = links != NO_LINK
        rates = np.where(crossed, self._rates[links], np.inf)
        delay = np.where(crossed, self._ports[links, t.DELAY], 0)
        # Each hop sends a packet whole before the next can begin.
        wire = settings.packet_bytes + settings.header_bytes
        sending = np.where(crossed, wire * t.PICOSECONDS / rates, 0.0)
        back = delay.sum(axis=1)
        round_trip = sending.sum(axis=1) + 2 * back
        slowest = rates.min(axis=1) / t.PICOSECONDS
        window = np.maximum(settings.window * round_trip * slowest, 2 * settings.packet_bytes)
        flows[new, t.SIZE] = np.rint(sizes).astype(np.int64)
        flows[new, t.SENT] = flows[new, t.DELIVERED] = flows[new, t.OPEN] = 0
        flows[new, t.WINDOW] = np.ceil(window).astype(np.int64)
        flows[new, t.FIRST] = links[:, 0]
        flows[new, t.HOPS] = crossed.sum(axis=1)
        flows[new, t.BACK] = back
        flows[new, t.EARLIEST], flows[new, t.LAG] = earliest, delays
        flows[new, t.CUT] = settings.packet_bytes
        flows[new, t.ACKED] = flows[new, t.ACKED_TO] = flows[new, t.RESENT] = 0
        flows[new, t.BASE_RTT] = np.ceil(round_trip).astype(np.int64)
        flows[new, t.WAITS] = flows[new, t.RISES] = flows[new, t.RESTING] = 0
        line = (self._rates[links[:, 0]] / t.PICOSECONDS)[:, None]
        self._flow_rates[new, : t.ALPHA] = line
        self._flow_rates[new, t.ALPHA] = 1.0
        if settings.congestion == "timely":
            self._flow_rates[new, t.TARGET] = self._flow_rates[new, t.ALPHA] = 0.0
        if settings.congestion in ("swift", "hpcc"):
            self._flow_rates[new, t.TARGET] = self._flow_rates[new, t.LINE] = window

    def _add_paths(self, ways: list[Ints]) -> Ints:
        """Rows for flows' paths, those of a flow next to each other; the first of each, (n,)."""
        first, count = self._rows, len(ways)
        self._rows += count * len(ways[0])
        self._paths = t.grown(self._paths, self._rows)
        self._paths[first : self._rows] = NO_LINK
        like = ways[0]
        for place, way in enumerate(ways):
            fits = ((way == NO_LINK) == (like == NO_LINK)).all(axis=1) & (way[:, 0] == like[:, 0])
            rows = np.where(fits[:, None], way, like)
            self._paths[first + place : self._rows : count, : like.shape[1]] = rows
        return np.arange(first, self._rows, count)

    def _tie(self, pairs: Ints) -> None:
        if not len(pairs):
            return
        self._tied = tie(pairs, self._used, self._flows, self._ties, self._tied)
        # Earlier announcements may already follow the same flow.
        self._count[t.MOST_FOLLOWERS] += int(np.bincount(pairs[:, 1] - pairs[:, 1].min()).max())

    def _grow_packets(self) -> None:
        before = len(self._packets)
        after = max(4096, 2 * before)
        grown = t.blank(after, self._packets.shape[1])
        grown[:before] = self._packets
        # The new ones are free, one after another; none was.
        grown[before:, t.LINK_NEXT] = np.arange(before + 1, after + 1)
        grown[-1, t.LINK_NEXT] = t.NONE
        self._packets = grown
        self._count[t.FREE_PACKET] = before


def _require(values: Floats, field: str) -> None:
    if len(values) and not (values.min() >= 0 and values.max() < _LONGEST_S):
        wrong = float(values.min() if values.min() < 0 else values.max())
        raise InputError(field, wrong, "is out of range", f"0..{_LONGEST_S:.0f} s")


@compiled
def tie(pairs, first, flows, ties, used):  # type: ignore[no-untyped-def]
    """Let each flow wait for those that have not arrived, and start after those that have.

    ``pairs``: (flow, earlier flow); flows from ``first`` on are announced together. Returns how
    many rows of ``ties`` are in use.
    """
    for row in range(len(pairs)):
        child, parent = pairs[row]
        if flows[parent, t.DONE] != t.NONE:
            after = flows[parent, t.DONE] + flows[child, t.LAG]
            flows[child, t.EARLIEST] = max(flows[child, t.EARLIEST], after)
            continue
        flows[child, t.WAITS] += 1
        column = t.FIRST_TIE if parent >= first else t.FIRST_LATER
        ties[used, 0], ties[used, 1] = child, flows[parent, column]
        flows[parent, column] = used
        used += 1
    return used


@compiled
def schedule(first, last, flows, heap, count):  # type: ignore[no-untyped-def]
    """Let the flows from ``first`` to before ``last`` that wait for nobody start."""
    for flow in range(first, last):
        flows[flow, t.EARLIEST] = max(flows[flow, t.EARLIEST], count[t.NOW])
        if flows[flow, t.WAITS] == 0:
            push(heap, count, flows[flow, t.EARLIEST], t.START_EVENT, flow)
