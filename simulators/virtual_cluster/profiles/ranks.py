"""Profiles of several ranks of one job: which files, and what of a collective is waiting."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.profiles.measured import (
    FIELD,
    MeasuredOperation,
    MeasuredProfile,
    measure_profile,
)

SUFFIXES = (".json", ".json.gz")


def read_profiles(field: str, path: Path) -> tuple[MeasuredProfile, ...]:
    """The profile in a file, or those in a folder, one a rank, in order of rank, with collectives
    as long as they took once all ranks were there (as far as these were profiled).

    Raises:
        InputError: naming ``field`` for a place without profiles; as ``measure_profile``; for two
            files of one rank, and for ranks of different jobs.
    """
    if not path.is_dir():
        return (measure_profile(path),)
    files = sorted(each for each in path.iterdir() if each.name.endswith(SUFFIXES))
    if not files:
        raise InputError(field, path, "holds no profiles", "files named .json or .json.gz")
    profiles = sorted(map(measure_profile, files), key=lambda each: each.rank or 0)
    for before, profile in itertools.pairwise(profiles):
        if before.rank == profile.rank:
            problem = f"is of rank {profile.rank}, as {before.path.name} is"
            raise InputError(FIELD, profile.path, problem, "one file a rank")
        if before.world_size != profile.world_size:
            problem = (
                f"is of {profile.world_size} ranks, {before.path.name} of {before.world_size}"
            )
            raise InputError(FIELD, profile.path, problem, "profiles of one job")
    return without_waits(profiles)


def without_waits(profiles: Sequence[MeasuredProfile]) -> tuple[MeasuredProfile, ...]:
    """The same with every collective as short as the rank saw it that came last: who comes
    earlier waits inside its kernel."""
    calls: dict[tuple[object, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, profile in enumerate(profiles):
        for at, operation in enumerate(profile.operations):
            call = operation.call
            # Equal names may be of different groups where the members were not recorded.
            if call is not None and (call.ranks or call.group_size == profile.world_size):
                calls[call.kind, call.group, call.ranks, operation.step][number].append(at)
    operations = [list(profile.operations) for profile in profiles]
    for members in calls.values():
        if len(members) < 2 or len({len(each) for each in members.values()}) > 1:
            continue  # one rank only, or a call of some of them is missing
        for together in zip(*members.values(), strict=True):
            met = [operations[number][at] for number, at in zip(members, together, strict=True)]
            shortest_s = min(each.seconds for each in met)
            for number, at in zip(members, together, strict=True):
                operations[number][at] = _shorter(operations[number][at], shortest_s)
    return tuple(
        replace(profile, operations=tuple(own))
        for profile, own in zip(profiles, operations, strict=True)
    )


def _shorter(operation: MeasuredOperation, seconds: float) -> MeasuredOperation:
    return replace(operation, seconds=seconds)
