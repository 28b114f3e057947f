"""Which transfer a rank's communication is part of, when only some ranks of the job are run."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.virtual_cluster.live.prices import Prices
from trainscout.simulators.virtual_cluster.live.representation import Representation
from trainscout.simulators.virtual_cluster.live.tasks import Task, Transfer
from trainscout.simulators.virtual_cluster.traces.events import Collective, Group, PointToPoint
from trainscout.simulators.virtual_cluster.walk.rendezvous import Call, RendezvousTable


@dataclass(frozen=True)
class Membership:
    """One rank's view of a communicator: its members, the name it is matched by, and whether it
    asked for switches that sum."""

    ranks: tuple[int, ...]
    key: tuple[object, ...]
    simulated: tuple[int, ...]
    collnet: bool = False


class Transfers:
    """Puts the ranks' communications together into transfers."""

    def __init__(self, representation: Representation, prices: Prices) -> None:
        self._who = representation
        self._prices = prices
        self._open: RendezvousTable[Transfer] = RendezvousTable()

    def announce(self, rank: int, group: Group, known: dict[str, Membership]) -> Membership:
        """How ``rank`` takes part in a communicator that came into being.

        Communicators whose members are all simulated are matched by name. Others look different
        on every rank: they are matched by what they are for and whom their members act like, and
        by the order in which the rank made them where that is not unique.
        """
        simulated = self._who.simulated_members(group.ranks)
        if set(group.ranks) == set(simulated):
            return Membership(group.ranks, ("all", group.name), simulated, group.collnet)
        actors = tuple(self._who.stand_in[member] for member in group.ranks)
        alike = ("some", group.description, actors)
        count = sum(
            member.key[:3] == alike
            for name, member in known.items()
            if name != group.name and rank in member.ranks
        )
        return Membership(group.ranks, (*alike, count), simulated, group.collnet)

    def join(
        self, task: Task, event: Collective | PointToPoint, group: Membership, site: str = ""
    ) -> Transfer:
        """The transfer that ``task`` is its rank's part of; ``site`` is where it was launched.

        Raises:
            MismatchError: when another member launched something else under the same number, or
                the two sides of a send disagree on the size.
        """
        call = Call.of(event)
        where = f"rank {task.rank} launched {event.kind} number {event.sequence}"
        if isinstance(event, Collective):
            ends, members = None, group.simulated
            key: tuple[object, ...] = (*group.key, event.sequence)
            where += f" on {group.key[1]!r}"
        else:
            sends = event.kind == "send"
            ends = (task.rank, event.peer) if sends else (event.peer, task.rank)
            actors = tuple(self._who.stand_in[rank] for rank in ends)
            members = tuple(sorted(set(actors)))
            # Two ranks that act alike would each be waiting for themselves: the peer's part is
            # the rank's own, its receive from the rank that is as far away on the other side.
            own = () if len(members) > 1 else (event.kind,)
            key = ("pair", group.key, *actors, *own, event.sequence)
            where += f" with {event.peer}"
        price = self._prices.communication(call, group.ranks, ends, collnet=group.collnet)

        def transfer() -> Transfer:
            return Transfer(call, ends or group.ranks, len(members), price)

        where += f" at {site}" if site else ""
        found = self._open.arrive(key, task.rank, call, members, transfer, where).task
        if call.bytes > found.call.bytes:
            found.call, found.price = call, price
        found.members.append(task)
        return found

    @property
    def unfinished(self) -> list[str]:
        """What was launched by some but not by all who have to."""
        found = []
        for each in self._open:
            ranks = sorted(rank for rank in each.missing if isinstance(rank, int))
            found.append(f"{each.first}; not yet there: {', '.join(map(str, ranks))}")
        return found
