"""Many recipes as columns: what depends on few fields is worked out once per combination of them.

A search space is a product, so a million recipes differ in few values of each field. Whatever
reads only some fields (a validity rule, a layer's shapes, the price of a transfer) takes few
distinct inputs: ``RecipeTable.distinct`` finds them, ordinary code answers for one recipe each,
and indexing spreads the answers over all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.recipe import RECIPE_DEFAULTS, Recipe

Codes = NDArray[Any]  # small whole numbers >= 0, of any width
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
T = TypeVar("T")

# Beyond this many possible combinations, or so many for each row, they are sorted instead of
# looked up.
_MOST_LOOKED_UP = 1 << 24
_LOOKED_UP_PER_ROW = 16
# Recipes made at once where all are walked through.
_AT_ONCE = 4096


class Column(NamedTuple):
    """One field of many recipes: ``values[codes[row]]``. Codes not in use are allowed."""

    values: tuple[Any, ...]
    codes: Codes


class Distinct(NamedTuple):
    """Combinations of some fields that occur: ``first[k]`` is a row that has combination ``k``
    (the first one), ``of[row]`` the combination of each row."""

    first: Rows
    of: Rows

    def spread(self, answers: Sequence[float] | NDArray[Any]) -> NDArray[Any]:
        """Answers per combination, to answers per row."""
        return np.asarray(answers)[self.of]


@dataclass(frozen=True)
class RecipeTable(Sequence[Recipe]):
    """``size`` recipes; a field without a column has its default in all of them.

    As a sequence it makes each recipe when it is asked for.
    """

    columns: Mapping[str, Column]
    size: int

    @classmethod
    def of(cls, recipes: Sequence[Recipe]) -> RecipeTable:
        """The table of a few recipes."""
        columns = {name: column([getattr(r, name) for r in recipes]) for name in RECIPE_DEFAULTS}
        return cls(columns, len(recipes))

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, row: int) -> Recipe: ...
    @overload
    def __getitem__(self, row: slice) -> list[Recipe]: ...
    def __getitem__(self, row: int | slice) -> Recipe | list[Recipe]:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(self.size))]
        if not -self.size <= row < self.size:
            raise IndexError(row)
        return Recipe.of_fields(
            {name: c.values[c.codes.item(row)] for name, c in self.columns.items()}
        )

    def __iter__(self) -> Iterator[Recipe]:
        # Column by column: a recipe alone looks into an array for each of its fields.
        for start in range(0, self.size, _AT_ONCE):
            rows = slice(start, min(start + _AT_ONCE, self.size))
            fields = [
                [c.values[code] for code in c.codes[rows].tolist()] for c in self.columns.values()
            ]
            alike = [()] * len(range(*rows.indices(self.size)))
            for values in zip(*fields, strict=True) if fields else alike:
                yield Recipe.of_fields(dict(zip(self.columns, values, strict=True)))

    def take(self, rows: Rows | Mask | slice) -> RecipeTable:
        """The table of some of the rows."""
        taken = {name: Column(c.values, c.codes[rows]) for name, c in self.columns.items()}
        if isinstance(rows, slice):
            return RecipeTable(taken, len(range(*rows.indices(self.size))))
        chosen = np.count_nonzero(rows) if rows.dtype == np.bool_ else len(rows)
        return RecipeTable(taken, int(chosen))

    def field(self, name: str) -> Column:
        """One field of every recipe."""
        if name in self.columns:
            return self.columns[name]
        return Column((RECIPE_DEFAULTS[name],), np.broadcast_to(np.int8(0), self.size))

    def value(self, name: str, row: int) -> Any:
        """One field of one recipe."""
        found = self.field(name)
        return found.values[found.codes.item(row)]

    def values(self, names: Sequence[str], rows: Rows) -> list[tuple[Any, ...]]:
        """Several fields of some of the recipes, a tuple each."""
        found = map(self.field, names)
        columns = [[each.values[code] for code in each.codes[rows].tolist()] for each in found]
        return list(zip(*columns, strict=True)) if names else [()] * len(rows)

    def holds(self, name: str, test: Callable[[Any], bool]) -> Mask:
        """Of which recipes a field's value passes a test."""
        found = self.field(name)
        return np.array([test(value) for value in found.values], dtype=np.bool_)[found.codes]

    def numbers(self, name: str) -> NDArray[np.int64]:
        """A whole-number or true/false field of every recipe; None is -1."""
        found = self.field(name)
        plain = np.array([-1 if v is None else int(v) for v in found.values], dtype=np.int64)
        return plain[found.codes]

    def distinct(self, names: Sequence[str], extra: Sequence[NDArray[Any]] = ()) -> Distinct:
        """The combinations of the fields ``names`` that occur.

        Args:
            names: fields; those that are no recipe field are refused by ``Recipe`` later.
            extra: further arrays of small whole numbers >= 0, one entry a row.
        """
        parts = [
            (len(found.values), found.codes)
            for name in names
            if (found := self.columns.get(name)) is not None and len(found.values) > 1
        ]
        parts += [(int(each.max(initial=0)) + 1, each) for each in extra]
        return distinct(parts, self.size)

    def each(
        self, names: Sequence[str], answer: Callable[[Recipe], T]
    ) -> tuple[Distinct, list[T]]:
        """``answer`` for one recipe of each combination of ``names``: all that it may read."""
        found = self.distinct(names)
        return found, [answer(recipe) for recipe in self.take(found.first)]


