"""Fused regions: what a compiler makes of the operations between ``Begin`` and ``End``.

Memory-bound operations that share tensors become one kernel, which reads what comes from outside
and writes what is still there afterwards (``fusion``); products, attention, convolutions and
vendors' kernels stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.virtual_cluster.traces.events import (
    Alloc,
    Begin,
    End,
    Event,
    Free,
    HostGap,
    Op,
    Resize,
    Site,
)
from trainscout.simulators.virtual_cluster.traces.fused import FUSED, is_kernel_of_its_own
from trainscout.simulators.virtual_cluster.traces.lowering.fusion import Fusion
from trainscout.simulators.virtual_cluster.traces.lowering.lowered import FREE, Lowered
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower


def lower_events(
    events: Sequence[Event], start: int = 0, stop: int | None = None
) -> list[Lowered | None]:
    """What every event amounts to on the device; None for events that are no operations.

    A fused kernel stands at the last operation it replaces. Only events from ``start`` to before
    ``stop`` are lowered; earlier ones tell how large storages are.

    Raises:
        InputError: from ``lower``.
    """
    lowered: list[Lowered | None] = [None] * len(events)
    sizes: dict[int, int] = {}
    fusion = Fusion(sizes)
    depth = 0
    for event in events[:start]:
        if isinstance(event, Alloc | Resize):
            sizes[event.storage] = event.bytes
    for index, event in enumerate(events[start:stop], start):
        closed: dict[int, Lowered] = {}
        if isinstance(event, Op):
            alone = lower(event)
            lowered[index] = alone
            if depth and alone is not FREE:
                if fusion.stream not in (None, event.stream):
                    closed = fusion.rest()
                if _fuses(event, alone):
                    fusion.add(index, event, alone)
                else:
                    closed |= fusion.before(event)
        elif isinstance(event, Alloc | Resize):
            sizes[event.storage] = event.bytes
            if depth:
                fusion.born.add(event.storage)
        elif not depth:
            depth = int(isinstance(event, Begin) and event.kind == FUSED)
        elif isinstance(event, Free):
            fusion.freed.add(event.storage)
        elif isinstance(event, Begin | End):
            if event.kind == FUSED:
                depth += 1 if isinstance(event, Begin) else -1
            if not depth:
                closed = fusion.rest()
        elif not isinstance(event, HostGap | Site):
            closed = fusion.rest()
        for place, what in closed.items():
            lowered[place] = what
    for place, what in fusion.rest().items():
        lowered[place] = what
    return lowered


def _fuses(op: Op, alone: Lowered) -> bool:
    if is_kernel_of_its_own(op.name) or alone.transfer_bytes or alone.estimated:
        return False
    return all(isinstance(kernel, Streaming) for kernel in alone.kernels)
