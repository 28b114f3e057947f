"""Loops that wait until numbers are small: how often they go round, no data says."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator

from .values.defaults import PASSES

_LARGER = ast.Lt | ast.LtE | ast.Gt | ast.GtE


class Loops:
    """Ends ``while`` loops that wait for numbers which nobody knows.

    Such a number is the same in every pass: the loop would never end.
    """

    def __init__(self) -> None:
        self._passes: dict[str, tuple[object, int]] = {}

    def ends(self, place: str, training: object) -> bool:
        """Whether what is read at ``place`` (``file:line``) is to end its loop now, because it has
        been read often enough where training stood at ``training``."""
        file, _, line = place.rpartition(":")
        if not line.isdigit() or int(line) not in _waits(file):
            return False
        before, passes = self._passes.pop(place, (training, 0))
        passes = passes + 1 if before == training else 1
        if passes == PASSES:
            return True
        self._passes[place] = training, passes
        return False


@functools.cache
def _waits(file: str) -> frozenset[int]:
    """The lines of a file where a ``while`` loop learns whether it goes on or is left."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return frozenset()
    loops = (each for each in ast.walk(tree) if isinstance(each, ast.While))
    asked = (each for loop in loops for each in _asked(loop))
    return frozenset(
        line for each in asked for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
    )


def _asked(loop: ast.While) -> Iterator[ast.expr]:
    """What is asked where the loop goes on or is left, and what its body assigns to names there,
    as far as it is how large numbers are. Whether they are finite is another question: they are.
    """
    branches = [each for each in loop.body if isinstance(each, ast.If)]
    assigned = [each for each in loop.body if isinstance(each, ast.Assign)]
    leaves = [each.test for each in branches if isinstance(each.body[-1], ast.Break)]
    for test in (loop.test, *leaves):
        names = _names([test])
        values = [each.value for each in assigned if not names.isdisjoint(_names(each.targets))]
        asked = [test, *values]
        if any(isinstance(each, _LARGER) for one in asked for each in ast.walk(one)):
            yield from asked


def _names(expressions: list[ast.expr]) -> set[str]:
    return {each.id for one in expressions for each in ast.walk(one) if isinstance(each, ast.Name)}
