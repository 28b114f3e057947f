"""The hybrid engine: packets while rates change, fluid while they do not (HyGra).

Flows that share no link, over any number of others, cannot influence each other: each connected
component is judged for itself. Once a component is steady it stands still, packets in flight,
queues, pacers and all, while its flows are credited with what they would have sent; it goes on
when the first of them is nearly done, or at once when another flow starts over one of its links.
The ends of flows are therefore played packet by packet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from trainscout.simulators.predictor.network.compiled import compiled
from trainscout.simulators.predictor.network.flow.water_filling import max_min_rates
from trainscout.simulators.predictor.network.packet import engine_arrays as t
from trainscout.simulators.predictor.network.packet.engine import PacketEngine
from trainscout.simulators.predictor.network.packet.engine_arrays import Floats, Ints
from trainscout.simulators.predictor.network.packet.settings import PacketSettings
from trainscout.simulators.predictor.network.topology.routing import NO_LINK
from trainscout.simulators.predictor.network.union_find import join_links
from trainscout.simulators.predictor.question.errors import InputError

from . import components
from .memory import Episode, Recording, Rest, Trains
from .repeats import Memories, RepeatingEngine
from .settings import HybridSettings

# Packets that a flow keeps for its end; and how many samples a skip must be worth.
_LAST_PACKETS = 4
_LEAST_SAMPLES = 2
# Flows of so many times the bytes of remembered ones at most take as many times as long; ratios
# that differ by less are one.
_MOST_STRETCHED, _SAME_RATIO = 2.5, 1e-3
# Where rates swing, so many times what was looked at is skipped before it is looked at again.
_SWINGING_WINDOWS = 4


class HybridEngine(RepeatingEngine):
    """A packet engine that skips what does not change, and plays what repeats itself from memory.

    >>> from trainscout.simulators.predictor.network.topology.routing import Routes
    >>> engine = HybridEngine([25e9], [1e-6], max_hops=1)
    >>> flow = engine.add(Routes(np.array([[0]]), np.zeros(1)), 1e9)
    >>> engine.advance().completion_s
    array([0.040001])
    >>> engine.packet_hops < 4000
    True
    """

    def __init__(
        self,
        rate_bytes_per_s: ArrayLike,
        delay_s: ArrayLike,
        max_hops: int,
        settings: PacketSettings | None = None,
        hybrid: HybridSettings | None = None,
        memory: dict[bytes, Memories] | None = None,
    ) -> None:
        """As ``RepeatingEngine``; ``hybrid`` says what counts as steady. What is in ``memory`` is
        taken for nothing but the same: else it would matter who had played what first.

        Raises:
            InputError: for rates, delays or settings out of range.
        """
        super().__init__(rate_bytes_per_s, delay_s, max_hops, settings, memory)
        control = self.settings.congestion
        if control not in ("window", "dcqcn"):
            # A packet's delay would count the time skipped while it stood still.
            problem = "goes by delays, which skipping distorts"
            field, allowed = "network.packet.congestion", "window, dcqcn, or network=packet"
            raise InputError(field, control, problem, allowed)
        self.hybrid = HybridSettings() if hybrid is None else hybrid
        self.hybrid.check()
        self._stretches = memory is None
        # A rate that congestion control moves has no mean that stays.
        swings = self.hybrid.swing_tolerance > 0 and control == "window"
        self._swing = self.hybrid.swing_tolerance if swings else -np.inf
        # Marks are drawn packet by packet.
        between = (self.settings.pause_bytes or 0) - self.settings.resume_bytes
        share = self.hybrid.train_share if control == "window" else 0.0
        packet = self.settings.packet_bytes
        self._train = max(int(share * between) // packet, 1) * packet
        self._step = int(t.to_picoseconds(np.array([self.hybrid.sample_s]))[0])
        self._per_sample = self._rates * self.hybrid.sample_s
        self._next_sample = self._step
        self._sampled = 0
        # One more than is judged: differences of neighbours are.
        width = self.hybrid.samples + 1
        links = len(self._rates)
        self._delivered = np.zeros((64, width), dtype=np.int64)
        self._label = np.zeros(64, dtype=np.int64)
        self._changes = np.zeros(64, dtype=np.int64)
        self._seen = np.zeros(64, dtype=np.int64)
        self._speed = np.zeros(64)
        self._depths = np.zeros((links, width), dtype=np.int64)
        self._group = np.zeros(links, dtype=np.int64)
        self._members = np.zeros(links, dtype=np.int64)
        self._state = np.zeros(links, dtype=np.int64)
        self._paused = np.zeros((links, width), dtype=np.int64)
        self._carried = np.zeros(links)
        self._first_unfinished = 0
        self._parked: list[Parked] = []
        # What was skipped and sent in trains, where somebody wants to know.
        self._rests: list[Rest | Trains] | None = None
        self.skips = 0

    def _reserve(self, flows: int, ties: int) -> None:
        super()._reserve(flows, ties)
        for name in ("_delivered", "_label", "_changes", "_seen", "_speed"):
            setattr(self, name, t.grown(getattr(self, name), len(self._flows)))

    def _run(self, until: int) -> None:
        while True:
            due = int(self._heap[0, 0]) if self._count[t.EVENTS_DUE] else t.CLOCK_END
            next_end = min((parked.until for parked in self._parked), default=t.CLOCK_END)
            if min(due, next_end) > until or min(due, next_end) == t.CLOCK_END:
                break
            if min(due, next_end) > self._next_sample:
                # Nothing happened meanwhile that could be sampled.
                behind = min(due, next_end) - self._next_sample
                self._next_sample += -(-behind // self._step) * self._step
            target = min(until, next_end, self._next_sample)
            while (outcome := self._play(target)) != t.REACHED:
                if outcome == t.STOPPED:
                    self._played = int(self._count[t.NOW])
                    return
                self._meet(outcome)
            self._go_on_at(target)
            if target == self._next_sample:
                self._sample(target)
                self._next_sample += self._step
        self._played = int(self._count[t.NOW]) if until == t.CLOCK_END else until

    def _go_on_at(self, now: int) -> None:
        """Let those move again whose time it is."""
        for parked in [each for each in self._parked if each.until <= now]:
            self._go_on(parked, now)

    def _give_way(self, flow: int, now: int, code: int) -> None:
        super()._give_way(flow, now, code)
        self._wake(flow, now)

    def _wake(self, flow: int, now: int) -> None:
        """A flow is about to start: let those that stand still on its way move again."""
        links = self._paths[flow, : self._flows[flow, t.HOPS]]
        for parked in [each for each in self._parked if np.isin(links, each.ports).any()]:
            self._go_on(parked, now)

    def _announce(self, first: int, pairs: Ints) -> None:
        if self.hybrid.memory:
            super()._announce(first, pairs)

    def _alike(self, episode: Episode, sizes: Ints, known: Memories) -> Recording | None:
        if not self._stretches or len(episode.ties) or episode.later.any():
            return None
        nearest, by = None, _MOST_STRETCHED
        for of_sizes, recording in known.items():
            if recording is None or not recording.was_steady:
                continue
            ratio = sizes / np.frombuffer(of_sizes, dtype=np.int64)
            if np.ptp(ratio) < _SAME_RATIO and max(ratio[0], 1 / ratio[0]) < max(by, 1 / by):
                nearest, by = recording, float(ratio[0])
        latency = self._flows[episode.flows, t.BACK]
        return None if nearest is None else nearest.stretched(by, latency)

    def _engine_of(self, rates: Floats, delays: Floats, opened: int) -> PacketEngine:
        plain = replace(self.hybrid, memory=False)
        engine = HybridEngine(rates, delays, self._paths.shape[1], self.settings, plain)
        engine._rests = []
        engine._next_sample -= opened % self._step
        return engine

    def _rests_of(self, engine: PacketEngine) -> tuple[Rest | Trains, ...]:
        assert isinstance(engine, HybridEngine)
        assert engine._rests is not None
        self.skips += engine.skips
        return tuple(engine._rests)

    def _play_again(self, episode: Episode, now: int, code: int) -> None:
        """Skip again what was skipped when the episode was noted, and couple what was coupled."""
        assert episode.recording is not None
        elsewhere, self._parked = self._parked, []
        for rest in episode.recording.rests:
            since = episode.opened + rest.since
            if since >= now:
                break
            self._play_through(since, t.LAST_CODE)
            self._go_on_at(since)
            own = episode.flows[rest.flows]
            if isinstance(rest, Trains):
                self._flows[own, t.CUT] = rest.cut
                continue
            ports = episode.ports[rest.ports]
            self._stand_still(ports, own, rest.speed, since, episode.opened + rest.until)
        self._play_through(now, code - 1)
        self._parked += elsewhere
        # Some that were said to have arrived may still be on their way.
        self._first_unfinished = min(self._first_unfinished, int(episode.flows[0]))

    def _play_through(self, until: int, last_code: int) -> None:
        """Play up to an event without looking for what could be skipped."""
        while True:
            due = min((parked.until for parked in self._parked), default=t.CLOCK_END)
            target = min(due, until)
            while self._play(target, last_code if target == until else t.LAST_CODE) != t.REACHED:
                self._wake(int(self._count[t.BROKE_AT]), int(self._heap[0, 0]))
            if target == until:
                return
            self._go_on_at(target)

    def _sample(self, now: int) -> None:
        """Look at every component that moves, and park those that are steady."""
        flows, paths, ports = self._flows, self._paths, self._ports
        found = np.empty(self._used - self._first_unfinished, dtype=np.int64)
        count, self._first_unfinished = components.live_flows(
            self._first_unfinished, self._used, flows, paths, ports, found
        )
        if not count:
            return
        live, hybrid, group, state = found[:count], self.hybrid, self._group, self._state
        at = self._sampled % (hybrid.samples + 1)
        self._sampled += 1
        join_links(live, paths, group)
        components.sample(
            live, flows, paths, ports, group, self._members, self._label, self._changes,
            self._seen, self._delivered, self._depths, self._paused, at, now,
        )  # fmt: skip
        packet = self.settings.packet_bytes
        if self._train > packet and components.couple(
            live, at, self._changes, self._paused, packet, self._train, self._members, state,
            flows, paths, group,
        ) and self._rests is not None:  # fmt: skip
            self._rests.append(Trains(now, live.copy(), flows[live, t.CUT]))
        leaders = group[paths[live, 0]]
        state[leaders] = components.STEADY
        slack = 2 * packet
        components.measure(
            live, at, self._seen, self._delivered, hybrid.samples, hybrid.rate_tolerance,
            self._swing, slack, self._speed, state, paths, group,
        )  # fmt: skip
        if (state[leaders] == components.UNSTEADY).all():
            return
        wire = 1 + self.settings.header_bytes / packet
        components.judge(
            live, at, self._speed, self._depths, hybrid.queue_bytes, self._paused, self._carried,
            self._per_sample, self._step, hybrid.samples, wire, hybrid.used, self._members, state,
            flows, paths, group,
        )  # fmt: skip
        rests = state[leaders] != components.UNSTEADY
        order = np.argsort(leaders[rests], kind="stable")
        members, led = live[rests][order], leaders[rests][order]
        for own in np.split(members, np.flatnonzero(np.diff(led)) + 1):
            if len(own):
                self._park(own, now)

    def _park(self, own: Ints, now: int) -> None:
        """Let a steady component stand still until its first flow is nearly sent, one that swings
        for no longer than its mean can be trusted."""
        flows = self._flows
        crossed = self._paths[own]
        links = np.unique(crossed[np.arange(crossed.shape[1]) < flows[own, t.HOPS][:, None]])
        speed = self._speed[own] / self._step
        swings = self._state[self._group[crossed[0, 0]]] == components.SWINGING
        if not swings:
            speed = self._fair_if_near(own, links, speed)
        left = flows[own, t.SIZE] - flows[own, t.SENT]
        left = np.maximum(left - _LAST_PACKETS * self.settings.packet_bytes, 0)
        lasts = int((left / speed).min())
        if swings:
            lasts = min(lasts, _SWINGING_WINDOWS * self.hybrid.samples * self._step)
        if lasts < _LEAST_SAMPLES * self._step:
            return
        if self._rests is not None:
            self._rests.append(Rest(now, now + lasts, links, own, speed))
        self._stand_still(links, own, speed, now, now + lasts)

    def _fair_if_near(self, own: Ints, links: Ints, speed: Floats) -> Floats:
        """Max-min fair speeds, where what was measured is as near as packets can tell."""
        crossed = self._paths[own]
        places = np.where(crossed == NO_LINK, NO_LINK, np.searchsorted(links, crossed))
        wire = 1 + self.settings.header_bytes / self.settings.packet_bytes
        fair = max_min_rates(places, self._rates[links] / (wire * t.PICOSECONDS))
        counted = (self.hybrid.samples - self.hybrid.samples // 4) * self._step
        apart = np.abs(fair - speed) * counted
        return fair if (apart <= 2 * self.settings.packet_bytes).all() else speed

    def _stand_still(self, links: Ints, own: Ints, speed: Floats, now: int, until: int) -> None:
        self._ports[links, t.PARKED] = 1
        events = self._take_events(links)
        self._parked.append(Parked(links, own, speed, now, until, events))

    def _go_on(self, parked: Parked, now: int) -> None:
        """Credit a component's flows with what they sent meanwhile, and let it move again."""
        self._parked.remove(parked)
        self._count[t.NOW] = max(now, int(self._count[t.NOW]))
        skipped = now - parked.since
        flows, own, packet = self._flows, parked.flows, self.settings.packet_bytes
        credit = parked.speed * skipped
        most = flows[own, t.SIZE] - flows[own, t.SENT] - packet
        whole = np.minimum(credit.astype(np.int64), np.maximum(most, 0)) // packet * packet
        flows[own, t.SENT] += whole
        flows[own, t.DELIVERED] += whole
        shift(skipped, parked.ports, own, self._ports, flows, self._packets)
        self._ports[parked.ports, t.PARKED] = 0
        events = parked.events
        events[:, 0] += skipped
        self._put_events(events)
        # What was sampled before says nothing about what comes.
        self._seen[own] = self._label[own] = self._changes[own] = 0
        flows[own, t.CUT] = packet
        self.skips += 1

    def _take_events(self, links: Ints) -> Ints:
        """Take the events of some ports out of the heap."""
        due = int(self._count[t.EVENTS_DUE])
        events = self._heap[:due]
        kind, subject = events[:, 1] >> t.KIND_SHIFT, events[:, 1] & t.SUBJECT
        # Those two are flows'.
        mine = (kind != t.START_EVENT) & (kind != t.FINISH_EVENT)
        mine[mine] = np.isin(subject[mine], links)
        taken: Ints = events[mine]
        self._write_events(events[~mine])
        return taken

    def _put_events(self, events: Ints) -> None:
        due = int(self._count[t.EVENTS_DUE])
        self._write_events(np.concatenate([self._heap[:due], events]))

    def _write_events(self, events: Ints) -> None:
        """Make these the heap; sorted events are one."""
        self._heap = t.grown(self._heap, len(events) + 1)
        self._heap[: len(events)] = events[np.lexsort((events[:, 1], events[:, 0]))]
        self._count[t.EVENTS_DUE] = len(events)


