"""Which ranks to trace so that a whole job is known.

Replicas do the same: of a job with a pipeline, the first data- and tensor-parallel rank of each
stage will do. The communicators that two ranks set up (the first and the last) tell which ranks
these are, where a pipeline's are called so; else who sends to whom. Without a pipeline rank 0 will
do if the last rank does the same: in a ring under a causal mask it does more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.events import (
    Group,
    Header,
    PointToPoint,
    Trace,
)

from .classes import classes
from .communication import Communicator, communication
from .content import content
from .placement import Family, check_seen, families, is_pipeline, tile

# Ranks of a job so small that all are traced where the first and the last do unlike things.
FEW = 8


@dataclass(frozen=True)
class ChosenRanks:
    """Ranks to trace, and why, in words."""

    ranks: tuple[int, ...]
    why: str


def choose_ranks(world_size: int, set_up: Callable[[int], Iterable[Group]]) -> ChosenRanks:
    """Ask ``set_up(rank)`` for the communicators of rank 0 and, where it is in a pipeline, of the
    last rank, and choose.

    Raises:
        InputError: when the pipelines of the two are not one shifted over the world: then the
            ranks must be given.
    """
    seen: dict[int, dict[Family, Communicator]] = {}
    pipelines = []
    for rank in sorted({0, world_size - 1}):
        seen[rank] = families(_communicators(world_size, rank, set_up(rank)))
        pipelines.append(
            {each for each in seen[rank] if is_pipeline(each) and len(each.offsets) > 1}
        )
        if not pipelines[0]:
            return ChosenRanks((0,), "no group is called a pipeline")
    if any(found != pipelines[0] for found in pipelines):
        shown = " and ".join(_listed(found) for found in pipelines)
        raise _unclear(f"ranks 0 and {world_size - 1} have unlike pipelines: {shown}")
    chosen: dict[tuple[int, ...], Family] = {}
    for family in pipelines[0]:
        try:
            group_of = tile(family, range(world_size))
            check_seen(family, group_of, {rank: each[family] for rank, each in seen.items()})
        except InputError as error:
            raise _unclear(error.problem) from error
        chosen.setdefault(group_of[0], family)
    # Groups that join a pipeline with something else say "pipeline" too, and contain it.
    ranks = min(chosen, key=len)
    if any(not set(ranks) <= set(other) for other in chosen):
        # As where encoders have ranks of their own: whom rank 0 sends to tells.
        return ChosenRanks((0,), f"rank 0 is in several pipelines: {_listed(chosen.values())}")
    family = chosen[ranks]
    return ChosenRanks(ranks, f"{family}: the first rank of each stage")


def further_ranks(traces: Sequence[Trace]) -> ChosenRanks:
    """Ranks to trace beside rank 0 and those that this named before, until there are none, where
    no group is called a pipeline.
    """
    if peers := untraced_peers(traces):
        return ChosenRanks(peers, "those before them send there")
    traced = {trace.header.rank for trace in traces}
    world_size = traces[0].header.world_size
    ends = {0, world_size - 1}
    if traced == {0} != ends:
        return ChosenRanks((world_size - 1,), "does it do what rank 0 does?")
    if traced == ends and not alike(traces):
        others = tuple(range(1, world_size - 1)) if world_size <= FEW else (1,)
        return ChosenRanks(others, "the first and the last do unlike things")
    return ChosenRanks((), "")


def alike(traces: Sequence[Trace]) -> bool:
    """Whether the ranks do the same."""
    return len(set(classes([content(trace) for trace in traces]).first_of.values())) == 1


def untraced_peers(traces: Sequence[Trace]) -> tuple[int, ...]:
    """Ranks that traced ones send to or receive from, as the stages of a pipeline do.

    Not those of a ring, whose members all do the same: they send as often one way round the group
    as they receive from the other. Of two members that says nothing.
    """
    # By communicator and traced member: sends less receives, by how far round the group they go.
    rounds: dict[Communicator, dict[int, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
    peers: dict[Communicator, set[int]] = defaultdict(set)
    for launch in (launch for trace in traces for launch in communication(trace).launches):
        if isinstance(event := launch.event, PointToPoint):
            members = launch.communicator.ranks
            ahead = members.index(event.peer) - members.index(launch.rank)
            step = 1 if event.kind == "send" else -1
            rounds[launch.communicator][launch.rank][step * ahead % len(members)] += step
            peers[launch.communicator].add(event.peer)
    found: set[int] = set()
    for communicator, of_members in rounds.items():
        if len(communicator.ranks) == 2 or any(any(by.values()) for by in of_members.values()):
            found |= peers[communicator]
    return tuple(sorted(found - {trace.header.rank for trace in traces}))


def parse_ranks(option: str, text: str, world_size: int) -> tuple[int, ...]:
    """Ranks that a user names: ``0,24,48`` and ranges ``0-7``, in order.

    Raises:
        InputError: for what is no such list, or ranks outside the world.
    """
    allowed = f"ranks below {world_size}, as 0,24,48 or 0-7"
    ranks: set[int] = set()
    for part in text.split(","):
        ends = part.strip().split("-")
        if len(ends) > 2 or not all(end.isascii() and end.isdigit() for end in ends):
            raise InputError(option, text, f"{part!r} is no rank or range of ranks", allowed)
        first, last = int(ends[0]), int(ends[-1])
        if not first <= last < world_size:
            raise InputError(option, text, f"{part!r} is out of range", allowed)
        ranks.update(range(first, last + 1))
    return tuple(sorted(ranks))


def _communicators(world_size: int, rank: int, groups: Iterable[Group]) -> list[Communicator]:
    header = Header(world_size, rank, 1, "", 0, (), {})
    return list(communication(Trace(header, tuple(groups))).communicators.values())


def _unclear(problem: str) -> InputError:
    return InputError("unique_ranks", "auto", problem, "the ranks to trace, by number")


def _listed(found: Iterable[Family]) -> str:
    return ", ".join(str(family) for family in found) or "none"
