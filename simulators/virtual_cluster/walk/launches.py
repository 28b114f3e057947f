"""What a rank's operations launch on its device: lowered kernels, fused where a compiler fuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainscout.simulators.predictor.question.cluster import Cluster, HostShare
from trainscout.simulators.predictor.question.errors import require_positive
from trainscout.simulators.predictor.question.framework import UNDECLARED, Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.replay.host import host_pace, moved_s
from trainscout.simulators.predictor.replay.prices import host_launch_s
from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.traces.lowering.regions import Fusion
from trainscout.simulators.virtual_cluster.traces.rank_walk import Launch


class Launches:
    """Turns a rank's events into launches, by the rules that traces are lowered with.

    Inside a fused region a kernel is launched when nothing more can join it.
    """

    def __init__(self) -> None:
        self._fusion = Fusion()

    def take(self, event: events.Event) -> tuple[Launch, ...]:
        """Launches that ``event`` leads to, in order.

        Raises:
            InputError: for operations that cannot be lowered.
        """
        return tuple(
            Launch(op.name, op.stream, lowered.launches, lowered)
            for _, op, lowered in self._fusion.take(event)
            if lowered.kernels or lowered.transfer_bytes
        )


# What its work takes a rank's host: launches, and the CPU seconds of the script between them.

# An operation of a module in a trace is as many launches as PyTorch makes of it: 34 of the 15 of
# a Llama layer's forward pass (Transformers 5.24), which took profiled hosts 23 us each.
_LAUNCHES_OF_OPERATION = 34 / 15


@dataclass(frozen=True)
class HostCost:
    """``launch_s`` for each launch, ``forward_s`` more for each in a forward pass,
    ``gap_factor`` times the script's CPU seconds (0: they are left out), and ``memory_s`` for each
    byte of the host's memory that its CPU reads or writes."""

    launch_s: float
    forward_s: float = 0.0
    gap_factor: float = 1.0
    memory_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("launch_s", "forward_s", "gap_factor", "memory_s"):
            require_positive(f"host.{name}", getattr(self, name), allow_zero=True)

    @classmethod
    def of(
        cls,
        framework: Framework,
        cluster: Cluster,
        gpu: Gpu,
        *,
        cpu: bool,
        factor: float = 1.0,
    ) -> HostCost:
        """CPU seconds of the script where they are known (``cpu``), else as declared for the CPUs
        of the cluster's vendor.

        Declared figures are those of a framework's Python and of the driver together, so they are
        never added to CPU seconds: what launches cost beside those is the driver's own.
        ``factor``: how much longer all of it takes (``Factors.host_time``).
        """
        memory_s = moved_s(1, HostShare.of(gpu, cluster))
        if cpu:
            launch_s = 0.0 if framework.cuda_graphs else UNDECLARED.host_launch_s
            return cls(launch_s * factor, 0.0, factor, memory_s)
        factor *= host_pace(framework, cluster.cpu)
        forward_s = (
            0.0 if framework.cuda_graphs else framework.host_forward_s / _LAUNCHES_OF_OPERATION
        )
        return cls(host_launch_s(framework) * factor, forward_s * factor, 0.0, memory_s)


_CALLS = frozenset((events.Collective, events.ValueRead))


class HostCalls:
    """Which of a rank's events are calls that launch something, and which ``phase`` it is in."""

    def __init__(self) -> None:
        self.phase = events.SETUP
        self._batch: int | None = None

    def take(self, event: events.Event, launches: Sequence[Launch]) -> list[int]:
        """How many launches each call makes: one for a communication, one for all of a batch's
        sends and receives, one for the copy that reads a value, and ``launches``."""
        found = [launch.times for launch in launches]
        if type(event) is events.Phase:
            self.phase = event.phase
        elif type(event) is events.PointToPoint:
            batch, self._batch = self._batch, event.batch
            if event.batch is None or event.batch != batch:
                found.append(1)
        elif type(event) in _CALLS:
            found.append(1)
        return found
