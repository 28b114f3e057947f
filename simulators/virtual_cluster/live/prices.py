"""What the simulation asks of prices; ``cluster_prices`` answers it for a real cluster."""

from __future__ import annotations

from typing import Protocol

from trainscout.simulators.virtual_cluster.walk.prices import Price
from trainscout.simulators.virtual_cluster.walk.rendezvous import Call


class Prices(Protocol):
    """Prices of operations and transfers, and how they slow each other on one device.

    ``kernels_beside``: factor by which two kernels that run beside each other are slowed.
    """

    @property
    def kernels_beside(self) -> float: ...

    def kernel(self, content: object) -> Price:
        """The price of a launch's content (``rank_walk.Launch``)."""
        ...

    def communication(
        self,
        call: Call,
        group: tuple[int, ...],
        ends: tuple[int, int] | None = None,
        *,
        collnet: bool = False,
    ) -> Price:
        """The price of a collective of ``group``, or a transfer between two ``ends`` of it;
        ``collnet``: it asked for switches that sum."""
        ...

    def slowdowns(self, kernel: Price, communication: Price) -> tuple[float, float]:
        """Factors by which the kernel and the communication run longer side by side, >= 1."""
        ...
