"""Values that scripts go on with though nobody knows them without computing, as listed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple


class Read(NamedTuple):
    """What was read at one place: how often, how often of that in set-up, before any forward pass;
    the last value, what to do about it."""

    times: int
    at_setup: int
    value: object
    hint: str | None

    @property
    def steers(self) -> bool:
        """Whether it decides how a script goes on: flags, sizes and objects. Of other numbers most
        are shown."""
        return not self._all(float)

    @property
    def is_set_up(self) -> bool:
        """Whether only set-up went on by it, and by no size: nothing of a step hangs on it."""
        return self.times == self.at_setup and self._all((bool, float))

    def _all(self, kind: type | tuple[type, ...]) -> bool:
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        return all(isinstance(each, kind) for each in values)


# By operation and place.
Reads = dict[tuple[str, int | None], Read]


@dataclass(frozen=True)
class Unknown:
    """A ``Read`` in words, with its place; ``expected``: it is what data are assumed to give."""

    operation: str
    count: int
    value: str
    where: str
    hint: str = ""
    expected: bool = False
    steers: bool = False
    is_set_up: bool = False

    def __str__(self) -> str:
        expected = " (expected)" if self.expected else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.count} x {self.operation} = {self.value}{expected} at {self.where}{hint}"


def listed(values: Iterable[Unknown], most: int = 12) -> list[str]:
    """Lines for places where values were read that nobody knows, with the last of them: all that a
    script goes on by, ``most`` others, those read most often first; of set-up in one line."""
    found: dict[tuple[str, str], Unknown] = {}
    for each in values:
        place = (each.operation, each.where)
        before = found.get(place)
        found[place] = each if before is None else replace(each, count=before.count + each.count)
    reads = sorted(found.values(), key=lambda each: (not each.steers, -each.count))
    of_steps = [each for each in reads if not each.is_set_up]
    shown = [each for each in of_steps if each.steers]
    shown += of_steps[len(shown) : len(shown) + most]
    lines = [str(each) for each in shown]
    if left := len(of_steps) - len(shown):
        lines.append(f"and numbers at {left} more places")
    if set_up := [each for each in reads if each.is_set_up]:
        first = max(set_up, key=lambda each: each.count)
        times = sum(each.count for each in set_up)
        lines.append(
            f"{times} flags and numbers in set-up at {len(set_up)} places, "
            f"{first.count} at {first.where}"
        )
    return lines
