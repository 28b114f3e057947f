"""Every launchable point of a space, known before the first is simulated.

Checking a recipe costs a microsecond (``optimizer.enumeration``) and simulating it milliseconds,
so the whole space is checked once. Samplers may then propose anything: a proposal that cannot be
launched, or was tried before, is moved to the nearest point that helps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from trainscout.optimizer.enumeration import Block, blocks
from trainscout.optimizer.expressions import Expression
from trainscout.optimizer.space import Indices, Space
from trainscout.optimizer.union import parts_of
from trainscout.pruning.equivalence import canonicalize
from trainscout.pruning.launchable import JobOf, Rejected, find_launchable
from trainscout.pruning.recipe_table import Mask, RecipeTable, Rows, TableBuilder, recipe_keys
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.recipe import RECIPE_DEFAULTS, Recipe
from trainscout.simulators.predictor.question.validity import Violation, why_invalid, would_do

MAX_POINTS = 20_000_000
# Points are numbered by 64-bit ranks.
_MAX_RAW_POINTS = 1 << 62
# Combinations of values looked at to say which constraint nothing meets.
_MOST_TRIED = 100_000


class Points(Sequence[Indices]):
    """Points as rows of an array, shape (points, knobs)."""

    def __init__(self, indices: npt.NDArray[np.int16]) -> None:
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, row: int) -> Indices: ...
    @overload
    def __getitem__(self, row: slice) -> list[Indices]: ...
    def __getitem__(self, row: int | slice) -> Indices | list[Indices]:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        return tuple(self.indices[row].tolist())


class RowOf(Mapping[Indices, int]):
    """The row of each launchable point, by its rank in the space."""

    def __init__(self, space: Space, points: npt.NDArray[np.int16], rows: Rows) -> None:
        self._weights = _weights(space)
        ranks = _ranks(space, points)
        self._order = np.argsort(ranks, kind="stable")
        self._ranks, self._rows = ranks[self._order], rows[self._order]
        self._points = Points(points)

    def __getitem__(self, point: Indices) -> int:
        rank = sum(weight * index for weight, index in zip(self._weights, point, strict=True))
        place = int(np.searchsorted(self._ranks, rank))
        if place == len(self._ranks) or self._ranks[place] != rank:
            raise KeyError(point)
        return int(self._rows[place])

    def __iter__(self) -> Iterator[Indices]:
        return (self._points[place] for place in self._order.tolist())

    def __len__(self) -> int:
        return len(self._rows)


def _weights(space: Space) -> list[int]:
    """What each knob's index counts for in the rank of a point."""
    sizes = [len(knob.choices) for knob in space.knobs]
    return [math.prod(sizes[knob + 1 :]) for knob in range(len(sizes))]


def _ranks(space: Space, points: npt.NDArray[np.int16]) -> Rows:
    # Knob by knob: all points as 64-bit numbers would be the most of a large survey's memory.
    ranks = np.zeros(len(points), dtype=np.int64)
    for knob, weight in enumerate(_weights(space)):
        ranks += points[:, knob] * np.int64(weight)
    return ranks


class Checked(NamedTuple):
    """Points of a block that can be launched: which (``valid``), their canonical recipes, and by
    rule which of all points are rejected (and why the first is) and rewritten."""

    valid: Mask
    recipes: RecipeTable
    rejected: dict[str, tuple[Mask, Violation]]
    rewritten: dict[str, Mask]


@dataclass
class Counts:
    """How many points each rule rejected, with an example, and rewrote."""

    rejected: dict[str, Rejected] = field(default_factory=dict)
    rewritten: dict[str, int] = field(default_factory=dict)

    def add(self, checked: Checked, weights: Rows) -> None:
        """Points of which each stands for ``weights``."""
        for rule, (mask, why) in checked.rejected.items():
            self.reject(rule, int(weights[mask].sum()), why)
        for rule, mask in checked.rewritten.items():
            self.rewrite(rule, int(weights[mask].sum()))

    def reject(self, rule: str, count: int, why: Violation) -> None:
        before = self.rejected.get(rule, Rejected(0, why))
        if count:
            self.rejected[rule] = Rejected(before.count + count, before.example)

    def rewrite(self, rule: str, count: int) -> None:
        if count:
            self.rewritten[rule] = self.rewritten.get(rule, 0) + count


