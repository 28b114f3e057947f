"""A stretch of one rank's trace as operations of a workload block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.virtual_cluster.traces import events

from .regions import lower_events

# The precision whose rules of NCCL a dtype follows, by torch's name.
_WIRE_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


def wire_dtype(dtype: str) -> str:
    """A dtype as collectives are priced by; what is not narrow counts as fp32."""
    return _WIRE_DTYPES.get(dtype, "fp32")


def block_ops(
    stretch: Sequence[events.Event], communicators: Mapping[str, str]
) -> list[tuple[int, ir.Op]]:
    """Operations in launch order, each with the index of the event it came from.

    Args:
        stretch: of one rank, in order; those about memory, phases and host time are passed over.
        communicators: dimension (``tp``, ``pp``, ...) of every group's name.

    A collective overlaps the kernels launched after it until somebody waits for it, to the end
    of the stretch when nobody does. A barrier and every place where the host waits become
    ``HostSync``; only the first operation of a batch of sends and receives appears, with the
    bytes of the larger direction.

    Raises:
        InputError: for a group that ``communicators`` does not name.
    """
    ops: list[tuple[int, ir.Op]] = []
    lowered = lower_events(stretch)
    flying: dict[int, int] = {}
    batches: dict[int, int] = {}
    for index, event in enumerate(stretch):
        alone = lowered[index]
        if alone is not None:
            ops += [(index, kernel) for kernel in alone.kernels]
        elif isinstance(event, events.Collective):
            if event.kind == "barrier":
                ops.append((index, ir.HostSync(event.kind)))
                continue
            flying[event.work] = len(ops)
            name = _dimension(communicators, event.group)
            dtype = wire_dtype(event.dtype)
            ops.append((index, ir.Collective(event.kind, event.kind, event.bytes, name, dtype)))
        elif isinstance(event, events.PointToPoint):
            at = None if event.batch is None else batches.get(event.batch)
            if at is not None:
                _widen(ops, at, event.bytes)
                flying[event.work] = at
                continue
            flying[event.work] = len(ops)
            if event.batch is not None:
                batches[event.batch] = len(ops)
            name = _dimension(communicators, event.group)
            ops.append((index, ir.SendRecv(event.kind, event.bytes, name)))
        elif isinstance(event, events.WorkWait):
            if event.work in flying:
                _overlap(ops, flying.pop(event.work))
            if event.blocks_host:
                ops.append((index, ir.HostSync("work_wait")))
        elif isinstance(event, events.ValueRead):
            ops.append((index, ir.HostSync(event.operation)))
        elif isinstance(event, events.Synchronise):
            ops.append((index, ir.HostSync("synchronise")))
    for at in flying.values():
        _overlap(ops, at)
    return ops


def _dimension(communicators: Mapping[str, str], group: str) -> str:
    if group not in communicators:
        raise InputError("trace.collective.group", group, "is not known", communicators)
    return communicators[group]


def _widen(ops: list[tuple[int, ir.Op]], at: int, size: int) -> None:
    """A batch's transfers run at the same time: the largest counts."""
    index, op = ops[at]
    assert isinstance(op, ir.SendRecv)
    if size > op.bytes:
        ops[at] = index, replace(op, bytes=size)


def _overlap(ops: list[tuple[int, ir.Op]], at: int) -> None:
    """Count the kernels between a communication and the one who waits for it."""
    index, op = ops[at]
    beside = sum(isinstance(later, ir.Kernel) for _, later in ops[at + 1 :])
    assert isinstance(op, ir.Collective | ir.SendRecv)
    ops[at] = index, replace(op, overlaps=beside)
