"""Playing from memory: what was played before over idle links is not played again.

Flows announced together are an episode. What an episode does from idle links to idle
links, met by nobody, depends on nothing but its routes, sizes, ties and relative starts: so it is
remembered, and when it comes again its flows just arrive when they did then. Should another flow
start over one of its links meanwhile, its packets are played after all, from its opening up to
that moment: nobody met them until then, so this is what would have happened.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from trainscout.simulators.predictor.network.hybrid.memory import Episode, Recording, key_of, spans
from trainscout.simulators.predictor.network.packet import engine_arrays as t
from trainscout.simulators.predictor.network.packet import heap as events_heap
from trainscout.simulators.predictor.network.packet.engine import PacketEngine
from trainscout.simulators.predictor.network.packet.engine_arrays import Floats, Ints
from trainscout.simulators.predictor.network.packet.settings import PacketSettings
from trainscout.simulators.predictor.network.topology.routing import NO_LINK

# An episode of fewer packet-hops is played as fast as it is remembered.
_LEAST_WORK = 1000
_STATISTICS = list(t.PORT_STATISTICS)
_MOST_QUEUED = _STATISTICS.index(t.MOST_QUEUED)
_DRAWS = _STATISTICS.index(t.DRAWS)


class RepeatingEngine(PacketEngine):
    """A packet engine that plays what repeats itself from memory, to the picosecond.

    Only what is marked by chance is always played.
    """

    def __init__(
        self,
        rate_bytes_per_s: ArrayLike,
        delay_s: ArrayLike,
        max_hops: int,
        settings: PacketSettings | None = None,
    ) -> None:
        """As ``PacketEngine``."""
        super().__init__(rate_bytes_per_s, delay_s, max_hops, settings)
        links = len(self._rates)
        self._memory: dict[bytes, Recording] = {}
        self._waiting: dict[int, Episode] = {}
        self._recorded: dict[int, Episode] = {}
        self._recalled: list[Episode] = []
        self._from_memory = np.zeros((links, len(_STATISTICS)), dtype=np.int64)
        self._numbered = 0
        self._played = 0
        self.recalls = 0
        self.disturbed = 0

    def start_s(self, flows: ArrayLike) -> Floats:
        """When flows began to send; infinite for those that have not, shape (n,)."""
        starts = super().start_s(flows)
        return np.where(starts > self._played / t.PICOSECONDS, np.inf, starts)

    def _statistics(self) -> Ints:
        """As of the last time that an episode from memory was over."""
        self._settle(int(self._count[t.NOW]))
        whole = super()._statistics() + self._from_memory
        most = whole[:, _MOST_QUEUED]
        most[:] = np.maximum(self._ports[:, t.MOST_QUEUED], self._from_memory[:, _MOST_QUEUED])
        for episode in self._recorded.values():
            np.maximum.at(most, episode.ports, episode.before[:, _MOST_QUEUED])
        return whole

    def _run(self, until: int) -> None:
        while (outcome := self._play(until)) not in (t.REACHED, t.STOPPED):
            self._meet(outcome)
        stopped = outcome == t.STOPPED or until == t.CLOCK_END
        self._played = int(self._count[t.NOW]) if stopped else until

    def _meet(self, outcome: int) -> None:
        """See to what playing stopped for."""
        if outcome == t.OPENS:
            self._open(self._waiting.pop(self._flows[self._count[t.BROKE_AT], t.EPISODE]))
        elif outcome == t.CLOSES:
            self._close(self._recorded.pop(int(self._count[t.BROKE_AT])))
        else:
            now, code = (int(value) for value in self._heap[0])
            self._give_way(int(self._count[t.BROKE_AT]), now, code)

    def _tell(self, first: int, pairs: Ints) -> None:
        """Make an episode of the flows from ``first`` on."""
        count = self._used - first
        if not count:
            return
        number = self._numbered
        self._numbered += 1
        self._episodes = t.grown(self._episodes, self._numbered)
        own = np.arange(first, self._used)
        packets = -(-self._flows[own, t.SIZE] // self.settings.packet_bytes)
        worth = (packets * self._flows[own, t.HOPS]).sum() >= _LEAST_WORK
        self._episodes[number] = (t.WAITING if worth else t.PLAIN), count, 0
        self._flows[own, t.EPISODE] = number
        if worth:
            ties = pairs[pairs[:, 1] >= first] - first
            waits = np.bincount(ties[:, 0], minlength=count)
            self._waiting[number] = Episode(number, own, ties, waits)

    def _open(self, episode: Episode) -> None:
        """An episode's first flow starts: play it from memory, note it, or just play it."""
        own, now = episode.flows, int(self._heap[0, 0])
        self._settle(now)
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
        episode.key = key_of(
            places,
            rows[:, t.SIZE],
            np.maximum(rows[:, t.EARLIEST] - now, 0),
            np.where(episode.inner_waits > 0, rows[:, t.LAG], 0),
            episode.ties,
            self._rates[ports],
            state[:, t.DELAY],
        )
        recording = self._memory.get(episode.key)
        if recording is not None:
            if (state[:, t.CLAIMED] <= now + recording.first).all():
                self._recall(episode, recording)
        elif (state[:, t.CLAIMED] <= now).all():
            self._record(episode)

    def _record(self, episode: Episode) -> None:
        self._episodes[episode.number, t.STATE] = t.RECORDING
        self._recorded[episode.number] = episode
        episode.before = self._ports[episode.ports][:, _STATISTICS]
        self._ports[episode.ports, t.MOST_QUEUED] = 0
        # Whoever else starts over one of them spoils it, as it does those before it.
        self._spoil_owners(episode.ports)
        self._ports[episode.ports, t.OWNER] = episode.number

    def _spoil_owners(self, ports: Ints) -> None:
        """What these ports do from now on is not only their owners' doing."""
        owners = self._ports[ports, t.OWNER]
        self._episodes[owners[owners != t.NONE], t.SPOILED] = 1

    def _close(self, episode: Episode) -> None:
        """An episode that was noted is over: remember it if nobody met it."""
        ports, own, now = episode.ports, episode.flows, int(self._count[t.NOW])
        did = self._ports[ports][:, _STATISTICS] - episode.before
        did[:, _MOST_QUEUED] = most = self._ports[ports, t.MOST_QUEUED]
        self._ports[ports, t.MOST_QUEUED] = np.maximum(most, episode.before[:, _MOST_QUEUED])
        state = self._ports[ports]
        unfinished = state[:, [t.ASKED, t.PAUSED]].any() or (state[:, t.FLIPS_AT] > now).any()
        if self._episodes[episode.number, t.SPOILED] or unfinished or did[:, _DRAWS].any():
            return
        begins = self._flows[own, t.BEGAN] - episode.opened
        ends = self._flows[own, t.DONE] - episode.opened
        first = np.full(len(ports), t.CLOCK_END)
        # A pause may end after the last packet of its link has arrived.
        last = state[:, t.FLIPS_AT] - episode.opened
        spans(episode.places, begins, ends, first, last)
        rests = tuple(episode.rests)
        self._memory[episode.key] = Recording(begins, ends, first, last, did, rests)

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
        self._recalled.append(episode)
        self.recalls += 1

    def _settle(self, now: int) -> None:
        """Count what the ports of episodes did that were played from memory and are over."""
        for episode in [each for each in self._recalled if each.last().max() <= now]:
            self._recalled.remove(episode)
            assert episode.recording is not None
            self._add_statistics(episode.ports, episode.recording.statistics)

    def _add_statistics(self, ports: Ints, did: Ints) -> None:
        rows = self._from_memory[ports]
        most = np.maximum(rows[:, _MOST_QUEUED], did[:, _MOST_QUEUED])
        rows += did
        rows[:, _MOST_QUEUED] = most
        self._from_memory[ports] = rows

    def _give_way(self, flow: int, now: int, code: int) -> None:
        """A flow is about to start, by event ``code``, over ports of episodes from memory."""
        touched = self._paths[flow, : self._flows[flow, t.HOPS]]
        while True:
            met = [
                each
                for each in self._recalled
                if np.isin(touched, each.ports[each.last() > now]).any()
            ]
            if not met:
                return
            for episode in met:
                self._recalled.remove(episode)
                self._play_after_all(episode, now, code)
                # Others counted on it to be gone from its ports by the time it was last time.
                later = episode.ports[episode.last() > now]
                touched = np.concatenate([touched, later])
                for other in self._recalled:
                    claimed = self._ports[other.ports, t.CLAIMED]
                    self._ports[other.ports, t.CLAIMED] = np.maximum(claimed, other.last())

    def _play_after_all(self, episode: Episode, now: int, code: int) -> None:
        """Play an episode's packets from its opening up to an event, which is still to come.

        Its ports are taken as they were at the opening. Those that it is done with by now others
        may use already: they stay as they are.
        """
        self.disturbed += 1
        own, ports, flows, count = episode.flows, episode.ports, self._flows, self._count
        here = self._ports[ports]
        self._spoil_owners(ports)
        idle = t.idle_ports(here[:, t.DELAY])
        self._ports[ports] = idle
        # Those who waited for flows that have arrived were released then.
        flows[own[flows[own, t.DONE] != t.NONE], t.FIRST_LATER] = t.NONE
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
        self._heap = t.grown(self._heap, int(count[t.EVENTS_DUE]) + len(events))
        events_heap.put(events[:, 0], events[:, 1], self._heap, count)
        there = self._ports[ports]
        self._add_statistics(ports, there[:, _STATISTICS])
        there[:, _STATISTICS] = here[:, _STATISTICS]
        self._ports[ports] = np.where((episode.last() <= now)[:, None], here, there)

    def _play_again(self, episode: Episode, now: int, code: int) -> None:
        self._play(now, code - 1)
