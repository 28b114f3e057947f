"""Every distinct point of a space, in blocks of columns: nothing is worked out point by point.

A knob's condition, a constraint or a derived field reads few names, so each is evaluated once per
combination of their values (``pruning.recipe_table``) and spread over the points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainscout.optimizer.expressions import Expression, NotWholeError
from trainscout.optimizer.space import Space
from trainscout.optimizer.union import UnionSpace
from trainscout.pruning.launchable import Rejected
from trainscout.pruning.recipe_table import Column, Mask, RecipeTable, Rows, distinct
from trainscout.simulators.predictor.question.recipe import RECIPE_DEFAULTS
from trainscout.simulators.predictor.question.validity import Violation

# Points worked on at once: enough to spread the cost of a call, few enough to fit in the memory.
BLOCK_POINTS = 1 << 18
Indices = NDArray[np.int16]


@dataclass(frozen=True)
class Block:
    """Consecutive points: ``indices[point, knob]``, the recipes they stand for, and which of them
    have no value for a derived field (``broken``, counted by rule)."""

    indices: Indices
    recipes: RecipeTable
    broken: Mask
    rejected: dict[str, Rejected]


def blocks(space: Space) -> Iterator[Block]:
    """The points of ``space`` in order, the last knob varying fastest."""
    if isinstance(space, UnionSpace):
        for number, part in enumerate(space.parts):
            for block in blocks(part):
                yield replace(block, indices=space.as_union(number, block.indices))
        return
    yield from _Enumeration(space).from_knob(0, _Points({}, np.zeros((1, 0), dtype=np.int16)))


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


class _Enumeration:
    def __init__(self, space: Space) -> None:
        self.space = space
        self.quantities = dict(space.declared.quantities)
        self.world = space.declared.cluster.num_gpus

    def from_knob(self, depth: int, points: _Points) -> Iterator[Block]:
        """Extend points by the knobs from ``depth`` on."""
        if depth == len(self.space.knobs):
            if len(points):
                yield self.block(points)
            return
        # The next knob may multiply the points: cut them first.
        step = max(1, BLOCK_POINTS // len(self.space.knobs[depth].choices))
        for start in range(0, len(points), step):
            part = self.extend(depth, points.take(slice(start, start + step)))
            yield from self.from_knob(depth + 1, part)

    def extend(self, depth: int, points: _Points) -> _Points:
        """Points with one more knob, those that break its constraints left out."""
        knob = self.space.knobs[depth]
        count = len(knob.choices)
        values = knob.choices
        matters = np.ones(len(points), dtype=np.bool_)
        elsewhere = 0
        if knob.when is not None:
            when = knob.when
            matters = self.each(points, when, lambda given: when.holds(given), np.bool_)
            same = [(type(v), v) == (type(knob.otherwise), knob.otherwise) for v in values]
            elsewhere = same.index(True) if any(same) else count
            values = values if any(same) else (*values, knob.otherwise)
        repeats = np.where(matters, count, 1)
        rows = np.repeat(np.arange(len(points)), repeats)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        extended = points.take(rows)
        codes = np.where(matters[rows], place, elsewhere).astype(np.int32)
        columns = {**extended.columns, knob.name: Column(values, codes)}
        indices = np.column_stack([extended.indices, place.astype(np.int16)])
        grown = _Points(columns, indices)
        for constraint in self.space.constraints[depth]:
            holds = self.each(grown, constraint, constraint.holds, np.bool_)
            if not holds.all():
                grown = grown.take(holds)
        return grown

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

    def block(self, points: _Points) -> Block:
        """Complete points to recipes."""
        size = len(points)
        fields: dict[str, Column] = {
            name: Column((value,), np.zeros(size, dtype=np.int32))
            for name, value in self.space.constants.items()
        }
        fields |= {name: c for name, c in points.columns.items() if name in RECIPE_DEFAULTS}
        broken = np.zeros(size, dtype=np.bool_)
        rejected: dict[str, Rejected] = {}
        if self.space.derived:
            points = self.with_dp(points, fields)
        for name, expression in self.space.derived:
            column, reasons = self.derive(name, expression, points, broken)
            fields[name] = column
            points = _Points({**points.columns, name: column}, points.indices)
            wrong = (column.codes == 0) & ~broken & (self.dp_of(points) > 0)
            if wrong.any():
                first = int(np.argmax(wrong))
                violation = Violation(f"derived_{name}", name, f"{name}: {reasons[first]}")
                rejected[violation.rule] = Rejected(int(wrong.sum()), violation)
                broken |= wrong
        return self.held(Block(points.indices, RecipeTable(fields, size), broken, rejected))

    def held(self, block: Block) -> Block:
        """The points whose fields have the values that are wanted."""
        wanted = np.ones(len(block.indices), dtype=np.bool_)
        for name, allowed in self.space.held.items():
            found = block.recipes.distinct((name,))
            values = [block.recipes.value(name, int(row)) for row in found.first]
            wanted &= found.spread([value in allowed for value in values]).astype(np.bool_)
        if wanted.all():
            return block
        recipes = block.recipes.take(wanted)
        return Block(block.indices[wanted], recipes, block.broken[wanted], block.rejected)

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
        dp: NDArray[np.int64] = np.array(column.values, dtype=np.int64)[column.codes]
        return dp

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
