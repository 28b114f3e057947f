"""Different contents of device work, each priced once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.replay.engine import Floats, Ints
from trainscout.simulators.predictor.replay.graph import NEUTRAL_KIND, Kinds
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.workload.ir import Collective, SendRecv
from trainscout.simulators.virtual_cluster.traces.lowering import Lowered
from trainscout.simulators.virtual_cluster.walk.prices import (
    SHARED_GPU,
    Content,
    Price,
    price_contents,
)


@dataclass(frozen=True)
class Priced:
    """Prices by content, and columns of them of length n.

    ``seconds``: on the device, alone. ``kind``: row of ``slowdown``. ``flops``: of kernels.
    """

    prices: tuple[Price, ...]
    seconds: Floats
    flops: Floats
    kind: Ints
    slowdown: Floats


class Contents:
    """Numbers contents of device work as they come: lowered operations and communication."""

    def __init__(self) -> None:
        self._lowered: dict[int, int] = {}
        self._wires: dict[Collective | SendRecv, int] = {}
        self.items: list[Content] = []
        self.launches: list[int] = []

    def operation(self, lowered: Lowered) -> int:
        # Equal operations are one object; it is kept, so its identity stays its own.
        number = self._lowered.get(id(lowered))
        if number is None:
            number = self._lowered[id(lowered)] = self._add(lowered, lowered.launches)
        return number

    def communication(self, op: Collective | SendRecv) -> int:
        number = self._wires.get(op)
        if number is None:
            number = self._wires[op] = self._add(op, 1)
        return number

    def _add(self, item: Content, launches: int) -> int:
        self.items.append(item)
        self.launches.append(launches)
        return len(self.items) - 1

    def price(self, pricer: Pricer) -> Priced:
        """Everything that has come so far.

        Raises:
            InputError: for a precision the GPU does not have, or a collective NCCL has not.
        """
        prices = price_contents(pricer, self.items)
        kind = np.full(len(prices), NEUTRAL_KIND, dtype=np.int64)
        kinds = Kinds()
        computes: set[int] = set()
        for number, (item, price) in enumerate(zip(self.items, prices, strict=True)):
            if price.mix:
                kind[number] = kinds.compute(1.0, np.frombuffer(price.mix))
                computes.add(int(kind[number]))
            elif price.seconds and not isinstance(item, Lowered):
                kind[number] = kinds.communication(price.channels, price.memory_bytes_per_s)
        slowdown = kinds.slowdowns(pricer.gpu, pricer.factors.overlap_time)
        rows = np.array(sorted(computes), dtype=np.int64)
        slowdown[np.ix_(rows, rows)] = SHARED_GPU
        seconds = np.array([price.seconds for price in prices])
        flops = np.array([price.flops for price in prices])
        return Priced(tuple(prices), seconds, flops, kind, slowdown)
