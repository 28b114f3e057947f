"""A rank's virtual host clock: CPU time of the script, what launching costs, and waits.

The rank's process and the simulator each keep one and apply the same events to it in the same
order, so that both always agree without sending times. All times are whole picoseconds: what is
launched at the end of a wait is then launched exactly at that end.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import require_positive
from trainscout.simulators.virtual_cluster.live.launches import Launch, Launches
from trainscout.simulators.virtual_cluster.traces.events import (
    FORWARD,
    SETUP,
    Collective,
    Event,
    HostGap,
    Phase,
    PointToPoint,
    ValueRead,
)

PICOSECONDS = 1_000_000_000_000


def to_picoseconds(seconds: float) -> int:
    return round(seconds * PICOSECONDS)


@dataclass(frozen=True)
class HostCost:
    """What the host's work takes: ``launch_s`` for each launch, ``forward_s`` more for each call
    in a forward pass; ``cpu``: the script's CPU time too."""

    launch_s: float
    forward_s: float = 0.0
    cpu: bool = True

    def __post_init__(self) -> None:
        require_positive("host.launch_s", self.launch_s, allow_zero=True)
        require_positive("host.forward_s", self.forward_s, allow_zero=True)


class HostClock:
    """Picoseconds since the job began, as one rank's host sees it."""

    def __init__(self, cost: HostCost, launches: Launches) -> None:
        self.now_ps = 0
        self.waited_ps = 0
        self._launch_ps = to_picoseconds(cost.launch_s)
        self._forward_ps = to_picoseconds(cost.forward_s)
        self._cpu = cost.cpu
        self._launches = launches
        self._phase = SETUP
        self._batch: int | None = None

    @property
    def now_s(self) -> float:
        return self.now_ps / PICOSECONDS

    def apply(self, event: Event) -> tuple[Launch, ...]:
        """Pass the host's time for one event; returns what was launched on the device by it.

        Sends and receives of one batch are one launch.
        """
        if isinstance(event, HostGap):
            self.spend(event.cpu_s)
            return ()
        if isinstance(event, Phase):
            self._phase = event.phase
        batch, self._batch = self._batch, None
        if isinstance(event, PointToPoint):
            self._batch = event.batch
            if event.batch is None or event.batch != batch:
                self._launch(1)
            return ()
        if isinstance(event, Collective | ValueRead):
            self._launch(1)
            return ()
        launched = self._launches.take(event)
        for launch in launched:
            self._launch(launch.count)
        return launched

    def spend(self, cpu_s: float) -> None:
        """Pass CPU time of the script, when that counts."""
        if self._cpu:
            self.now_ps += to_picoseconds(cpu_s)

    def wait_until(self, end_ps: int) -> None:
        """Pass the time up to ``end_ps``, if that is still to come."""
        if end_ps > self.now_ps:
            self.waited_ps += end_ps - self.now_ps
            self.now_ps = end_ps

    def _launch(self, count: int) -> None:
        self.now_ps += count * self._launch_ps
        if self._phase == FORWARD:
            self.now_ps += self._forward_ps
