"""Every launchable point of a space, known before the first is simulated.

Checking a recipe costs microseconds and simulating it milliseconds, so the whole space is
checked once. Samplers may then propose anything: a proposal that cannot be launched, or was
tried before, is moved to the nearest point that helps.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from optimizer.space import Indices, Space
from simulators.errors import InputError
from simulators.job import Recipe
from simulators.validity import Violation

MAX_POINTS = 1_000_000


@dataclass(frozen=True)
class Rejected:
    """Distinct points broken by one validity rule: how many, and the first as an example."""

    count: int
    example: Violation


@dataclass(frozen=True)
class Survey:
    """The launchable recipes of a space, each with its points.

    ``recipes[row]`` sits at ``points[row]``; ``row_of`` also knows the points that mean the
    same recipe. ``rejected`` counts the other distinct points by validity rule.
    """

    space: Space
    recipes: tuple[Recipe, ...]
    points: tuple[Indices, ...]
    row_of: dict[Indices, int]
    rejected: dict[str, Rejected]
    _coordinates: npt.NDArray[np.float32] = field(repr=False)

    def __len__(self) -> int:
        return len(self.recipes)

    @property
    def distinct_points(self) -> int:
        """Launchable recipes plus rejected points."""
        return len(self) + sum(entry.count for entry in self.rejected.values())

    def nearest(self, indices: Indices, allowed: npt.NDArray[np.bool_] | None = None) -> int:
        """The row closest to a point, among the rows where ``allowed`` is true.

        Distance is the sum over knobs of the index difference as a fraction of the knob's
        range; ties go to the lowest row.
        """
        difference = self._coordinates - _coordinates(self.space, [indices])
        distance = np.abs(difference, out=difference).sum(axis=0)
        if allowed is not None:
            distance[~allowed] = np.inf
        return int(np.argmin(distance))


def survey(space: Space) -> Survey:
    """Check every distinct point of ``space``.

    Raises:
        InputError: when the space is too large to check, or holds no launchable recipe (then
            with the rules that rejected the points).
    """
    rows: dict[Recipe, int] = {}
    points: list[Indices] = []
    row_of: dict[Indices, int] = {}
    rejected: dict[str, Rejected] = {}
    for count, (indices, (candidate, violation)) in enumerate(space.points(), start=1):
        # Conditions leave far fewer points than the product of choices: count what there is.
        if count > MAX_POINTS:
            problem = f"has more than {MAX_POINTS:,} distinct points"
            raise InputError("space", space.name, problem, "fewer knobs or choices")
        if violation is not None:
            before = rejected.get(violation.rule, Rejected(0, violation))
            rejected[violation.rule] = Rejected(before.count + 1, before.example)
            continue
        recipe = _plainest(space, candidate)
        row = rows.setdefault(recipe, len(rows))
        if row == len(points):
            points.append(indices)
        row_of[indices] = row
    if not points:
        raise _nothing_launchable(space, rejected)
    return Survey(space, tuple(rows), tuple(points), row_of, rejected, _coordinates(space, points))


def _coordinates(space: Space, points: list[Indices]) -> npt.NDArray[np.float32]:
    # One row per knob: summing over knobs then runs along memory.
    ranges = np.array([max(1, len(knob.choices) - 1) for knob in space.knobs], dtype=np.float32)
    return np.array(points, dtype=np.float32).T / ranges[:, None]


def _plainest(space: Space, recipe: Recipe) -> Recipe:
    """One spelling for recipes that say the same thing with and without a default."""
    job = space.declared.job(recipe)
    plain = recipe
    if recipe.etp is not None and recipe.etp == recipe.tp:
        plain = dataclasses.replace(plain, etp=None)
    if recipe.recompute_layers == job.largest_chunk:
        plain = dataclasses.replace(plain, recompute_layers=None)
    return plain


def _nothing_launchable(space: Space, rejected: dict[str, Rejected]) -> InputError:
    if not rejected:
        constraints = [each.text for group in space.constraints for each in group]
        return InputError("space.constraints", "; ".join(constraints), "leave no point")
    total = sum(entry.count for entry in rejected.values())
    worst = sorted(rejected.items(), key=lambda item: -item[1].count)
    reasons = "; ".join(
        f"{rule} rejects {entry.count} (e.g. {entry.example.reason})" for rule, entry in worst
    )
    fields = sorted({entry.example.field for entry in rejected.values()})
    return InputError(
        "space",
        space.name,
        f"holds no launchable recipe: all {total} distinct points are invalid: {reasons}",
        f"widen {', '.join(fields)} in the space, or change training.global_batch_size or the "
        "cluster size",
    )
