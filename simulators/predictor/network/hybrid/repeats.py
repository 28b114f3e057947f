"""Playing from memory: what was played before over idle links is not played again.

Flows announced together that can influence each other, by links or by waiting, are an episode.
What an episode does from idle links to idle links, met by nobody, depends on nothing but its
routes, sizes, ties and relative starts: so it is played once, on an engine of its own, and
remembered, and wherever it comes its flows just arrive as they did there. Should another flow
start over one of its links meanwhile, its packets are played after all, from its opening up to
that moment: nobody met them until then, so this is what would have happened.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from trainscout.simulators.predictor.network.packet import engine_arrays as t
from trainscout.simulators.predictor.network.packet import heap as events_heap
from trainscout.simulators.predictor.network.packet.engine import PacketEngine
from trainscout.simulators.predictor.network.packet.engine_arrays import Floats, Ints
from trainscout.simulators.predictor.network.packet.settings import PacketSettings
from trainscout.simulators.predictor.network.topology.routing import NO_LINK, Routes

from .memory import Episode, Recording, Rest, Trains, joined, key_of, spans

# An episode of fewer packet-hops is played as fast as it is remembered.
_LEAST_WORK = 500
# Episodes from memory that may be over before they are let go of.
_LET_GO_FROM = 64
# None: what is marked by chance, which nothing is remembered of.
Memories = dict[bytes, Recording | None]
_STATISTICS = list(t.PORT_STATISTICS)


class RepeatingEngine(PacketEngine):
    """A packet engine that plays what repeats itself from memory, to the picosecond.

    Only what is marked by chance is always played. What ports did is known of what was played.
    """

    def __init__(
        self,
        rate_bytes_per_s: ArrayLike,
        delay_s: ArrayLike,
        max_hops: int,
        settings: PacketSettings | None = None,
        memory: dict[bytes, Memories] | None = None,
    ) -> None:
        """As ``PacketEngine``; ``memory`` is that of other engines with equal settings."""
        super().__init__(rate_bytes_per_s, delay_s, max_hops, settings)
        links = len(self._rates)
        # By shape, then by the bytes of flows' sizes.
        self._memory = {} if memory is None else memory
        self._waiting: dict[int, Episode] = {}
        # Episodes from memory that are not over, by number; the latest one over each port.
        self._recalled: dict[int, Episode] = {}
        self._claim = np.full(links, t.NONE, dtype=np.int64)
        self._kept = 0
        self._first_over = np.full(links, t.NONE, dtype=np.int64)
        self._numbered = 0
        self._played = 0
        self.recalls = 0
        self.disturbed = 0

    def start_s(self, flows: ArrayLike) -> Floats:
        """When flows began to send; infinite for those that have not, shape (n,)."""
        starts = super().start_s(flows)
        return np.where(starts > self._played / t.PICOSECONDS, np.inf, starts)

    def _run(self, until: int) -> None:
        while (outcome := self._play(until)) not in (t.REACHED, t.STOPPED):
            self._meet(outcome)
        stopped = outcome == t.STOPPED or until == t.CLOCK_END
        self._played = int(self._count[t.NOW]) if stopped else until

    def _meet(self, outcome: int) -> None:
        """See to what playing stopped for."""
        if outcome == t.OPENS:
            self._open(self._waiting.pop(self._flows[self._count[t.BROKE_AT], t.EPISODE]))
        else:
            now, code = (int(value) for value in self._heap[0])
            self._give_way(int(self._count[t.BROKE_AT]), now, code)

    def _announce(self, first: int, pairs: Ints) -> None:
        """Make episodes of the flows from ``first`` on: those that can influence each other."""
        count = self._used - first
        if not count:
            return
        new = slice(first, self._used)
        ties = pairs[pairs[:, 1] >= first] - first
        label = joined(self._paths[new], ties, self._first_over)
        order = np.argsort(label, kind="stable")
        bounds = np.flatnonzero(np.diff(label[order], prepend=-1, append=-1))
        number = self._numbered + np.searchsorted(bounds, np.argsort(order), side="right") - 1
        self._flows[new, t.EPISODE] = number
        of_tie = label[ties[:, 0]]
        by_label = np.argsort(of_tie, kind="stable")
        low, high = (
            np.searchsorted(of_tie[by_label], label[order[bounds[:-1]]], side=side)
            for side in ("left", "right")
        )
        packets = -(-self._flows[new, t.SIZE] // self.settings.packet_bytes)
        hops = np.add.reduceat((packets * self._flows[new, t.HOPS])[order], bounds[:-1])
        self._numbered += len(hops)
        self._episodes = t.grown(self._episodes, self._numbered)
        own_numbers = slice(self._numbered - len(hops), self._numbered)
        self._episodes[own_numbers, t.STATE] = np.where(hops >= _LEAST_WORK, t.WAITING, t.PLAIN)
        for place in np.flatnonzero(hops >= _LEAST_WORK).tolist():
            own = order[bounds[place] : bounds[place + 1]]
            inner = np.searchsorted(own, ties[by_label[low[place] : high[place]]])
            waits = np.bincount(inner[:, 0], minlength=len(own))
            each = own_numbers.start + place
            self._waiting[each] = Episode(each, first + own, inner, waits)

    def _open(self, episode: Episode) -> None:
        """An episode's first flow starts: play it from memory, note it, or just play it."""
        own, now = episode.flows, int(self._heap[0, 0])
        if len(self._recalled) > 2 * self._kept + _LET_GO_FROM:
            self._recalled = {n: each for n, each in self._recalled.items() if each.over > now}
            self._kept = len(self._recalled)
        self._episodes[episode.number, t.STATE] = t.PLAIN
        rows = self._flows[own]
        if (rows[:, t.WAITS] != episode.inner_waits).any():
            # When its other flows start is not known yet.
            return
        ports, places = np.unique(self._paths[own], return_inverse=True)
        places = places.reshape(len(own), -1)
        if ports[0] == NO_LINK:
            ports, places = ports[1:], places - 1
        state = self._ports[ports]
        busy = state[:, [t.USERS, t.PARKED, t.ASKED, t.PAUSED]].any(axis=1)
        if busy.any() or (state[:, t.FLIPS_AT] > now).any():
            return
        episode.opened, episode.ports, episode.places = now, ports, places
        episode.later = np.maximum(rows[:, t.EARLIEST] - now, 0)
        episode.key = key_of(
            places,
            episode.later,
            np.where(episode.inner_waits > 0, rows[:, t.LAG], 0),
            episode.ties,
            self._rates[ports],
            state[:, t.DELAY],
        )
        recording = self._remembered(episode, rows[:, t.SIZE])
        if recording is not None and (state[:, t.CLAIMED] <= now + recording.first).all():
            self._recall(episode, recording)

    def _remembered(self, episode: Episode, sizes: Ints) -> Recording | None:
        """What an episode does; what nobody remembers is played alone."""
        known = self._memory.setdefault(episode.key, {})
        of_sizes = sizes.tobytes()
        if of_sizes not in known:
            alike = self._alike(episode, sizes, known)
            if alike is not None:
                return alike
            known[of_sizes] = self._play_alone(episode)
        return known[of_sizes]

    def _alike(self, episode: Episode, sizes: Ints, known: Memories) -> Recording | None:
        """What can be said of an episode from those of the same shape and other sizes."""
        return None

    def _play_alone(self, episode: Episode) -> Recording | None:
        """What an episode does that nobody meets; None where chance has a part in it."""
        ports, rows = episode.ports, self._flows[episode.flows]
        delays = self._ports[ports, t.DELAY] / t.PICOSECONDS
        engine = self._engine_of(self._rates[ports], delays, episode.opened)
        lag_s = np.where(episode.inner_waits > 0, rows[:, t.LAG], 0) / t.PICOSECONDS
        starts_s = episode.later / t.PICOSECONDS
        routes = Routes(episode.places, np.zeros(len(rows)))
        engine.add(routes, rows[:, t.SIZE], starts_s, after=episode.ties, delay_s=lag_s)
        engine.advance()
        self._count[t.HOPS_DONE] += engine._count[t.HOPS_DONE]
        state = engine._ports
        if state[:, t.DRAWS].any():
            return None
        begins, ends = engine._flows[: len(rows), (t.BEGAN, t.DONE)].T.copy()
        first = np.full(len(ports), t.CLOCK_END)
        # A pause may end after the last packet of its link has arrived.
        last = state[:, t.FLIPS_AT].copy()
        spans(episode.places, begins, ends, first, last)
        return Recording(begins, ends, first, last, self._rests_of(engine))

    def _engine_of(self, rates: Floats, delays: Floats, opened: int) -> PacketEngine:
        """An engine without memory over some links, whose clock begins when ours is ``opened``."""
        return PacketEngine(rates, delays, self._paths.shape[1], self.settings)

    def _rests_of(self, engine: PacketEngine) -> tuple[Rest | Trains, ...]:
        """What an engine of ``_engine_of`` skipped, and sent in trains."""
        return ()

    def _recall(self, episode: Episode, recording: Recording) -> None:
        """Let an episode's flows arrive as they did the last time."""
        own, now = episode.flows, episode.opened
        episode.recording = recording
        self._flows[own, t.BEGAN] = now + recording.begins
        self._flows[own, t.RESTING] = 1
        self._heap = t.grown(self._heap, int(self._count[t.EVENTS_DUE]) + len(own))
        codes = (t.FINISH_EVENT << t.KIND_SHIFT) + own
        events_heap.put(now + recording.ends, codes, self._heap, self._count)
        claimed = self._ports[episode.ports, t.CLAIMED]
        self._ports[episode.ports, t.CLAIMED] = np.maximum(claimed, episode.last())
        episode.below = self._claim[episode.ports]
        self._claim[episode.ports] = episode.number
        self._recalled[episode.number] = episode
        self.recalls += 1

    def _give_way(self, flow: int, now: int, code: int) -> None:
        """A flow is about to start, by event ``code``, over ports of episodes from memory."""
        touched = self._paths[flow, : self._flows[flow, t.HOPS]]
        while met := self._claimants(touched, now):
            for episode in met:
                episode.undisturbed = False
                self._play_after_all(episode, now, code)
                # Others counted on it to be gone from its ports by the time it was last time.
                later = episode.ports[episode.last() > now]
                touched = np.union1d(touched, later)
                for port in later.tolist():
                    for other in self._claimants([port], now):
                        claimed = self._ports[other.ports, t.CLAIMED]
                        self._ports[other.ports, t.CLAIMED] = np.maximum(claimed, other.last())

    def _claimants(self, ports: Iterable[int], now: int) -> list[Episode]:
        """Episodes played from memory that are not done with some of these ports."""
        found: dict[int, Episode] = {}
        for port in ports:
            episode = self._recalled.get(int(self._claim[port]))
            while episode is not None:
                place = int(np.searchsorted(episode.ports, port))
                if episode.undisturbed and episode.last()[place] > now:
                    found[episode.number] = episode
                episode = self._recalled.get(int(episode.below[place]))
        return [found[number] for number in sorted(found)]

    def _play_after_all(self, episode: Episode, now: int, code: int) -> None:
        """Play an episode's packets from its opening up to an event, which is still to come.

        Its ports are taken as they were at the opening. Those that it is done with by now others
        may use already: they stay as they are.
        """
        self.disturbed += 1
        own, ports, flows, count = episode.flows, episode.ports, self._flows, self._count
        here = self._ports[ports]
        idle = t.idle_ports(here[:, t.DELAY])
        self._ports[ports] = idle
        arrived, later = flows[own, t.DONE].copy(), flows[own, t.FIRST_LATER].copy()
        # Nobody who waits for one of them is told of what arrived before.
        flows[own, t.FIRST_LATER] = t.NONE
        flows[own, t.BEGAN] = flows[own, t.DONE] = t.NONE
        flows[own, t.SENT] = flows[own, t.DELIVERED] = flows[own, t.RESTING] = 0
        roots = own[flows[own, t.WAITS] == 0]
        kept = self._heap, self._arrived, count.copy()
        count[t.STOP_AT] = 0
        self._heap = np.zeros((max(1024, 2 * len(own)), 2), dtype=np.int64)
        self._arrived = t.blank(len(own), 1)
        count[t.EVENTS_DUE] = count[t.ARRIVED] = 0
        starts = (t.START_EVENT << t.KIND_SHIFT) + roots
        events_heap.put(flows[roots, t.EARLIEST], starts, self._heap, count)
        self._play_again(episode, now, code)
        events = self._heap[: count[t.EVENTS_DUE]]
        # Starts of those who waited for nobody are still in the heap.
        starting = events[:, 1] >> t.KIND_SHIFT == t.START_EVENT
        events = events[~(starting & np.isin(events[:, 1] & t.SUBJECT, roots))]
        self._heap, self._arrived, before = kept
        for counter in (t.NOW, t.EVENTS_DUE, t.UNFINISHED, t.ARRIVED, t.STOP_AT):
            count[counter] = before[counter]
        # What was stretched from other sizes arrived when it was said to, and will: its packets
        # may come a little later or sooner.
        early = own[(arrived == t.NONE) & (flows[own, t.DONE] != t.NONE)]
        flows[early, t.RESTING] = 1
        flows[own, t.DONE] = arrived
        flows[own, t.FIRST_LATER] = np.where(arrived == t.NONE, later, t.NONE)
        self._heap = t.grown(self._heap, int(count[t.EVENTS_DUE]) + len(events))
        events_heap.put(*events.T.copy(), self._heap, count)
        there = self._ports[ports]
        there[:, _STATISTICS] = here[:, _STATISTICS]
        self._ports[ports] = np.where((episode.last() <= now)[:, None], here, there)

    def _play_again(self, episode: Episode, now: int, code: int) -> None:
        self._play(now, code - 1)
