"""Where ranks meet: collectives of a communicator, sends with their receives.

Only one rank of each class is played; it stands for its members wherever they meet. A collective
is one task on the streams of all classes among its members. A send of one class's rank is received
by the rank that plays the receiver's class, as the same event of its trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainscout.simulators.predictor.question.job import Cluster
from trainscout.simulators.predictor.replay.prices import PART_INDEX
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.virtual_cluster.execution.contents import Contents
from trainscout.simulators.virtual_cluster.execution.groups import (
    communicator_of,
    crosses_domains,
    part_of,
)
from trainscout.simulators.virtual_cluster.execution.program import MARK, WIRE, Lane, Program
from trainscout.simulators.virtual_cluster.traces.collate import Collated, Family
from trainscout.simulators.virtual_cluster.traces.events import Collective, PointToPoint
from trainscout.simulators.virtual_cluster.traces.lowering.block import (
    collective_bytes,
    wire_dtype,
)

# NCCL has no such calls; PyTorch makes them of sends and receives, in which the root's link moves
# what everybody's does when all gather. A barrier sums one number.
_PRICED_AS = {"gather": "all_gather", "scatter": "all_gather", "barrier": "all_reduce"}
_BARRIER_BYTES = 4


@dataclass(frozen=True)
class GroupOf:
    """A communicator of a played rank: equal ``key`` on all classes that meet on it."""

    key: int
    part: int
    communicator: ir.Communicator
    inside: ir.Communicator


@dataclass
class _Met:
    """A collective under construction: its task and the largest call any member made."""

    task: int
    group: GroupOf
    kind: str
    bytes: int
    dtype: str


@dataclass
class Batch:
    """Sends and receives of one call: a stretch of a communicator's stream.

    It is entered at ``entry`` and left at ``exit``, when all transfers have run.
    """

    entry: int
    exit: int
    transfers: int = 0


@dataclass
class Meetings:
    """Everything that more than one rank takes part in."""

    job: Collated
    cluster: Cluster
    program: Program
    contents: Contents
    communicators: dict[str, ir.Communicator] = field(default_factory=dict)
    _keys: dict[tuple[Family, tuple[int, ...]], int] = field(default_factory=dict)
    _groups: dict[tuple[int, str], GroupOf] = field(default_factory=dict)
    _collectives: dict[tuple[int, int], _Met] = field(default_factory=dict)
    _transfers: dict[tuple[int, str, int, int], int] = field(default_factory=dict)
    _receivers: dict[tuple[int, str, int], tuple[int, str, int]] = field(default_factory=dict)
    _crossing: dict[tuple[int, str, int], bool] = field(default_factory=dict)
    _ends: dict[int, set[str]] = field(default_factory=dict)

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
        communicator = communicator_of(f"group {key}", members, self.cluster)
        inside = ir.Communicator(f"group {key} inside", len(members), len(members), 1)
        for each in (communicator, inside):
            self.communicators.setdefault(each.name, each)
        return GroupOf(key, PART_INDEX[part_of(family.description)], communicator, inside)

    def groups_of(self, rank: int) -> list[ir.Communicator]:
        """The communicators a rank has met others on."""
        return [group.communicator for (of, _), group in self._groups.items() if of == rank]

    def collective(self, rank: int, event: Collective) -> int:
        """The task of a collective; the first member that comes to it makes it."""
        group = self.group(rank, event.group)
        size = _BARRIER_BYTES if event.kind == "barrier" else collective_bytes(event)
        met = self._collectives.get((group.key, event.sequence))
        if met is None:
            task = self.program.task(WIRE, group.part)
            kind = _PRICED_AS.get(event.kind, event.kind)
            met = _Met(task, group, kind, size, wire_dtype(event.dtype))
            self._collectives[group.key, event.sequence] = met
        met.bytes = max(met.bytes, size)
        return met.task

    def set_contents(self) -> None:
        """Once all members have come: what each collective has to be priced as."""
        for met in self._collectives.values():
            name = met.group.communicator.name
            op = ir.Collective(met.kind, met.kind, met.bytes, name, met.dtype)
            self.program.content[met.task] = self.contents.communication(op)

    def transfer(self, rank: int, event: PointToPoint) -> int:
        """The task of a send and its receive; the first of both that comes makes it."""
        if event.kind == "send":
            key = (*self._receiver(rank, event), event.sequence)
        else:
            key = (rank, event.group, event.peer, event.sequence)
        task = self._transfers.get(key)
        if task is None:
            group = self.group(rank, event.group)
            communicator = group.communicator if self._crosses(rank, event) else group.inside
            op = ir.SendRecv("send_recv", event.bytes, communicator.name)
            content = self.contents.communication(op)
            task = self._transfers[key] = self.program.task(WIRE, group.part, content)
        self._ends.setdefault(task, set()).add(event.kind)
        return task

    def _crosses(self, rank: int, event: PointToPoint) -> bool:
        """Whether any rank that this one stands for has this peer in another NVLink domain: what
        follows waits for the slowest."""
        known = (rank, event.group, event.peer)
        found = self._crossing.get(known)
        if found is None:
            members = self.job.group(rank, event.group)
            offset = members.index(event.peer) - members.index(rank)
            found = False
            for each in self.job.ranks_of_class(rank):
                others = self.job.group(each, event.group)
                peer = others[(others.index(each) + offset) % len(others)]
                found = found or crosses_domains(each, peer, self.cluster)
            self._crossing[known] = found
        return found

    def _receiver(self, rank: int, event: PointToPoint) -> tuple[int, str, int]:
        """Played rank, its name of the communicator, and the peer it receives from there."""
        known = (rank, event.group, event.peer)
        found = self._receivers.get(known)
        if found is None:
            found = self._receivers[known] = self._find_receiver(rank, event)
        return found

    def _find_receiver(self, rank: int, event: PointToPoint) -> tuple[int, str, int]:
        members = self.job.group(rank, event.group)
        played = self.job.class_of_rank[event.peer]
        family = self.job.group_names(rank)[event.group]
        names = self.job.group_names(played)
        name = next(name for name, each in names.items() if each == family)
        # In the trace played for the receiver the sender has another number, but is as many
        # members further round the communicator.
        offset = members.index(rank) - members.index(event.peer)
        there = self.job.group(played, name)
        return played, name, there[(there.index(played) + offset) % len(there)]

    @property
    def lonely_transfers(self) -> int:
        """Sends nobody receives and receives of what nobody sends, in what is played."""
        return sum(len(ends) == 1 for ends in self._ends.values())

    def open_batch(self, rank: int, lane: Lane, group: GroupOf) -> Batch:
        """Sends and receives that begin together on a communicator's stream."""
        entry = self.program.task(MARK, group.part)
        exit_ = self.program.task(MARK, group.part)
        self.program.append(lane, entry)
        self.program.append(lane, exit_)
        return Batch(entry, exit_)
