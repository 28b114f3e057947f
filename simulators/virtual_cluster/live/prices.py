"""What the simulation asks of prices; ``cluster_prices`` answers it for a real cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trainscout.simulators.virtual_cluster.walk.rendezvous import Call


@dataclass(frozen=True, eq=False, slots=True)
class KernelPrice:
    """``seconds`` an operation takes alone on the device; equal content is one object."""

    seconds: float


@dataclass(frozen=True, eq=False, slots=True)
class CommunicationPrice:
    """``seconds`` of a transfer that shares nothing; ``latency_s`` of them carry no bytes.
    ``algorithm`` is what NCCL chose for it."""

    seconds: float
    latency_s: float = 0.0
    algorithm: str = "ring"


class Prices(Protocol):
    """Prices of operations and transfers, and how they slow each other on one device.

    ``kernels_beside``: factor by which two kernels that run beside each other are slowed.
    """

    @property
    def kernels_beside(self) -> float: ...

    def kernel(self, content: object) -> KernelPrice:
        """The price of a launch's content (``rank_walk.Launch``)."""
        ...

    def communication(
        self, call: Call, group: tuple[int, ...], ends: tuple[int, int] | None = None
    ) -> CommunicationPrice:
        """The price of a collective of ``group``, or a transfer between two ``ends`` of it."""
        ...

    def slowdowns(
        self, kernel: KernelPrice, communication: CommunicationPrice
    ) -> tuple[float, float]:
        """Factors by which the kernel and the communication run longer side by side, >= 1."""
        ...
