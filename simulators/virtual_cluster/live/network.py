"""When transfers end: one interface, with the white-box price or shared links behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from trainscout.simulators.virtual_cluster.live.clock import PICOSECONDS
from trainscout.simulators.virtual_cluster.live.tasks import Progress, Transfer

Ends = Iterable[tuple[Transfer, int]]


class Network(Protocol):
    """Says when transfers end, and says so anew when something changes that.

    Times ascend from call to call. An end that was announced holds until another one is.
    """

    def start(self, transfers: Sequence[Transfer], now_ps: int) -> Ends:
        """Transfers start now; returns their ends, and those of others that changes."""
        ...

    def slow(self, transfer: Transfer, slowdown: float, now_ps: int) -> Ends:
        """From now on kernels beside a transfer slow it so much against running alone."""
        ...

    def end(self, transfer: Transfer) -> None:
        """The time has passed an announced end: it is final."""
        ...


class WhiteBoxNetwork:
    """Every transfer takes its price; transfers do not share links, kernels beside slow them."""

    def __init__(self) -> None:
        self._flying: dict[Transfer, Progress] = {}

    def start(self, transfers: Sequence[Transfer], now_ps: int) -> Ends:
        for transfer in transfers:
            self._flying[transfer] = Progress(transfer.price.seconds * PICOSECONDS, now_ps)
        return [(transfer, self._flying[transfer].end_ps) for transfer in transfers]

    def slow(self, transfer: Transfer, slowdown: float, now_ps: int) -> Ends:
        self._flying[transfer].slow(slowdown, now_ps)
        return [(transfer, self._flying[transfer].end_ps)]

    def end(self, transfer: Transfer) -> None:
        del self._flying[transfer]