@dataclass
class Degrees:
    """Of the recipes of one (TP, PP): how many, how many of them may fit, and their least loss and
    bytes by bounds."""

    recipes: int = 0
    may_fit: int = 0
    loss: float = math.inf
    used_bytes: float = math.inf


def count_degrees(
    known: dict[tuple[int, int], Degrees],
    table: RecipeTable,
    recipes: Rows,
    may_fit: Rows,
    losses: npt.NDArray[np.float64],
    used_bytes: Rows,
) -> None:
    """Add to what is ``known`` of each (TP, PP) the rows of a table, which stand for so many
    ``recipes`` each."""
    groups = table.distinct(("tp", "pp"))
    size = len(groups.first)
    least, used = np.full((2, size), np.inf)
    np.minimum.at(least, groups.of, losses)
    np.minimum.at(used, groups.of, used_bytes)
    counts = np.bincount(groups.of, weights=recipes, minlength=size)
    fitting = np.bincount(groups.of, weights=may_fit, minlength=size)
    for group, row in enumerate(groups.first.tolist()):
        found = known.setdefault((table.value("tp", row), table.value("pp", row)), Degrees())
        found.recipes += int(counts[group])
        found.may_fit += int(fitting[group])
        found.loss = min(found.loss, float(least[group]))
        found.used_bytes = min(found.used_bytes, float(used[group]))


@dataclass
class LeftOut:
    """What is known of the points of a space where a survey lists only recipes that may be among
    what an exact search proves (``optimizer.sifted``).

    ``points`` can be launched, and mean ``recipes`` different ones, of which ``out_of_memory`` are
    known to be that, and ``unlisted`` were ruled out together with others of their passes.
    """

    points: int = 0
    recipes: int = 0
    unlisted: int = 0
    out_of_memory: int = 0
    counts: Counts = field(default_factory=Counts)
    degrees: dict[tuple[int, int], Degrees] = field(default_factory=dict)


INTERRUPTED = "the search was interrupted"


@dataclass(frozen=True)
class Survey:
    """The launchable recipes of a space, each with its points.

    ``recipes[row]`` sits at ``points[row]``; ``row_of`` also knows the points that mean the
    same recipe. ``rejected`` counts the other distinct points by validity rule, and
    ``rewritten`` the launchable ones by the rule that gave them another's spelling.
    """

    space: Space
    recipes: RecipeTable
    points: Points
    row_of: RowOf
    rejected: dict[str, Rejected]
    rejected_points: Points = field(repr=False)
    rewritten: dict[str, int]
    left_out: LeftOut | None = None
    """Where not all recipes are listed, what is known of all."""
    why_sampled: str | None = None
    """Where only some points are listed, because nothing could be proved of all, why
    (``INTERRUPTED``: nothing but what was simulated by then)."""
    first: tuple[int, ...] = ()
    """Rows to try first."""

    def __len__(self) -> int:
        return len(self.recipes)

    @property
    def num_recipes(self) -> int:
        """Launchable recipes, those that are not listed among them."""
        return len(self) if self.left_out is None else self.left_out.recipes

    @property
    def launchable_points(self) -> int:
        return len(self.row_of) if self.left_out is None else self.left_out.points

    @property
    def distinct_points(self) -> int:
        """Launchable recipes plus rejected points."""
        return self.num_recipes + sum(entry.count for entry in self.rejected.values())

    @property
    def equal_points(self) -> int:
        """Launchable points that mean the same as another one."""
        return self.launchable_points - self.num_recipes

    def point_of(self, recipe: Recipe) -> Indices:
        """Where one of ``recipes`` lies.

        Raises:
            KeyError: for a recipe that is not among them.
        """
        keys, order = self._recipe_keys
        key = recipe_keys(RecipeTable.of([recipe]), self.recipes)[0]
        for place in range(int(np.searchsorted(keys, key)), len(keys)):
            row = int(order[place])
            if keys[place] != key:
                break
            if self.recipes[row] == recipe:
                return self.points[row]
        raise KeyError(recipe)

    @cached_property
    def _recipe_keys(self) -> tuple[npt.NDArray[np.uint64], Rows]:
        keys = recipe_keys(self.recipes, self.recipes)
        order = np.argsort(keys, kind="stable")
        return keys[order], order

    @cached_property
    def _coordinates(self) -> npt.NDArray[np.float32]:
        return _coordinates(self.space, self.points.indices)

    def nearest(self, indices: Indices, allowed: npt.NDArray[np.bool_] | None = None) -> int:
        """The row closest to a point, among the rows where ``allowed`` is true.

        Distance is the sum over knobs of the index difference as a fraction of the knob's
        range; ties go to the lowest row.
        """
        distance = np.zeros(len(self), dtype=np.float32)
        apart = np.empty_like(distance)
        # Knob by knob: what one adds stays in a processor's cache.
        wanted = _coordinates(self.space, np.array([indices]))
        for column, own in zip(self._coordinates, wanted, strict=True):
            np.abs(np.subtract(column, own, out=apart), out=apart)
            distance += apart
        if allowed is not None:
            distance[~allowed] = np.inf
        return int(np.argmin(distance))


