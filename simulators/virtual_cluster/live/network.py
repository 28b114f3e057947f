"""When transfers end: one interface, with the white-box price or shared links behind it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trainscout.simulators.predictor.network.topology.network import Network as Links
from trainscout.simulators.virtual_cluster.walk.flow_patterns import FlowPattern, FlowPatterns

from .clock import PICOSECONDS
from .representation import Representation
from .tasks import Progress, Transfer

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


# Transfers as flows that share a cluster's links, max-min fairly.
#
# What a transfer takes alone is the white-box price's to say; the links say how transfers slow
# each other. A transfer becomes flows between its members after its latency
# (``walk.flow_patterns``). The engine runs ahead: every transfer in flight is played to its end as
# if nothing else came. When another starts, it goes back to that time (Phantora's rollback), and
# ends that were announced move.

_FORGET_EVERY = 64


@dataclass(slots=True)
class _Flying:
    """Flows of a transfer that have been announced, and when each is to arrive."""

    arrivals_ps: dict[int, int] = field(default_factory=dict)
    end_ps: int = 0


class FlowNetwork:
    """Transfers share links; kernels beside them do not slow them.

    Args:
        network: the cluster's links; ranks are its GPUs, in order.
        representation: which ranks are not simulated. Their transfers are flows too, equal to
            those of who stands for them, at the same time.
    """

    def __init__(self, network: Links, representation: Representation) -> None:
        self._patterns = FlowPatterns(network)
        self._who = representation
        self._copies: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {}
        self._engine = self._patterns.new_engine()
        self._flying: dict[Transfer, _Flying] = {}
        self._of_flow: dict[int, Transfer] = {}
        self._starts = 0
        self.rollbacks = 0

    @property
    def pieces_kept(self) -> int:
        """Pieces of rate history that are remembered."""
        return self._engine.pieces_kept

    def start(self, transfers: Sequence[Transfer], now_ps: int) -> Ends:
        now_s = now_ps / PICOSECONDS
        ends: dict[Transfer, int] = {}
        announced = False
        for transfer in transfers:
            price = transfer.price
            stream_s = price.seconds - price.latency_s
            if stream_s <= 0:
                ends[transfer] = now_ps + round(price.seconds * PICOSECONDS)
                continue
            if now_s + price.latency_s < self._engine.now_s:
                self.rollbacks += 1
            self._announce(transfer, stream_s, now_s + price.latency_s)
            announced = True
        if announced:
            ends |= self._play()
            self._starts += 1
            if self._starts % _FORGET_EVERY == 0:
                self._engine.forget(now_s)
        return ends.items()

    def slow(self, transfer: Transfer, slowdown: float, now_ps: int) -> Ends:
        return ()

    def end(self, transfer: Transfer) -> None:
        flying = self._flying.pop(transfer, None)
        if flying is not None:
            for flow in flying.arrivals_ps:
                del self._of_flow[flow]

    def _announce(self, transfer: Transfer, stream_s: float, start_s: float) -> None:
        flying = self._flying[transfer] = _Flying()
        pattern = self._pattern(transfer, transfer.ranks)
        size = stream_s / pattern.alone_s
        for flow in self._engine.add(pattern.routes, size * pattern.shares, start_s):
            flying.arrivals_ps[int(flow)] = 0
            self._of_flow[int(flow)] = transfer
        for ranks in self._copies_of(transfer.ranks):
            copy = self._pattern(transfer, ranks)
            self._engine.add(copy.routes, size * copy.shares, start_s)

    def _copies_of(self, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        if self._who.everybody:
            return ()
        if ranks not in self._copies:
            self._copies[ranks] = self._who.copies(ranks)
        return self._copies[ranks]

    def _play(self) -> dict[Transfer, int]:
        """Ends of transfers that are new or not what was announced before."""
        report = self._engine.advance()
        touched: dict[Transfer, None] = {}
        for flow, completion_s in zip(
            report.flows.tolist(), report.completion_s.tolist(), strict=True
        ):
            transfer = self._of_flow.get(flow)
            if transfer is not None:
                arrival_ps = math.ceil(completion_s * PICOSECONDS)
                self._flying[transfer].arrivals_ps[flow] = arrival_ps
                touched[transfer] = None
        ends = {}
        for transfer in touched:
            flying = self._flying[transfer]
            end_ps = max(flying.arrivals_ps.values())
            if end_ps != flying.end_ps:
                flying.end_ps = ends[transfer] = end_ps
        return ends

    def _pattern(self, transfer: Transfer, ranks: tuple[int, ...]) -> FlowPattern:
        return self._patterns.of(transfer.call.kind, transfer.price.algorithm, ranks)
