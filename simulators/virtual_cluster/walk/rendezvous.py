"""Communications that several ranks come to: collectives, and sends with their receives.

Each rank comes with its own call. The first to come makes what the others join; whom a rendezvous
is still missing is known all the time. Which calls of different ranks are one communication, their
``key``, depends on what is known of the job: the caller says.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.virtual_cluster.traces.events import Collective, PointToPoint
from trainscout.simulators.virtual_cluster.traces.lowering.block import wire_dtype

T = TypeVar("T")
SEND_RECV = "send_recv"
# NCCL has no such calls; PyTorch makes them of sends and receives, in which the root's link moves
# what everybody's does when all gather.
_PRICED_AS = {"gather": "all_gather", "scatter": "all_gather"}
# Of these the root, or each member, has other sizes than the rest.
_UNEVEN = {"all_to_all", *_PRICED_AS}
# torch's barrier is an all-reduce of one number.
_BARRIER_BYTES = 4


class MismatchError(RuntimeError):
    """Ranks that communicate with each other disagree on what they do; the message names both."""


@dataclass(frozen=True, slots=True)
class Call:
    """One rank's part in a communication: its kind, and bytes as NCCL counts them."""

    kind: str
    bytes: int
    dtype: str

    @classmethod
    def of(cls, event: Collective | PointToPoint) -> Call:
        if isinstance(event, PointToPoint):
            return cls(SEND_RECV, event.bytes, event.dtype)
        if event.kind == "barrier":
            return cls("all_reduce", _BARRIER_BYTES, event.dtype)
        return cls(event.kind, event.bytes, event.dtype)

    def operation(self, communicator: str) -> ir.Collective | ir.SendRecv:
        """What it is priced as."""
        if self.kind == SEND_RECV:
            return ir.SendRecv(SEND_RECV, self.bytes, communicator)
        kind = _PRICED_AS.get(self.kind, self.kind)
        return ir.Collective(kind, kind, self.bytes, communicator, wire_dtype(self.dtype))


@dataclass(slots=True)
class Rendezvous(Generic[T]):
    """``task`` is what it became in the simulation, ``call`` the largest of its members',
    ``missing`` who has not come yet; ``first`` says who came first, and with what."""

    task: T
    call: Call
    missing: list[Hashable]
    first: str


class RendezvousTable(Generic[T]):
    """The rendezvous of a job, by key: those that somebody is still missing at.

    Args:
        checked: the calls of the whole job were held to each other before. Then whoever comes
            joins, and every rendezvous stays, to be priced when all ranks have been walked.
    """

    def __init__(self, *, checked: bool = False) -> None:
        self._checked = checked
        self._known: dict[Hashable, Rendezvous[T]] = {}

    def __iter__(self) -> Iterator[Rendezvous[T]]:
        return iter(self._known.values())

    def arrive(
        self,
        key: Hashable,
        who: Hashable,
        call: Call,
        members: Iterable[Hashable],
        make: Callable[[], T],
        where: str = "",
    ) -> Rendezvous[T]:
        """One of ``members`` comes with its call, ``make`` makes the task for the first of them.

        Raises:
            MismatchError: when calls do not fit together; ``where`` names this one.
        """
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Rendezvous(make(), call, list(members), where)
        if not self._checked:
            _check(found, who, call, where)
        if call.bytes > found.call.bytes:
            found.call = replace(found.call, bytes=call.bytes)
        if who in found.missing:
            found.missing.remove(who)
        if not found.missing and not self._checked:
            del self._known[key]
        return found


def _check(found: Rendezvous[Any], who: Hashable, call: Call, where: str) -> None:
    first = found.call
    if first.kind != call.kind or (first.bytes != call.bytes and call.kind not in _UNEVEN):
        raise MismatchError(
            f"{found.first} ({first.kind}, {first.bytes} bytes), but {where} "
            f"({call.kind}, {call.bytes} bytes)"
        )
    if who not in found.missing:
        raise MismatchError(f"{where} a second time, or without belonging to it")
