"""Who meets whom: collectives by communicator and number, sends with their receives."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainscout.simulators.virtual_cluster.live.prices import CommunicationPrice, Prices
from trainscout.simulators.virtual_cluster.live.representation import Representation
from trainscout.simulators.virtual_cluster.live.tasks import Task, Transfer
from trainscout.simulators.virtual_cluster.traces.events import Collective, Group, PointToPoint
from trainscout.simulators.virtual_cluster.traces.lowering.block import collective_bytes


class MismatchError(RuntimeError):
    """Ranks that meet disagree on what they do; the message names both."""


@dataclass(frozen=True)
class Membership:
    """One rank's view of a communicator: its members and the name it is matched by."""

    ranks: tuple[int, ...]
    key: tuple[object, ...]
    simulated: tuple[int, ...]


@dataclass
class _Open:
    """A transfer that not every simulated member has launched yet, ``missing`` those."""

    transfer: Transfer
    first: str
    kind: str
    size: int
    missing: set[int] = field(default_factory=set)


class Meetings:
    """Puts the ranks' launches together into transfers."""

    def __init__(self, representation: Representation, prices: Prices) -> None:
        self._who = representation
        self._prices = prices
        self._open: dict[tuple[object, ...], _Open] = {}

    def join(self, rank: int, group: Group, known: dict[str, Membership]) -> Membership:
        """How ``rank`` takes part in a communicator that came into being.

        Communicators whose members are all simulated are matched by name. Others look different
        on every rank: they are matched by what they are for and whom their members act like, and
        by the order in which the rank made them where that is not unique.
        """
        simulated = self._who.simulated_members(group.ranks)
        if set(group.ranks) == set(simulated):
            return Membership(group.ranks, ("all", group.name), simulated)
        actors = tuple(self._who.stand_in[member] for member in group.ranks)
        alike = ("some", group.description, actors)
        count = sum(
            member.key[:3] == alike
            for name, member in known.items()
            if name != group.name and rank in member.ranks
        )
        return Membership(group.ranks, (*alike, count), simulated)

    def collective(self, task: Task, event: Collective, group: Membership) -> Transfer:
        """Take part in a collective.

        Raises:
            MismatchError: when another member launched something else under the same number.
        """
        kind, size = _as_priced(event)
        key = (*group.key, event.sequence)
        said = f"rank {task.rank} launched {event.kind} number {event.sequence} on {key[1]!r}"
        price = self._prices.communication(kind, size, group.ranks, event.dtype)
        return self._meet(key, task, (kind, size, event.dtype), group, price, said)

    def point_to_point(self, task: Task, event: PointToPoint, group: Membership) -> Transfer:
        """Take part in a send with its receive.

        Raises:
            MismatchError: when the two sides disagree on the size.
        """
        sends = event.kind == "send"
        ends = (task.rank, event.peer) if sends else (event.peer, task.rank)
        actors = tuple(self._who.stand_in[rank] for rank in ends)
        pair = Membership(ends, ("pair",), tuple(sorted(set(actors))))
        # Two ranks that act alike would each be waiting for themselves: the peer's part is the
        # rank's own, its receive from the rank that is as far away on the other side.
        own = () if len(pair.simulated) > 1 else (event.kind,)
        key = ("pair", group.key, *actors, *own, event.sequence)
        said = f"rank {task.rank} launched {event.kind} number {event.sequence} with {event.peer}"
        what = ("send_recv", event.bytes, event.dtype)
        price = self._prices.communication(*what[:2], group.ranks, event.dtype, ends)
        return self._meet(key, task, what, pair, price, said)

    @property
    def unfinished(self) -> list[str]:
        """What was launched by some but not by all who have to."""
        return [
            f"{entry.first}; not yet there: " + ", ".join(map(str, sorted(entry.missing)))
            for entry in self._open.values()
        ]

    def _meet(
        self,
        key: tuple[object, ...],
        task: Task,
        what: tuple[str, int, str],
        group: Membership,
        price: CommunicationPrice,
        said: str,
    ) -> Transfer:
        kind, size, dtype = what
        entry = self._open.get(key)
        if entry is None:
            transfer = Transfer(
                kind=kind,
                bytes=size,
                dtype=dtype,
                ranks=group.ranks,
                expected=len(group.simulated),
                price=price,
            )
            entry = _Open(transfer, said, kind, size, set(group.simulated))
            self._open[key] = entry
        transfer = entry.transfer
        if entry.kind != kind or (entry.size != size and kind != "all_to_all"):
            raise MismatchError(
                f"{entry.first} ({entry.kind}, {entry.size} bytes), but {said} "
                f"({kind}, {size} bytes)"
            )
        if task.rank not in entry.missing:
            raise MismatchError(f"{said} a second time, or without belonging to it")
        if size > transfer.bytes:
            transfer.bytes, transfer.price = size, price
        entry.missing.remove(task.rank)
        transfer.members.append(task)
        if not entry.missing:
            del self._open[key]
        return transfer


def _as_priced(event: Collective) -> tuple[str, int]:
    """The kind and NCCL's size; torch's barrier is an all-reduce of one number."""
    if event.kind == "barrier":
        return "all_reduce", 4
    return event.kind, collective_bytes(event)
