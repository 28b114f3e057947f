"""A rank's virtual host clock: CPU time of the script, what launching costs, and waits.

The rank's process and the simulator each keep one and apply the same events to it in the same
order, so that both always agree without sending times. All times are whole picoseconds: what is
launched at the end of a wait is then launched exactly at that end.
"""

from __future__ import annotations

from trainscout.simulators.virtual_cluster.traces.events import Event, HostGap, HostWork
from trainscout.simulators.virtual_cluster.traces.rank_walk import Launch
from trainscout.simulators.virtual_cluster.walk.host import HostCalls, HostCost
from trainscout.simulators.virtual_cluster.walk.launches import Launches

PICOSECONDS = 1_000_000_000_000


def to_picoseconds(seconds: float) -> int:
    return round(seconds * PICOSECONDS)


class HostClock:
    """Picoseconds since the job began, as one rank's host sees it."""

    def __init__(self, cost: HostCost, launches: Launches) -> None:
        self.now_ps = 0
        self.waited_ps = 0
        self._gap_factor = cost.gap_factor
        self._memory_ps = cost.memory_s * PICOSECONDS
        self._launches = launches
        self._calls = HostCalls(cost)

    @property
    def now_s(self) -> float:
        return self.now_ps / PICOSECONDS

    def apply(self, event: Event) -> tuple[Launch, ...]:
        """Pass the host's time for one event; returns what was launched on the device by it."""
        if type(event) is HostGap:
            self.spend(event.cpu_s)
            return ()
        if type(event) is HostWork:
            self.now_ps += round(event.bytes * self._memory_ps)
            return ()
        launched = self._launches.take(event)
        for seconds in self._calls.take(event, launched):
            self.now_ps += to_picoseconds(seconds)
        return launched

    @property
    def cost(self) -> HostCost:
        """That of the framework whose code launches."""
        return self._calls.cost

    def spend(self, cpu_s: float) -> None:
        """Pass CPU time of the script, as far as that counts."""
        self.now_ps += to_picoseconds(cpu_s * self._gap_factor)

    def wait_until(self, end_ps: int) -> None:
        """Pass the time up to ``end_ps``, if that is still to come."""
        if end_ps > self.now_ps:
            self.waited_ps += end_ps - self.now_ps
            self.now_ps = end_ps