def require_ranks(space: Space) -> None:
    """Refuse a space whose points have no 64-bit ranks."""
    if space.size > _MAX_RAW_POINTS:
        problem = f"has {space.size:,} raw points"
        raise InputError("space", space.name, problem, "fewer knobs or choices")


def survey(space: Space, points: Iterable[Block] | None = None) -> Survey:
    """Check every distinct point of ``space``, which ``points`` are where they are known.

    Raises:
        InputError: when the space is too large to check, or holds no launchable recipe (then
            with the rules that rejected the points).
    """
    require_ranks(space)
    builder, counts = TableBuilder(), Counts()
    kept, refused = [], []
    count = 0
    for block in blocks(space) if points is None else points:
        # Conditions leave far fewer points than the product of choices: count what there is.
        count += len(block.indices)
        if count > MAX_POINTS:
            problem = f"has more than {MAX_POINTS:,} distinct points"
            raise InputError("space", space.name, problem, "fewer knobs or choices")
        checked = check(block, space.question.job)
        builder.add(checked.recipes)
        kept.append(block.indices[checked.valid])
        refused.append(block.indices[~checked.valid])
        counts.add(checked, np.ones(len(block.indices), dtype=np.int64))
    if not builder.size:
        raise nothing_launchable(space, counts.rejected)
    recipes = builder.table()
    all_points = np.concatenate(kept)
    rows, first = _rows_by_first(recipes)
    if len(first) == len(all_points):
        own_points = all_points
    else:
        recipes, own_points = recipes.take(first), all_points[first]
    return Survey(
        space=space,
        recipes=recipes,
        points=Points(own_points),
        row_of=RowOf(space, all_points, rows),
        rejected=counts.rejected,
        rejected_points=Points(np.concatenate(refused)),
        rewritten=counts.rewritten,
    )


def check(block: Block, job_of: JobOf, without: Collection[str] = ()) -> Checked:
    """What becomes of a block's points, as far as rules say that read no field of ``without``."""
    rows = np.flatnonzero(block.whole)
    recipes = block.recipes.take(rows)
    valid, broken = find_launchable(recipes, job_of, without)
    canonical, changes = canonicalize(recipes.take(valid), job_of, without)

    def of_block(some: Rows, mask: Mask) -> Mask:
        found = np.zeros(len(block.indices), dtype=np.bool_)
        found[some] = mask
        return found

    rejected = dict(block.broken)
    rejected |= {rule: (of_block(rows, mask), why) for rule, (mask, why) in broken.items()}
    rewritten = {rule: of_block(rows[valid], mask) for rule, mask in changes.items()}
    return Checked(of_block(rows, valid), canonical, rejected, rewritten)


def listed_survey(
    space: Space,
    points: npt.NDArray[np.int16],
    recipes: RecipeTable,
    left_out: LeftOut | None = None,
) -> Survey:
    """The survey of some points only, and what is known of the others."""
    counts = Counts() if left_out is None else left_out.counts
    order = np.argsort(_ranks(space, points), kind="stable")
    points, recipes = points[order], recipes.take(order)
    _, first = _rows_by_first(recipes)
    points, recipes = points[first], recipes.take(first)
    return Survey(
        space=space,
        recipes=recipes,
        points=Points(points),
        row_of=RowOf(space, points, np.arange(len(points))),
        rejected=counts.rejected,
        rejected_points=Points(points[:0]),
        rewritten=counts.rewritten,
        left_out=left_out,
    )


