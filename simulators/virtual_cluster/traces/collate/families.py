"""Communicators of a whole job from those of a few ranks.

Parallel layouts are grids: all tensor-parallel groups of a job, say, are one shifted over the
ranks. So a *family* is a description with the distances between members; shifted copies of it must
tile the ranks that have it exactly, and every group that was seen must be one of the tiles. What
does not tile is refused, never guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.collate.communication import (
    Communicator,
    ranks_text,
)

# Of every rank that has one, the members of its group.
Groups = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Family:
    """Communicators that are one shifted: ``offsets`` of the members from the lowest, in order.

    ``occurrence`` distinguishes those that a rank has several of.
    """

    description: str
    offsets: tuple[int, ...]
    occurrence: int = 0

    def __hash__(self) -> int:
        # Of thousands of members, and asked for often.
        return hash((self.description, self.offsets[-1], len(self.offsets), self.occurrence))

    def __str__(self) -> str:
        number = f" (number {self.occurrence + 1})" if self.occurrence else ""
        return f"{self.description}{number} of {len(self.offsets)}"


def families(communicators: Iterable[Communicator]) -> dict[Family, Communicator]:
    """A rank's communicators by family, in order of creation."""
    seen: Counter[tuple[str, tuple[int, ...]]] = Counter()
    found = {}
    for communicator in communicators:
        lowest = min(communicator.ranks)
        offsets = tuple([rank - lowest for rank in communicator.ranks])
        key = (communicator.description, offsets)
        found[Family(*key, occurrence=seen[key])] = communicator
        seen[key] += 1
    return found


def tile(family: Family, domain: Iterable[int]) -> Groups:
    """The group of every rank of ``domain``, when shifted copies of the family tile it.

    The lowest rank that has no group yet must be the lowest member of its own, so there is at most
    one way.

    Raises:
        InputError: when they do not tile it.
    """
    ranks = sorted(domain)
    allowed = set(ranks)
    group_of: dict[int, tuple[int, ...]] = {}
    for rank in ranks:
        if rank in group_of:
            continue
        members = tuple([rank + offset for offset in family.offsets])
        for member in members:
            if member not in allowed or member in group_of:
                what = "has another group" if member in group_of else "has no such group"
                problem = f"do not tile the ranks: of {ranks_text(members)}, rank {member} {what}"
                raise InputError("communicators", family, problem, "traces of more ranks")
            group_of[member] = members
    return group_of


def distinct(group_of: Groups) -> list[tuple[int, ...]]:
    """Each group once. Members may be thousands, so groups are not compared."""
    return [members for rank, members in group_of.items() if rank == members[0]]


def check_seen(family: Family, group_of: Groups, seen: Mapping[int, Communicator]) -> None:
    """Hold the tiles to the groups that traced ranks have.

    Raises:
        InputError: for a traced rank with another group than its tile.
    """
    for rank, communicator in seen.items():
        if group_of.get(rank) != communicator.ranks:
            tiled = ranks_text(group_of[rank]) if rank in group_of else "none"
            problem = f"rank {rank} has {ranks_text(communicator.ranks)}, by its shape {tiled}"
            raise InputError("communicators", family, problem, "traces of more ranks")
