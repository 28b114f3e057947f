"""A rank's virtual host clock: CPU time of the script, what launching costs, and waits.

The rank's process and the simulator each keep one and apply the same events to it in the same
order, so that both always agree without sending times. All times are whole picoseconds: what is
launched at the end of a wait is then launched exactly at that end.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulators.errors import require_positive
from simulators.traces.events import Begin, Collective, End, Event, HostGap, Op, PointToPoint

PICOSECONDS = 1_000_000_000_000
FUSED = "fused"


def to_picoseconds(seconds: float) -> int:
    return round(seconds * PICOSECONDS)


@dataclass(frozen=True)
class HostCost:
    """What the host's work takes: ``launch_s`` for each launch; ``cpu``: script CPU time too."""

    launch_s: float
    cpu: bool = True

    def __post_init__(self) -> None:
        require_positive("host.launch_s", self.launch_s, allow_zero=True)

    @property
    def launch_ps(self) -> int:
        return to_picoseconds(self.launch_s)


class HostClock:
    """Picoseconds since the job began, as one rank's host sees it."""

    def __init__(self, cost: HostCost) -> None:
        self.now_ps = 0
        self._launch_ps = cost.launch_ps
        self._cpu = cost.cpu
        self._fused = 0

    @property
    def now_s(self) -> float:
        return self.now_ps / PICOSECONDS

    @property
    def in_fused_region(self) -> bool:
        return self._fused > 0

    def apply(self, event: Event) -> None:
        """Pass the host's time for one event; a fused region is one launch, at its end."""
        if isinstance(event, Op):
            if not self._fused:
                self.now_ps += self._launch_ps
        elif isinstance(event, HostGap):
            self.spend(event.cpu_s)
        elif isinstance(event, Collective | PointToPoint):
            self.now_ps += self._launch_ps
        elif isinstance(event, Begin) and event.kind == FUSED:
            self._fused += 1
        elif isinstance(event, End) and event.kind == FUSED and self._fused:
            self._fused -= 1
            if not self._fused:
                self.now_ps += self._launch_ps

    def spend(self, cpu_s: float) -> None:
        """Pass CPU time of the script, when that counts."""
        if self._cpu:
            self.now_ps += to_picoseconds(cpu_s)

    def wait_until(self, end_ps: int) -> None:
        """Pass the time up to ``end_ps``, if that is still to come."""
        self.now_ps = max(self.now_ps, end_ps)
