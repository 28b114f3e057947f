"""Every distinct point of a space, in blocks of columns: nothing is worked out point by point.

A knob's condition, a constraint or a derived field reads few names, so each is evaluated once per
combination of their values (``pruning.recipe_table``) and spread over the points. The points may
also be walked in two parts: what the knobs that some fields depend on choose (``leading``), and
then, of some of those alone, what the others do (``Enumeration.complete``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainscout.optimizer.expressions import Expression, NotWholeError
from trainscout.optimizer.space import Space
from trainscout.optimizer.union import parts_of
from trainscout.pruning.recipe_table import Column, Mask, RecipeTable, Rows, distinct
from trainscout.simulators.predictor.question.recipe import RECIPE_DEFAULTS
from trainscout.simulators.predictor.question.validity import Violation

# Points worked on at once: enough to spread the cost of a call, few enough to fit in the memory.
BLOCK_POINTS = 1 << 17
Indices = NDArray[np.int16]
# The column that says which leading point a whole one is one of.
_LEADING = "leading point"


@dataclass(frozen=True)
class Block:
    """Consecutive points: ``indices[point, knob]``, the recipes they stand for, what knobs and
    derived fields are, by name (``values``), and by rule which points have no value for a derived
    field, and why the first has none (``broken``)."""

    indices: Indices
    recipes: RecipeTable
    values: Mapping[str, Column]
    broken: Mapping[str, tuple[Mask, Violation]]

    @property
    def whole(self) -> Mask:
        """Which points have values for all derived fields."""
        found = np.ones(len(self.indices), dtype=np.bool_)
        for rows, _ in self.broken.values():
            found &= ~rows
        return found

    def take(self, rows: Rows | Mask) -> Block:
        """Some of the points."""
        return Block(
            self.indices[rows],
            self.recipes.take(rows),
            {name: Column(c.values, c.codes[rows]) for name, c in self.values.items()},
            {rule: (wrong[rows], why) for rule, (wrong, why) in self.broken.items()},
        )


def blocks(space: Space) -> Iterator[Block]:
    """The points of ``space`` in order, the last knob varying fastest."""
    for part, as_union in parts_of(space):
        for block in Enumeration(part).blocks():
            yield replace(block, indices=as_union(block.indices))


def some_blocks(space: Space, most: int) -> Iterator[Block]:
    """At most ``most`` points of ``space``, at random but always the same."""
    parts = parts_of(space)
    for part, as_union in parts:
        block = Enumeration(part).some(max(1, most // len(parts)))
        yield replace(block, indices=as_union(block.indices))


def leading(space: Space, fields: Collection[str]) -> Enumeration:
    """The points of a space that is no union, those of its knobs first that decide ``fields``, be
    it by way of expressions; the order of the knobs is else kept."""
    expressions = dict(space.derived)
    conditions = {knob.name: knob.when for knob in space.knobs}
    needed, wanted = set[str](), list(fields)
    while wanted:
        name = wanted.pop()
        if name not in needed:
            needed.add(name)
            read = expressions.get(name) or conditions.get(name)
            wanted += read.names if read is not None else ()
    knobs = sorted(space.knobs, key=lambda knob: knob.name not in needed)
    order = {knob.name: place for place, knob in enumerate(knobs)}
    constraints: list[list[Expression]] = [[] for _ in knobs]
    for each in (each for group in space.constraints for each in group):
        constraints[max(order[name] for name in each.names & set(order))].append(each)
    ordered = replace(
        space, knobs=tuple(knobs), constraints=tuple(tuple(group) for group in constraints)
    )
    return Enumeration(
        ordered,
        sum(knob.name in needed for knob in knobs),
        tuple(each for each in space.derived if each[0] in needed),
        [order[knob.name] for knob in space.knobs],
    )


@dataclass(frozen=True)
class _Points:
    """Values by name so far, one code a point; and the indices of the knobs so far."""

    columns: dict[str, Column]
    indices: Indices

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, rows: Rows | Mask | slice) -> _Points:
        columns = {name: Column(c.values, c.codes[rows]) for name, c in self.columns.items()}
        return _Points(columns, self.indices[rows])


class Enumeration:
    """Walks a space, its first ``depth`` knobs apart from the others.

    Args:
        space: no union.
        depth: how many knobs lead; None: all.
        derived: the derived fields that they decide; None: all.
        places: where each knob of a point is among those of ``space``; None: as there.
    """

    def __init__(
        self,
        space: Space,
        depth: int | None = None,
        derived: tuple[tuple[str, Expression], ...] | None = None,
        places: list[int] | None = None,
    ) -> None:
        self.space = space
        self.depth = len(space.knobs) if depth is None else depth
        self.derived = space.derived if derived is None else derived
        self.places = places
        self.quantities = dict(space.question.quantities)
        self.world = space.question.cluster.num_gpus

    @property
    def open_fields(self) -> set[str]:
        """The recipe fields that the leading knobs leave open."""
        names = {knob.name for knob in self.space.knobs[self.depth :]}
        return (names | {n for n, _ in self.space.derived} - {n for n, _ in self.derived}) & set(
            RECIPE_DEFAULTS
        )

    def blocks(self) -> Iterator[Block]:
        """The points of the leading knobs, the fields that they leave open at their defaults."""
        for points in self.walk(0, self.depth, _Points({}, np.zeros((1, 0), dtype=np.int16))):
            block = self.block(points, self.derived)
            yield block if self.depth < len(self.space.knobs) else self.held(block)

    def some(self, most: int) -> Block:
        """At most ``most`` points: so many at random after each knob."""
        random = np.random.default_rng(0)
        points = _Points({}, np.zeros((1, 0), dtype=np.int16))
        for depth in range(len(self.space.knobs)):
            points = self.extend(depth, points)
            if len(points) > most:
                points = points.take(np.sort(random.choice(len(points), most, replace=False)))
        return self.held(self.block(points, self.space.derived))

    def complete(self, partial: Block) -> Iterator[tuple[Rows, Block]]:
        """The whole points of those that the leading knobs gave, in no certain order; and which of
        those each is one of."""
        most = math.prod(len(knob.choices) for knob in self.space.knobs[self.depth :])
        # What one point is completed to stays together.
        step = max(1, BLOCK_POINTS // most)
        numbers = Column((), np.arange(len(partial.indices)))
        known = _Points({**partial.values, _LEADING: numbers}, partial.indices)
        for start in range(0, len(known), step):
            some = known.take(slice(start, start + step))
            for points in self.walk(self.depth, len(self.space.knobs), some):
                block = self.block(points, self.space.derived)
                if self.places is not None:
                    block = replace(block, indices=block.indices[:, self.places])
                block = self.held(block)
                yield block.values[_LEADING].codes, block

    def walk(self, depth: int, end: int, points: _Points) -> Iterator[_Points]:
        """Extend points by the knobs from ``depth`` to ``end``."""
        if depth == end:
            if len(points):
                yield points
            return
        # The next knob may multiply the points: cut them first.
        step = max(1, BLOCK_POINTS // len(self.space.knobs[depth].choices))
        for start in range(0, len(points), step):
            part = self.extend(depth, points.take(slice(start, start + step)))
            yield from self.walk(depth + 1, end, part)

    def extend(self, depth: int, points: _Points) -> _Points:
        """Points with one more knob, those that break its constraints left out."""
        knob = self.space.knobs[depth]
        count = len(knob.choices)
        values = knob.choices
        matters = np.ones(len(points), dtype=np.bool_)
        elsewhere = 0
        if knob.when is not None:
            when = knob.when
            matters = self.each(points, when, lambda columns: when.holds(columns), np.bool_)
            same = [(type(v), v) == (type(knob.otherwise), knob.otherwise) for v in values]
            elsewhere = same.index(True) if any(same) else count
            values = values if any(same) else (*values, knob.otherwise)
        repeats = np.where(matters, count, 1)
        rows = np.repeat(np.arange(len(points)), repeats)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        codes = np.where(matters[rows], place, elsewhere).astype(np.int32)
        for constraint in self.space.constraints[depth]:
            # Only what it reads is spread: most of the points may not stay.
            read = {
                name: Column(c.values, c.codes[rows])
                for name, c in points.columns.items()
                if name in constraint.names
            }
            some = _Points({**read, knob.name: Column(values, codes)}, place[:, None])
            holds = self.each(some, constraint, constraint.holds, np.bool_)
            rows, place, codes = rows[holds], place[holds], codes[holds]
        grown = points.take(rows)
        indices = np.empty((len(rows), depth + 1), dtype=np.int16)
        indices[:, :depth], indices[:, depth] = grown.indices, place
        return _Points({**grown.columns, knob.name: Column(values, codes)}, indices)

    def each(
        self,
        points: _Points,
        expression: Expression,
        answer: Callable[[Mapping[str, Any]], Any],
        dtype: type,
    ) -> NDArray[Any]:
        """``answer`` for the names that an expression reads, at every point."""
        names = sorted(expression.names & set(points.columns))
        found = distinct(
            [(len(points.columns[name].values), points.columns[name].codes) for name in names],
            len(points),
        )
        answers: NDArray[Any] = np.empty(len(found.first), dtype=dtype)
        for index, row in enumerate(found.first):
            answers[index] = answer({**self.quantities, **_values(points, names, int(row))})
        return answers[found.of]

    def block(self, points: _Points, derived: tuple[tuple[str, Expression], ...]) -> Block:
        """Complete points to recipes."""
        size = len(points)
        fields: dict[str, Column] = {
            name: Column((value,), np.zeros(size, dtype=np.int32))
            for name, value in self.space.constants.items()
        }
        fields |= {name: c for name, c in points.columns.items() if name in RECIPE_DEFAULTS}
        broken = np.zeros(size, dtype=np.bool_)
        rejected: dict[str, tuple[Mask, Violation]] = {}
        if derived:
            points = self.with_dp(points, fields)
        for name, expression in derived:
            column, reasons = self.derive(name, expression, points, broken)
            fields[name] = column
            points = _Points({**points.columns, name: column}, points.indices)
            wrong = (column.codes == 0) & ~broken & (self.dp_of(points) > 0)
            if wrong.any():
                first = int(np.argmax(wrong))
                violation = Violation(f"derived_{name}", name, f"{name}: {reasons[first]}")
                rejected[violation.rule] = wrong, violation
                broken |= wrong
        recipes = RecipeTable(fields, size)
        return Block(points.indices, recipes, points.columns, rejected)

    def held(self, block: Block) -> Block:
        """The points whose fields have the values that are wanted."""
        wanted = np.ones(len(block.indices), dtype=np.bool_)
        for name, allowed in self.space.held.items():
            wanted &= block.recipes.holds(name, allowed.__contains__)
        return block if wanted.all() else block.take(wanted)

    def with_dp(self, points: _Points, fields: Mapping[str, Column]) -> _Points:
        """``dp`` for derived fields to read; 0 where the degrees do not divide the GPUs."""
        table = RecipeTable(fields, len(points))
        found = table.distinct(("tp", "pp", "cp"))
        values = []
        for row in found.first:
            product = math.prod(table.value(name, int(row)) for name in ("tp", "pp", "cp"))
            values.append(self.world // product if self.world % product == 0 else 0)
        column = Column(tuple(values), found.of.astype(np.int32))
        return _Points({**points.columns, "dp": column}, points.indices)

    def dp_of(self, points: _Points) -> NDArray[np.int64]:
        column = points.columns["dp"]
        return np.array(column.values, dtype=np.int64)[column.codes]

    def derive(
        self, name: str, expression: Expression, points: _Points, broken: Mask
    ) -> tuple[Column, dict[int, str]]:
        """A derived field: code 0 is its default, for points where it has no value; and why it
        has none, by the first such point of each combination."""
        known: dict[tuple[type, Any], int] = {}
        reasons: dict[int, str] = {}
        names = sorted((expression.names | {"dp"}) & set(points.columns))
        parts = [(len(points.columns[n].values), points.columns[n].codes) for n in names]
        found = distinct([*parts, (2, broken)], len(points))
        codes = np.zeros(len(found.first), dtype=np.int32)
        for index, row in enumerate(map(int, found.first)):
            values = {**self.quantities, **_values(points, names, row)}
            if not values["dp"] or broken[row]:
                continue
            try:
                value = expression(values)
            except NotWholeError as error:
                reasons[row] = str(error)
                continue
            codes[index] = known.setdefault((type(value), value), len(known) + 1)
        column = Column((RECIPE_DEFAULTS[name], *(value for _, value in known)), codes[found.of])
        return column, reasons


def _values(points: _Points, names: list[str], row: int) -> dict[str, Any]:
    return {name: points.columns[name].values[points.columns[name].codes[row]] for name in names}
