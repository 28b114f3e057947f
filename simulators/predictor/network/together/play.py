"""Plays activities: their messages meet on one engine, and begin when what they wait for ended."""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainscout.simulators.predictor.network.choice import NetworkChoice
from trainscout.simulators.predictor.network.collectives import play
from trainscout.simulators.predictor.network.collectives.transfers import Floats
from trainscout.simulators.predictor.network.topology.network import Network
from trainscout.simulators.predictor.network.topology.routing import Routes

from .activities import WORK, Activities, Message

# Flows after which what no late flow can need any more is forgotten.
_FORGET_AFTER = 4096
# Seconds that an engine first plays at a time, and how long that may take, so that the budget can
# be looked at in between: not more often, as asking for CPU time costs a system call.
_FIRST_SLICE_S, _LOOK_EVERY_S = 1e-3, 0.25


@dataclass(frozen=True, eq=False)
class PlayedTogether:
    """``start_s``, ``end_s``: of each activity, infinite where the budget ended before.

    ``link_bytes``: over each link by the messages that began; ``flows`` they were; ``now_s`` how
    far it was played; ``cpu_s`` what that took; ``packet_hops`` packets played over links.
    """

    start_s: Floats
    end_s: Floats
    link_bytes: Floats
    flows: int
    now_s: float
    cpu_s: float
    packet_hops: int = 0

    @property
    def whole(self) -> bool:
        """Whether everything was played."""
        return bool(np.isfinite(self.end_s).all())


def play_together(
    of: Activities,
    network: Network,
    settings: NetworkChoice,
    budget_s: float = math.inf,
    *,
    apart: bool = False,
) -> PlayedTogether:
    """Play activities until all have ended, or for ``budget_s`` CPU seconds.

    Args:
        of: what waits for what.
        network: where all messages meet; with ``apart`` those of every kind have one like it to
            themselves.
        settings: the engine's.
        budget_s: looked at every few thousand flows.
        apart: as above.

    Raises:
        InputError: for settings out of range, or GPUs that no working path joins.
        RuntimeError: when activities wait for each other.
    """
    return _Player(of, network, settings, apart=apart).run(budget_s)


class _Player:
    def __init__(
        self, of: Activities, network: Network, settings: NetworkChoice, *, apart: bool
    ) -> None:
        self.of = of
        self.network = network
        kinds = list(dict.fromkeys(each.kind for each in of.messages)) if apart else [""]
        # The first link of each kind's own copy of the network.
        self.copy = {kind: place * network.num_links for place, kind in enumerate(kinds)}
        self.engine = play.make_engine(network, settings, copies=max(1, len(kinds)))
        first, followers = of.followers()
        self.first, self.followers = first.tolist(), followers.tolist()
        self.waits = np.bincount(of.after, minlength=len(of.seconds)).tolist()
        self.seconds, self.message = of.seconds.tolist(), of.message.tolist()
        self.start = [math.inf] * len(of.seconds)
        self.end = [math.inf] * len(of.seconds)
        # Ends that are known, by time.
        self.due: list[tuple[float, int]] = []
        # Which activity each flow belongs to; how many of an activity's are under way.
        self.owner: list[int] = []
        self.left: dict[int, int] = {}
        self.last = [0.0] * len(of.seconds)
        self.settings = settings
        self.routes: dict[int, tuple[Routes, dict[str, Any]]] = {}
        self.begun = np.zeros(len(of.messages))
        self.flows = 0

    def run(self, budget_s: float) -> PlayedTogether:
        began = time.process_time()
        for activity, waits in enumerate(self.waits):
            if not waits:
                self.begin(activity, 0.0)
        now, forgot_at, slice_s = 0.0, 0, _FIRST_SLICE_S
        looked, looked_once = time.perf_counter(), False
        while self.due or self.left:
            due = self.due[0][0] if self.due else math.inf
            if self.left:
                until, began_at = min(due, now + slice_s), time.perf_counter()
                arrived = self.arrive(until)
                ended_at = time.perf_counter()
                if not arrived and until < due:
                    slice_s *= 2 if ended_at - began_at < _LOOK_EVERY_S else 0.5
                if ended_at - looked > _LOOK_EVERY_S or not looked_once:
                    looked, looked_once = ended_at, True
                    if time.process_time() - began > budget_s:
                        break
                if self.flows - forgot_at >= _FORGET_AFTER and hasattr(self.engine, "forget"):
                    forgot_at = self.flows
                    self.engine.forget(now)
                if arrived:
                    continue
                if until < due:
                    now = until
                    continue
            now = due
            while self.due and self.due[0][0] == now:
                self.finish(heapq.heappop(self.due)[1], now)
        else:
            stuck = sum(math.isinf(each) for each in self.end)
            if stuck:
                raise RuntimeError(f"{stuck} activities wait for each other")
        return PlayedTogether(
            np.array(self.start),
            np.array(self.end),
            self.link_bytes(),
            self.flows,
            now,
            time.process_time() - began,
            getattr(self.engine, "packet_hops", 0),
        )

    def begin(self, activity: int, now: float) -> None:
        self.start[activity] = now
        number = self.message[activity]
        if number == WORK:
            heapq.heappush(self.due, (now + self.seconds[activity], activity))
            return
        message = self.of.messages[number]
        routes, more = self.route(number, message)
        sizes = sizes_of(message)
        self.engine.add(routes, sizes, now + message.delay_s, **more)
        self.owner += [activity] * len(sizes)
        self.left[activity] = len(sizes)
        self.flows += len(sizes)
        self.begun[number] += 1

    def route(self, number: int, message: Message) -> tuple[Routes, dict[str, Any]]:
        """A message's routes, and what else its engine must know of them."""
        if number not in self.routes:
            copy = self.copy.get(message.kind, 0)
            routes, more = play.paths_of(self.network, message.transfers, self.settings, copy)
            if class_of := self.settings.packets.class_of:
                more["traffic_class"] = class_of.get(message.kind, max(class_of.values()))
            self.routes[number] = routes, more
        return self.routes[number]

    def arrive(self, until: float) -> bool:
        """Let the engine go on to the next arrival, or to ``until``; whether anything arrived."""
        report = self.engine.advance_to_arrival(until)
        for flow, when in zip(report.flows.tolist(), report.completion_s.tolist(), strict=True):
            activity = self.owner[flow]
            self.last[activity] = max(self.last[activity], when)
            self.left[activity] -= 1
            if not self.left[activity]:
                del self.left[activity]
                heapq.heappush(self.due, (self.last[activity], activity))
        return len(report.flows) > 0

    def finish(self, activity: int, now: float) -> None:
        self.end[activity] = now
        for place in range(self.first[activity], self.first[activity + 1]):
            other = self.followers[place]
            self.waits[other] -= 1
            if not self.waits[other]:
                self.begin(other, now)

    def link_bytes(self) -> Floats:
        crossed = np.zeros(self.network.num_links)
        for number, (routes, more) in self.routes.items():
            ways = [routes, *more.get("others", [])] if self.settings.sprays else [routes]
            for way in ways:
                links, sizes = play.crossings(way, sizes_of(self.of.messages[number]))
                share = self.begun[number] / len(ways)
                np.add.at(crossed, links % self.network.num_links, sizes * share)
        return crossed


def sizes_of(message: Message) -> Floats:
    """Bytes of each of a message's flows."""
    return np.maximum(message.transfers.share * message.bytes, 1.0)