def column(values: Sequence[Any]) -> Column:
    """The column of a plain list of values; true and 1 are distinguished."""
    known: dict[tuple[type, Any], int] = {}
    codes = [known.setdefault((type(value), value), len(known)) for value in values]
    return Column(tuple(value for _, value in known), np.array(codes, dtype=np.int32))


def distinct(parts: Sequence[tuple[int, NDArray[Any]]], size: int) -> Distinct:
    """Combinations that occur among columns of codes.

    Args:
        parts: for each column how many codes there are, and the codes, 0 <= code < count.
        size: number of rows.
    """
    key = np.zeros(size, dtype=np.int64)
    span = 1
    for count, codes in parts:
        if span * count > _MOST_LOOKED_UP and span > size:
            first, key = _numbered(key, span)
            span = len(first)
        key = key * count + codes
        span *= count
    return Distinct(*_numbered(key, span))


def _numbered(key: Rows, span: int) -> tuple[Rows, Rows]:
    """First row of each key that occurs, and the number of each row's key, in order of keys."""
    if span > min(_MOST_LOOKED_UP, _LOOKED_UP_PER_ROW * (len(key) + 1)):
        _, first, of = np.unique(key, return_index=True, return_inverse=True)
        return first.astype(np.int64), of.reshape(-1).astype(np.int64)
    first_of = np.full(span, -1, dtype=np.int64)
    # Written last to first, so that the first row stays.
    first_of[key[::-1]] = np.arange(len(key) - 1, -1, -1)
    present = np.flatnonzero(first_of >= 0)
    number = np.empty(span, dtype=np.int64)
    number[present] = np.arange(len(present))
    return first_of[present], number[key]


class TableBuilder:
    """Puts blocks of recipes together, each field numbered as its values appear."""

    def __init__(self) -> None:
        self._known: dict[str, dict[tuple[type, Any], int]] = {
            name: {} for name in RECIPE_DEFAULTS
        }
        self._codes: dict[str, list[Codes]] = {name: [] for name in RECIPE_DEFAULTS}
        self.size = 0

    def add(self, table: RecipeTable) -> None:
        for name, known in self._known.items():
            found = table.field(name)
            numbers = np.zeros(len(found.values), dtype=np.int16)
            used = np.bincount(found.codes, minlength=len(found.values)) > 0
            for code in np.flatnonzero(used):
                value = found.values[code]
                numbers[code] = known.setdefault((type(value), value), len(known))
            # A few million recipes of some thirty fields: a byte each where that is enough.
            small = np.int8 if len(known) <= np.iinfo(np.int8).max else np.int16
            self._codes[name].append(numbers.astype(small)[found.codes])
        self.size += len(table)

    def table(self) -> RecipeTable:
        """The recipes so far, which leave the builder."""
        columns = {}
        for name, default in RECIPE_DEFAULTS.items():
            values = tuple(value for _, value in self._known[name])
            codes = self._codes.pop(name)
            if values not in ((), (default,)):
                columns[name] = Column(values, np.concatenate(codes))
        return RecipeTable(columns, self.size)


def joined(tables: Iterable[RecipeTable]) -> RecipeTable:
    """One table of the recipes of several."""
    builder = TableBuilder()
    for table in tables:
        builder.add(table)
    return builder.table()


def recipe_keys(table: RecipeTable, numbering: RecipeTable) -> NDArray[np.uint64]:
    """A number for every recipe: equal recipes have equal ones, others hardly ever.

    Args:
        table: the recipes.
        numbering: the table whose columns say how values are numbered.
    """
    keys = np.zeros(len(table), dtype=np.uint64)
    for name, known in ((name, column.values) for name, column in numbering.columns.items()):
        found = table.field(name)
        number = {(type(value), value): index for index, value in enumerate(known)}
        # A value that the other table has not is given a number of its own.
        codes = [number.get((type(value), value), len(known)) for value in found.values]
        # A multiplicative hash: the golden ratio's odd 64-bit fraction.
        keys = keys * np.uint64(0x9E3779B97F4A7C15) + np.array(codes, dtype=np.uint64)[found.codes]
        keys ^= keys >> np.uint64(29)
    return keys
