"""Links that fail or slow down while packets are played, and who is routed elsewhere when."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from trainscout.simulators.predictor.network.topology.fabric import Failure
from trainscout.simulators.predictor.question.errors import InputError

from . import engine_arrays as t
from .engine import PacketEngine
from .engine_arrays import Ints, to_picoseconds
from .kernel import lose_queue
from .sending import expect
from .settings import PacketSettings

# What happens to a link, in this order at one time.
_FAILS, _KNOWN, _WHOLE, _KNOWN_WHOLE = range(4)


class FailingEngine(PacketEngine):
    """A packet engine whose links fail.

    What a link had sent when it went down still arrives; what waits for it is lost, and so is what
    comes to it until flows are routed over what is left: ``others`` of ``add``.
    """

    def __init__(
        self,
        rate_bytes_per_s: ArrayLike,
        delay_s: ArrayLike,
        max_hops: int,
        settings: PacketSettings,
        failures: Sequence[tuple[Failure, ArrayLike]],
    ) -> None:
        """As ``PacketEngine``; ``failures`` with the numbers of the links that each is of.

        Raises:
            InputError: for rates, delays or settings out of range.
        """
        super().__init__(rate_bytes_per_s, delay_s, max_hops, settings)
        if settings.recovery == "none":
            problem, allowed = "loses what a failed link held", "go_back_n or selective_repeat"
            raise InputError("network.packet.recovery", settings.recovery, problem, allowed)
        # Time, kind, place; the place keeps equal ones in the order in which they were given.
        self._due: list[tuple[int, int, int]] = []
        self._failing: list[tuple[Failure, Ints]] = []
        for place, (failure, links) in enumerate(failures):
            failure.check(f"network.failures[{place}]")
            rows = np.add.outer(np.arange(settings.classes) * self._links, links).ravel()
            self._failing.append((failure, rows))
            ends = [(failure.at_s, _FAILS), (failure.at_s + failure.detected_s, _KNOWN)]
            if failure.until_s is not None:
                again_s = failure.until_s + failure.detected_s
                ends += [(failure.until_s, _WHOLE), (again_s, _KNOWN_WHOLE)]
            for when_s, kind in ends:
                when = int(to_picoseconds(np.array(when_s)))
                heapq.heappush(self._due, (when, kind, place))
        self._known_down: set[int] = set()
        # Of each flow, the rows of paths that it was announced with.
        self._announced = t.blank(64, 2)

    def _announce(self, first: int, pairs: Ints) -> None:
        self._announced = t.grown(self._announced, self._used)
        self._announced[first : self._used] = self._flows[first : self._used][
            :, [t.FIRST_PATH, t.PATHS]
        ]
        self._route_around(first)

    def _run(self, until: int) -> None:
        while self._due and self._due[0][0] <= until and self._count[t.UNFINISHED]:
            when = self._due[0][0]
            if self._play(when) == t.STOPPED or not self._count[t.UNFINISHED]:
                return
            self._happen(*heapq.heappop(self._due))
        self._play(until)

    def _happen(self, now: int, kind: int, place: int) -> None:
        failure, rows = self._failing[place]
        self._count[t.NOW] = max(now, int(self._count[t.NOW]))
        if failure.rate > 0:
            # Slower links are not routed around.
            if kind in (_FAILS, _WHOLE):
                self._ps_per_byte[rows] *= 1 / failure.rate if kind == _FAILS else failure.rate
        elif kind in (_KNOWN, _KNOWN_WHOLE):
            self._known_down ^= set(rows.tolist())
            self._route_around(0)
        else:
            self._switch(rows, now, down=kind == _FAILS)

    def _switch(self, rows: Ints, now: int, *, down: bool) -> None:
        """Take links down, or up again."""
        # Each packet lost may set a timer and let a link go on.
        room = self._count[t.EVENTS_DUE] + 2 * self._count[t.PACKETS_OUT] + 2 * len(rows)
        self._heap = t.grown(self._heap, int(room))
        tables = self._flows, self._packets, self._heap, self._count, self._whole
        for row in rows.tolist():
            if down:
                self._ports[row, t.PAUSED] |= t.DOWN
                lose_queue(row, now, self._ports, *tables)
            else:
                self._ports[row, t.PAUSED] &= ~t.DOWN
                expect(row, now, self._ports, self._heap, self._count, self._whole)

    def _route_around(self, first: int) -> None:
        """Route flows from ``first`` on over those of their paths that are not known to be down.

        Raises:
            InputError: when none is left, and no link is to be whole again.
        """
        if not len(self._failing):
            return
        down = np.zeros(len(self._ports) + 1, dtype=np.bool_)
        down[list(self._known_down)] = True
        for flow in range(first, self._used):
            if self._flows[flow, t.DONE] != t.NONE:
                continue
            start, count = self._announced[flow]
            rows = np.arange(start, start + count)
            usable = rows[~down[self._paths[rows]].any(axis=1)]
            if not len(usable):
                if not any(kind == _WHOLE for _, kind, _ in self._due):
                    problem = f"leaves flow {flow} no path"
                    raise InputError("network.failures", len(self._failing), problem)
                continue
            self._use_paths(flow, rows, usable)

    def _use_paths(self, flow: int, rows: Ints, usable: Ints) -> None:
        """Let a flow's next packets take these of its paths, its own first."""
        if len(usable) == len(rows):
            begin, count = int(rows[0]), len(rows)
        else:
            ways = [self._paths[row : row + 1] for row in usable]
            begin, count = int(self._add_paths(ways)[0]), len(usable)
        self._flows[flow, t.FIRST_PATH], self._flows[flow, t.PATHS] = begin, count
        turn = flow % count if self.settings.routing != "flow" else 0
        self._flows[flow, t.PATH] = begin + turn
