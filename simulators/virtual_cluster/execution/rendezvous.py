"""The rendezvous of a collated job, in which one rank of each class is played.

It stands for its members wherever they communicate. A collective is one task on the streams of all
classes among its members. A send of one class's rank is received by the rank that plays the
receiver's class, as the same event of its trace.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.replay.priced import PART_INDEX
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.virtual_cluster.traces.collate.collated import Collated, as_far
from trainscout.simulators.virtual_cluster.traces.collate.placement import Family
from trainscout.simulators.virtual_cluster.traces.events import Collective, PointToPoint
from trainscout.simulators.virtual_cluster.walk.communicators import (
    UNNAMED,
    communicator_of,
    levels_crossed,
    narrowed,
    part_of,
)
from trainscout.simulators.virtual_cluster.walk.rendezvous import SEND_RECV, Call, RendezvousTable

from .program import WIRE, Contents, Program

# Rank, the name it has for a communicator, and its peer there.
_End = tuple[int, str, int]


@dataclass(frozen=True)
class GroupOf:
    """A communicator of a played rank: equal ``key`` on all ``classes`` that are members."""

    key: int
    part: int
    classes: tuple[int, ...]
    communicator: ir.Communicator


@dataclass
class JobRendezvous:
    """Everything that more than one rank takes part in."""

    job: Collated
    cluster: Cluster
    program: Program
    contents: Contents
    # Whether transfers are to share links: then prices are those of one that shares none.
    shares_links: bool = False
    communicators: dict[str, ir.Communicator] = field(default_factory=dict)
    _table: RendezvousTable[int] = field(default_factory=lambda: RendezvousTable(checked=True))
    # By the task of a communication that shares links, the ranks of every one it stands for.
    ends: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    _ends_known: dict[tuple[int, str, tuple[str, int] | None], tuple[tuple[int, ...], ...]] = (
        field(default_factory=dict)
    )
    # By the task of a collective, the communicator it is priced on.
    _priced_on: dict[int, str] = field(default_factory=dict)
    _keys: dict[tuple[Family, tuple[int, ...]], int] = field(default_factory=dict)
    _groups: dict[tuple[int, str], GroupOf] = field(default_factory=dict)
    _receivers: dict[_End, _End] = field(default_factory=dict)
    _crossing: dict[_End, int] = field(default_factory=dict)

    def group(self, rank: int, name: str) -> GroupOf:
        """The communicator a played rank calls ``name``."""
        found = self._groups.get((rank, name))
        if found is None:
            found = self._groups[rank, name] = self._new_group(rank, name)
        return found

    def _new_group(self, rank: int, name: str) -> GroupOf:
        family = self.job.group_names(rank)[name]
        members = self.job.group(rank, name)
        classes = tuple(sorted({self.job.class_of_rank[member] for member in members}))
        key = self._keys.setdefault((family, classes), len(self._keys))
        collnet = self.job.collnet(rank, name)
        communicator = communicator_of(f"group {key}", members, self.cluster, collnet=collnet)
        if self.shares_links:
            communicator = replace(communicator, siblings=1)
        return GroupOf(key, PART_INDEX[part_of(family.description)], classes, communicator)

    def groups_of(self, rank: int) -> list[ir.Communicator]:
        """The communicators a rank has communicated on."""
        return [group.communicator for (of, _), group in self._groups.items() if of == rank]

    def join(self, rank: int, event: Collective | PointToPoint) -> int:
        """The task of a communication that a rank takes part in."""
        group = self.group(rank, event.group)
        if isinstance(event, Collective):
            key: Hashable = (group.key, event.sequence)
            return self._arrive(key, rank, group.classes, event, rank, group.communicator)
        end = (rank, event.group, event.peer)
        key = (*(self._receiver(end) if event.kind == "send" else end), event.sequence)
        between = narrowed(group.communicator, self._crossed(rank, event))
        return self._arrive(key, event.kind, ("send", "recv"), event, rank, between)

    def _arrive(
        self,
        key: Hashable,
        who: Hashable,
        members: tuple[Hashable, ...],
        event: Collective | PointToPoint,
        rank: int,
        communicator: ir.Communicator,
    ) -> int:
        call = Call.of(event)

        def task() -> int:
            made = self.program.task(WIRE, self.group(rank, event.group).part)
            if self.shares_links:
                self.ends[made] = self._ends(rank, event)
            self.communicators.setdefault(communicator.name, communicator)
            if call.kind == SEND_RECV:
                self._price(made, call, communicator.name)
            else:
                self._priced_on[made] = communicator.name
            return made

        return self._table.arrive(key, who, call, members, task).task

    def _ends(self, rank: int, event: Collective | PointToPoint) -> tuple[tuple[int, ...], ...]:
        """Between whom a communication of a played rank goes, and of all that it stands for."""
        name = event.group
        peer = (event.kind, event.peer) if isinstance(event, PointToPoint) else None
        if (known := self._ends_known.get((rank, name, peer))) is not None:
            return known
        found: dict[tuple[int, ...], None] = {}
        for each in self.job.ranks_of_class(rank):
            members = self.job.group(each, name)
            if isinstance(event, PointToPoint):
                other = self.job.peer(each, event)
                members = (each, other) if event.kind == "send" else (other, each)
            found[members] = None
        ends = self._ends_known[rank, name, peer] = tuple(found)
        return ends

    def price_collectives(self) -> None:
        """Once all members have come, and the largest call of each collective is known."""
        for each in self._table:
            if each.task in self._priced_on:
                self._price(each.task, each.call, self._priced_on[each.task])

    def _price(self, task: int, call: Call, communicator: str) -> None:
        self.program.content[task] = self.contents.communication(call.operation(communicator))

    @property
    def unmatched_transfers(self) -> int:
        """Sends nobody receives and receives of what nobody sends, in what is played."""
        return sum(each.call.kind == SEND_RECV and bool(each.missing) for each in self._table)

    @property
    def unnamed_groups(self) -> int:
        """Process groups that the script gave no description, of what is played."""
        named = {rank: self.job.group_names(rank) for rank, _ in self._groups}
        return len(
            {
                group.key
                for (rank, name), group in self._groups.items()
                if named[rank][name].description == UNNAMED
            }
        )

    def _crossed(self, rank: int, event: PointToPoint) -> int:
        """How far from this peer any rank that this one stands for is: what follows waits for the
        slowest."""
        end = (rank, event.group, event.peer)
        if end not in self._crossing:
            pairs = self._ends(rank, event)
            self._crossing[end] = max(levels_crossed(a, b, self.cluster) for a, b in pairs)
        return self._crossing[end]

    def _receiver(self, end: _End) -> _End:
        """Played rank, its name of the communicator, and the peer it receives from there."""
        if end not in self._receivers:
            rank, group, peer = end
            played = self.job.class_of_rank[peer]
            family = self.job.group_names(rank)[group]
            names = self.job.group_names(played)
            name = next(name for name, each in names.items() if each == family)
            # In the trace played for the receiver the sender has another number.
            here, there = self.job.group(rank, group), self.job.group(played, name)
            self._receivers[end] = played, name, as_far(here, peer, rank, there, played)
        return self._receivers[end]
