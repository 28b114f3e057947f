"""Ranks that are not run: which one stands for each, and how a group looks through that.

A job of many ranks has few that differ. A rank that is not run does what its representative
does, at the same time: it arrives at a collective when the representative arrives at its own.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import InputError, require_whole


@dataclass(frozen=True)
class Representation:
    """``simulated`` ranks, ascending; ``stands_for[rank]`` is the simulated one it acts like."""

    world_size: int
    simulated: tuple[int, ...]
    stand_in: tuple[int, ...]

    @classmethod
    def by_neighbours(cls, world_size: int, ranks: Iterable[int]) -> Representation:
        """Every rank acts like a simulated one near it.

        Where blocks of equal size have one simulated rank each, that is the one of its block;
        else the nearest below; below the first, the first. Right where equal ranks are
        neighbours, as the replicas of a pipeline stage are in Megatron's order.

        Raises:
            InputError: for no ranks, one twice, or one outside the world.
        """
        require_whole("--world-size", world_size)
        listed = list(ranks)
        simulated = tuple(sorted(set(listed)))
        if not listed or len(simulated) != len(listed):
            raise InputError("--ranks", listed, "names a rank twice or none", "0,8,16")
        for rank in simulated:
            if not 0 <= rank < world_size:
                raise InputError("--ranks", rank, "is no rank", f"0..{world_size - 1}")
        block, rest = divmod(world_size, len(simulated))
        if not rest and all(rank // block == at for at, rank in enumerate(simulated)):
            nearest = [simulated[rank // block] for rank in range(world_size)]
        else:
            places = (bisect.bisect_right(simulated, rank) - 1 for rank in range(world_size))
            nearest = [simulated[max(0, place)] for place in places]
        return cls(world_size, simulated, tuple(nearest))

    @property
    def everybody(self) -> bool:
        return len(self.simulated) == self.world_size

    def simulated_members(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """The simulated ranks that stand for a group's members, ascending."""
        return tuple(sorted({self.stand_in[rank] for rank in ranks}))

    def copies(self, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Equal groups that none but ranks not run belong to, by shifting this one.

        A group is taken to repeat at the same distance for every rank that its first simulated
        member stands for, wherever all members shifted so are stood for by the same ranks.
        """
        stand_in, inside = self.stand_in, set(ranks)
        lead = next((rank for rank in ranks if stand_in[rank] == rank), ranks[0])
        actors = [stand_in[rank] for rank in ranks]
        found: dict[frozenset[int], tuple[int, ...]] = {}
        for other in range(self.world_size):
            shift = other - lead
            if stand_in[other] != stand_in[lead] or other in inside:
                continue
            moved = tuple(rank + shift for rank in ranks)
            fits = all(0 <= rank < self.world_size for rank in moved)
            if fits and [stand_in[rank] for rank in moved] == actors and not inside & set(moved):
                found.setdefault(frozenset(moved), moved)
        taken: set[int] = set()
        kept = []
        for moved in found.values():
            # Shifts by less than the group's own stride overlap: those are one group seen twice.
            if not taken & set(moved):
                kept.append(moved)
                taken |= set(moved)
        return tuple(kept)
