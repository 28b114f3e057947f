"""What a rank's operations launch on its device: lowered kernels, fused where a compiler fuses."""

from __future__ import annotations

from typing import Protocol

from trainscout.simulators.virtual_cluster.traces.events import (
    Alloc,
    Begin,
    End,
    Event,
    Op,
    Resize,
)
from trainscout.simulators.virtual_cluster.traces.fused import FUSED
from trainscout.simulators.virtual_cluster.traces.lowering import Lowered, lower, lower_events
from trainscout.simulators.virtual_cluster.traces.rank_walk import Launch
from trainscout.simulators.virtual_cluster.traces.vocabulary import tensors


class Launches(Protocol):
    """Turns a rank's events into launches, one event after the other."""

    def take(self, event: Event) -> tuple[Launch, ...]: ...


class LoweredLaunches:
    """Launches by the rules that traces are lowered with.

    Inside a fused region nothing is launched before the region closes: what fuses is known then.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._region: list[Event] = []
        self._depth = 0

    def take(self, event: Event) -> tuple[Launch, ...]:
        """Launches that ``event`` leads to, in order.

        Raises:
            InputError: for operations that cannot be lowered.
        """
        if isinstance(event, Op) and not self._depth:
            return self._launch(event, lower(event))
        if isinstance(event, (Alloc, Resize)):
            self._sizes[event.storage] = event.bytes
        elif isinstance(event, (Begin, End)) and event.kind == FUSED:
            self._depth = max(0, self._depth + (1 if isinstance(event, Begin) else -1))
            self._region.append(event)
            return () if self._depth else self._close()
        if self._depth:
            self._region.append(event)
        return ()

    def _close(self) -> tuple[Launch, ...]:
        region, self._region = self._region, []
        used = {
            tensor.storage
            for event in region
            if isinstance(event, Op)
            for tensor in tensors((*event.inputs, *event.outputs))
        }
        before: list[Event] = [
            Alloc(storage, self._sizes[storage], 0)
            for storage in sorted(each for each in used if each in self._sizes)
        ]
        lowered = lower_events([*before, *region], len(before))[len(before) :]
        found: list[Launch] = []
        for event, alone in zip(region, lowered, strict=True):
            if alone is not None and isinstance(event, Op):
                found += self._launch(event, alone)
        return tuple(found)

    def _launch(self, op: Op, lowered: Lowered) -> tuple[Launch, ...]:
        if not lowered.kernels and not lowered.transfer_bytes:
            return ()
        return (Launch(op.name, op.stream, lowered.launches, lowered),)
