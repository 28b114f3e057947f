"""What one traced operation amounts to on a device."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.replay.priced import launches_of
from trainscout.simulators.predictor.workload.ir import Kernel


@dataclass(frozen=True, slots=True)
class Lowered:
    """Kernels of one operation, in launch order; none for views and what only allocates.

    ``rule`` names what turned the operation into kernels, for reports of coverage. ``estimated``:
    the operation is not one whose cost is known; it was taken to be memory-bound. Besides the
    kernels ``transfer_bytes`` cross the bus between host and device.
    """

    kernels: tuple[Kernel, ...]
    rule: str
    estimated: bool = False
    transfer_bytes: int = 0

    @property
    def launches(self) -> int:
        """How often the host launches for it."""
        return sum(map(launches_of, self.kernels)) + (self.transfer_bytes > 0)


FREE = Lowered((), "free")
