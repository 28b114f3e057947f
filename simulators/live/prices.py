"""What the simulation asks of prices; ``cluster_prices`` answers it for a real cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from simulators.traces.events import Op


@dataclass(frozen=True, eq=False, slots=True)
class KernelPrice:
    """``seconds`` an operation takes alone on the device; equal content is one object."""

    seconds: float


@dataclass(frozen=True, eq=False, slots=True)
class CommunicationPrice:
    """``seconds`` of a transfer that shares nothing; ``latency_s`` of them carry no bytes."""

    seconds: float
    latency_s: float = 0.0


class Prices(Protocol):
    """Prices of operations and transfers, and how they slow each other on one device."""

    def kernel(self, op: Op) -> KernelPrice: ...

    def fused(self, ops: Sequence[Op]) -> KernelPrice:
        """The price of operations that a compiler made one kernel of."""
        ...

    def communication(
        self, kind: str, size_bytes: int, ranks: tuple[int, ...], dtype: str
    ) -> CommunicationPrice: ...

    def slowdowns(
        self, kernel: KernelPrice, communication: CommunicationPrice
    ) -> tuple[float, float]:
        """Factors by which the kernel and the communication run longer side by side, >= 1."""
        ...
