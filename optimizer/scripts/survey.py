"""Every launch of a script's space, known before the first is run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from trainscout.optimizer.scripts.space import ScriptSpace
from trainscout.optimizer.space import Indices
from trainscout.optimizer.survey import Counts, Points, Rejected, RowOf, Survey, reasons_of
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.launch import Launch
from trainscout.simulators.predictor.question.recipe import Recipe

MAX_POINTS = 200_000
# What must be known of a launch for a tactic's premise to be about it: fields of ``means``, and
# numbers that are ``given``.
_TACTICS_READ = {
    "recompute_oom": {"recompute", "pp", "num_layers"},
    "sequence_parallel_oom": {"sp", "tp"},
    "micro_batches": {"micro_batch", "tp", "pp", "global_batch_size"},
    "micro_batch_oom": {"micro_batch"},
    "virtual_stages_oom": {"vpp", "pp", "num_layers"},
    "sharding_oom": {"zero_stage", "pp"},
}


@dataclass(frozen=True)
class LaunchSurvey(Survey):
    """A survey whose recipes are launches. Points that start the very same are one."""

    point_by_launch: dict[Launch, Indices] = field(default_factory=dict)

    def point_of(self, recipe: Recipe) -> Indices:
        return self.point_by_launch[cast(Launch, recipe)]


def survey_launches(space: ScriptSpace) -> LaunchSurvey:
    """Fill in every distinct point of a space.

    Raises:
        InputError: when there are too many points, or none that can be launched.
    """
    if space.size > MAX_POINTS * 10:
        raise InputError("knobs", space.name, f"has {space.size:,} raw points", "fewer choices")
    launches: dict[tuple[Any, ...], int] = {}
    rows, kept, refused = [], [], []
    made: list[Launch] = []
    counts = Counts()
    for point in _points(space):
        launch, violation = space.candidate(point)
        if violation is not None:
            refused.append(point)
            counts.reject(violation.rule, 1, violation)
            continue
        assert isinstance(launch, Launch)
        started = (launch.start, launch.traced, launch.micro_batches, launch.linear)
        row = launches.setdefault(started, len(made))
        if row == len(made):
            made.append(launch)
        rows.append(row)
        kept.append(point)
    if not made:
        raise _nothing_to_launch(space, counts.rejected)
    names, resolved = _distinguished(
        space, made, [space.point(kept[rows.index(row)]) for row in range(len(made))]
    )
    points = np.array(kept, dtype=np.int16)
    numbers = np.array(rows, dtype=np.int64)
    _, first = np.unique(numbers, return_index=True)
    own = points[first]
    shape = (len(refused), len(space.knobs))
    return LaunchSurvey(
        space=replace(space, distinguished_by=names),
        # Search reads recipes one by one.
        recipes=cast(RecipeTable, resolved),
        points=Points(own),
        row_of=RowOf(space, points, numbers),
        rejected=counts.rejected,
        rejected_points=Points(np.array(refused, dtype=np.int16).reshape(shape)),
        rewritten={},
        point_by_launch={launch: tuple(map(int, own[row])) for row, launch in enumerate(resolved)},
    )


def tactics_for(space: ScriptSpace, names: Sequence[str]) -> tuple[str, ...]:
    """The tactics whose premise is about these launches, as far as the user said what is what."""
    known = {*space.means, *space.script_question.given}
    return tuple(name for name in names if name in _TACTICS_READ and known >= _TACTICS_READ[name])


def _points(space: ScriptSpace) -> list[Indices]:
    """The distinct points that meet the constraints, in order."""
    found = []
    for indices in itertools.product(*(range(len(knob.choices)) for knob in space.knobs)):
        if space.holds(indices):
            found.append(indices)
            if len(found) > MAX_POINTS:
                problem = f"has more than {MAX_POINTS:,} points"
                raise InputError("knobs", space.name, problem, "fewer choices")
    return found


def _distinguished(
    space: ScriptSpace, launches: Sequence[Launch], points: Sequence[dict[str, Any]]
) -> tuple[tuple[str, ...], tuple[Launch, ...]]:
    """As few knobs without a meaning as distinguish the launches, next to their meaning (none that
    follows from the others, so that a tactic finds a launch's twins), and launches with them."""
    meant = set(space.means.values())
    names = [knob.name for knob in space.knobs if knob.name not in meant]
    for name in list(names):
        fewer = [each for each in names if each != name]
        keys = {
            (launch, tuple(point[each] for each in fewer))
            for launch, point in zip(launches, points, strict=True)
        }
        if len(keys) == len(launches):
            names = fewer
    resolved = tuple(
        replace(launch, settings=tuple((name, point[name]) for name in names))
        for launch, point in zip(launches, points, strict=True)
    )
    return tuple(names), resolved


def _nothing_to_launch(space: ScriptSpace, rejected: dict[str, Rejected]) -> InputError:
    if not rejected:
        texts = "; ".join(each.text for group in space.constraints for each in group)
        return InputError("constraints", texts, "no combination of the knobs meets them")
    total = sum(entry.count for entry in rejected.values())
    problem = f"fits none of the {total} combinations of knobs: {reasons_of(rejected.items())}"
    allowed = "another world size, or other choices"
    return InputError("--world-size", space.script_question.world_size, problem, allowed)
