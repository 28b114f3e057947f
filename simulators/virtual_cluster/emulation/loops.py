"""Loops that wait until numbers are small: how often they go round, no data says."""

from __future__ import annotations

import ast
import functools
import linecache

from .values.defaults import PASSES


class Loops:
    """Ends ``while`` loops whose condition follows from numbers that nobody knows.

    Such a flag is the same in every pass: the loop would never end.
    """

    def __init__(self) -> None:
        self._passes: dict[str, tuple[object, int]] = {}

    def ends(self, place: str, training: object) -> bool:
        """Whether the flag that is read at ``place`` (``file:line``) is to be the opposite now,
        because it has been the same often enough where training stood at ``training``."""
        file, _, line = place.rpartition(":")
        if not line.isdigit() or not ends_loop(file, int(line)):
            return False
        before, passes = self._passes.pop(place, (training, 0))
        passes = passes + 1 if before == training else 1
        if passes == PASSES:
            return True
        self._passes[place] = training, passes
        return False


@functools.cache
def ends_loop(file: str, line: int) -> bool:
    """Whether a ``while`` loop goes on, or is left, by what is asked in this line of a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return False
    return any(
        test.lineno <= line <= (test.end_lineno or line)
        for loop in ast.walk(tree)
        if isinstance(loop, ast.While)
        for test in (loop.test, *_leaves(loop))
    )


def _leaves(loop: ast.While) -> list[ast.expr]:
    """What is asked where the loop is left."""
    branches = [each for each in loop.body if isinstance(each, ast.If)]
    return [each.test for each in branches if isinstance(each.body[-1], ast.Break)]
