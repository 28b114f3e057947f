"""A rank's virtual host clock: CPU time of the script, what launching costs, and waits.

The rank's process and the simulator each keep one and apply the same events to it in the same
order, in whole nanoseconds, so that both always agree without sending times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulators.errors import require_positive
from simulators.traces.events import Begin, Collective, End, Event, HostGap, Op, PointToPoint

NANOSECONDS = 1_000_000_000
FUSED = "fused"


@dataclass(frozen=True)
class HostCost:
    """What the host's work takes: ``launch_s`` for each launch; ``cpu``: script CPU time too."""

    launch_s: float
    cpu: bool = True

    def __post_init__(self) -> None:
        require_positive("host.launch_s", self.launch_s, allow_zero=True)

    @property
    def launch_ns(self) -> int:
        return round(self.launch_s * NANOSECONDS)


class HostClock:
    """Nanoseconds since the job began, as one rank's host sees it."""

    def __init__(self, cost: HostCost) -> None:
        self.now_ns = 0
        self._launch_ns = cost.launch_ns
        self._cpu = cost.cpu
        self._fused = 0

    @property
    def now_s(self) -> float:
        return self.now_ns / NANOSECONDS

    @property
    def in_fused_region(self) -> bool:
        return self._fused > 0

    def apply(self, event: Event) -> None:
        """Pass the host's time for one event; a fused region is one launch, at its end."""
        if isinstance(event, Op):
            if not self._fused:
                self.now_ns += self._launch_ns
        elif isinstance(event, HostGap):
            self.spend(event.cpu_s)
        elif isinstance(event, Collective | PointToPoint):
            self.now_ns += self._launch_ns
        elif isinstance(event, Begin) and event.kind == FUSED:
            self._fused += 1
        elif isinstance(event, End) and event.kind == FUSED and self._fused:
            self._fused -= 1
            if not self._fused:
                self.now_ns += self._launch_ns

    def spend(self, cpu_s: float) -> None:
        """Pass CPU time of the script, when that counts."""
        if self._cpu:
            self.now_ns += round(cpu_s * NANOSECONDS)

    def wait_until(self, end_s: float) -> None:
        """Pass the time up to ``end_s``, rounded up, if that is still to come."""
        self.now_ns = max(self.now_ns, math.ceil(end_s * NANOSECONDS))