def _rows_by_first(table: RecipeTable) -> tuple[Rows, Rows]:
    """Equal recipes share a row, numbered as they first appear; and where each first does."""
    found = table.distinct(tuple(table.columns))
    order = np.argsort(found.first, kind="stable")
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    return number[found.of], found.first[order]


def _coordinates(space: Space, points: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
    # One row per knob: summing over knobs then runs along memory.
    ranges = np.array([max(1, len(knob.choices) - 1) for knob in space.knobs], dtype=np.float32)
    return np.ascontiguousarray(points.T).astype(np.float32) / ranges[:, None]


def _can_hold(constraint: Expression, space: Space) -> bool:
    """Whether some values of the knobs it reads, whatever their conditions, meet a constraint;
    true as well where there are too many values to try."""
    values = {
        knob.name: (*knob.choices, *((knob.otherwise,) if knob.when is not None else ()))
        for knob in space.knobs
        if knob.name in constraint.names
    }
    if math.prod(map(len, values.values())) > _MOST_TRIED:
        return True
    quantities = space.question.quantities
    return any(
        constraint.holds({**quantities, **dict(zip(values, each, strict=True))})
        for each in itertools.product(*values.values())
    )


def reasons_of(rejected: Iterable[tuple[str, Rejected]]) -> str:
    """How many points each rule rejects, and why one of them."""
    return "; ".join(
        f"{rule} rejects {entry.count} (e.g. {entry.example.reason})" for rule, entry in rejected
    )


def nothing_launchable(space: Space, rejected: dict[str, Rejected]) -> InputError:
    """The refusal of a space without a launchable recipe."""
    parts = [part for part, _ in parts_of(space)]
    if not rejected:
        stated: dict[str, set[Any]] = {}
        for part in parts:
            own = {knob.name: knob.choices for knob in part.knobs} if part is space else {}
            for name, choices in (own | dict(part.held)).items():
                stated.setdefault(name, set()).update(choices)
        for name, values in sorted(stated.items()):
            if (alone := _impossible(space, name, values)) is not None:
                return alone
        if held := sorted({name for part in parts for name in part.held}):
            problem = "no part of the space has these choices together with the others"
            named = ", ".join(f"space.knobs.{name}" for name in held)
            return InputError(named, "...", problem, "fewer of them, or another framework=")
    if set(rejected) == {"framework"}:
        framework, reason = space.question.framework, rejected["framework"].example.reason
        return InputError("framework", framework.name, reason, "another framework=, or model=")
    if not rejected:
        every = [each for group in space.constraints for each in group]
        impossible = [each for each in every if not _can_hold(each, space)]
        names = {knob.name for knob in space.knobs}
        read = sorted({name for each in impossible or every for name in each.names} & names)
        texts = "; ".join(each.text for each in impossible or every)
        problem = "no choice of the knobs meets it" if impossible else "leave no point together"
        return InputError(
            "space.constraints", texts, problem, f"other choices of {', '.join(read)}"
        )
    total = sum(entry.count for entry in rejected.values())
    worst = sorted(rejected.items(), key=lambda item: -item[1].count)
    reasons = reasons_of(worst)
    fields = sorted({entry.example.field for entry in rejected.values()})
    return InputError(
        "space",
        space.name,
        f"holds no launchable recipe: all {total} distinct points are invalid: {reasons}",
        f"widen {', '.join(fields)} in the space, or change training.global_batch_size or the "
        "cluster size",
    )


def _impossible(space: Space, name: str, values: Collection[Any]) -> InputError | None:
    """The refusal of a degree none of whose choices can be, whatever the others are."""
    refused = None
    for value in sorted(values, key=str):
        if type(value) is not int or name not in RECIPE_DEFAULTS:
            return None
        degree: dict[str, Any] = {name: value}
        job = space.question.job(replace(Recipe(), **degree))
        broken = why_invalid(job)
        if broken is None or broken.field != name:
            return None
        refused = InputError(f"space.knobs.{name}", value, broken.reason, would_do(job, broken))
    return refused
