"""Loops that wait until numbers are small: how often they go round, no data says."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator

from .values.defaults import PASSES


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
    """What is asked where the loop goes on or is left; what its body assigns to names there."""
    branches = [each for each in loop.body if isinstance(each, ast.If)]
    tests = [loop.test, *(each.test for each in branches if isinstance(each.body[-1], ast.Break))]
    names = _names(tests)
    yield from tests
    for each in loop.body:
        if isinstance(each, ast.Assign) and not names.isdisjoint(_names(each.targets)):
            yield each.value


def _names(expressions: list[ast.expr]) -> set[str]:
    return {each.id for one in expressions for each in ast.walk(one) if isinstance(each, ast.Name)}
