"""When transfers end: one interface, with the white-box price or shared links behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from simulators.live.tasks import Transfer

Ends = Iterable[tuple[Transfer, float]]


class Network(Protocol):
    """Says when transfers end, and says so anew when something changes that.

    All times ascend from call to call. An end that was announced holds until another one is.
    """

    def start(self, transfers: Sequence[Transfer], now_s: float) -> Ends:
        """Transfers start now; returns their ends, and those of others that changes."""
        ...

    def slow(self, transfer: Transfer, slowdown: float, now_s: float) -> Ends:
        """From now on kernels beside a transfer slow it so much against running alone."""
        ...

    def end(self, transfer: Transfer) -> None:
        """The time has passed an announced end: it is final."""
        ...


@dataclass(slots=True)
class _Alone:
    """A transfer in flight: seconds left at full speed, since when, at 1 / ``slowdown``."""

    left_s: float
    since_s: float
    slowdown: float = 1.0


class WhiteBoxNetwork:
    """Every transfer takes its price; transfers do not share links, kernels beside slow them."""

    def __init__(self) -> None:
        self._flying: dict[Transfer, _Alone] = {}

    def start(self, transfers: Sequence[Transfer], now_s: float) -> Ends:
        for transfer in transfers:
            self._flying[transfer] = _Alone(transfer.price.seconds, now_s)
        return [(transfer, now_s + transfer.price.seconds) for transfer in transfers]

    def slow(self, transfer: Transfer, slowdown: float, now_s: float) -> Ends:
        flying = self._flying[transfer]
        passed_s = (now_s - flying.since_s) / flying.slowdown
        flying.left_s = max(0.0, flying.left_s - passed_s)
        flying.since_s, flying.slowdown = now_s, slowdown
        return [(transfer, now_s + flying.left_s * slowdown)]

    def end(self, transfer: Transfer) -> None:
        del self._flying[transfer]
