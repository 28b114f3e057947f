"""What a rank's operations launch on its device: lowered kernels, fused where a compiler fuses."""

from __future__ import annotations

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
            Launch(op.name, op.stream, lowered.launches, lowered, op.site)
            for _, op, lowered in self._fusion.take(event)
            if lowered.kernels or lowered.transfer_bytes
        )