@dataclass(frozen=True, eq=False)
class Parked:
    """A component that stands still from ``since`` on, ``until`` its first flow is nearly sent.

    ``ports`` and ``flows`` are its own; ``speed`` each flow's bytes per picosecond; ``events``
    those taken out of the heap.
    """

    ports: Ints
    flows: Ints
    speed: Floats
    since: int
    until: int
    events: Ints


@compiled
def shift(by, own_ports, own_flows, ports, flows, packets):  # type: ignore[no-untyped-def]
    """Move every time that a component still looks at."""
    for port in own_ports:
        ports[port, t.FREE_AT] += by
        if ports[port, t.WAKE] != t.NONE:
            ports[port, t.WAKE] += by
        if ports[port, t.PAUSED] == 1:
            ports[port, t.PAUSED_SINCE] += by
        packet = ports[port, t.FLY_HEAD]
        while packet != t.NONE:
            packets[packet, t.TIME] += by
            packet = packets[packet, t.LINK_NEXT]
    for flow in own_flows:
        flows[flow, t.PACE] += by
        flows[flow, t.ALPHA_AT] += by
        flows[flow, t.RISE_AT] += by
        if flows[flow, t.LAST_NOTICE] != t.NONE:
            flows[flow, t.LAST_NOTICE] += by
        packet = flows[flow, t.ACK_HEAD]
        while packet != t.NONE:
            packets[packet, t.TIME] += by
            packet = packets[packet, t.LINK_NEXT]
