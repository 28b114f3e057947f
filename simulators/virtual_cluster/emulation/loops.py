"""Loops that wait until numbers are small: how often they go round, no data says."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .values.defaults import PASSES

_LARGER = ast.Lt | ast.LtE | ast.Gt | ast.GtE
_ALIKE = ("equal", "allclose")


class Loops:
    """Ends ``while`` loops that wait for numbers which nobody knows.

    Such a number is the same in every pass: the loop would never end.
    """

    def __init__(self) -> None:
        self._passes: dict[tuple[tuple[str, int], ...], tuple[object, int]] = {}

    def ends(self, places: Sequence[tuple[str, int]], training: object) -> bool:
        """Whether what is read at the first of ``places``, files and lines, is to end its loop
        now, because it has been read often enough where training stood at ``training``. The loop
        may be that of the second, the caller's, which asks a function how large a number is."""
        if not places:
            return False
        (file, line), *callers = places
        lines = _lines(file)
        if line in lines.waits:
            callers = []
        elif line not in lines.tells or not any(at in _lines(own).asks for own, at in callers):
            return False
        key = ((file, line), *callers)
        before, passes = self._passes.pop(key, (training, 0))
        passes = passes + 1 if before == training else 1
        if passes == PASSES:
            return True
        self._passes[key] = training, passes
        return False


class _Lines(NamedTuple):
    """Lines of a file where a ``while`` loop learns how large a number is, or asks a function;
    where a function learns it for what it returns."""

    waits: frozenset[int]
    asks: frozenset[int]
    tells: frozenset[int]


@functools.cache
def _lines(file: str) -> _Lines:
    try:
        nodes = list(ast.walk(ast.parse("".join(linecache.getlines(file)))))
    except SyntaxError:
        nodes = []
    waits, asks, tells = [], [], []
    for each in nodes:
        if isinstance(each, ast.While):
            left = [one for one in each.body if isinstance(one, ast.If)]
            tests = [each.test, *(one.test for one in left if isinstance(one.body[-1], ast.Break))]
            waits += [made for test in tests for made in _asked(test, each.body)]
            asks += tests
        elif isinstance(each, ast.FunctionDef):
            returned = [one.value for one in ast.walk(each) if isinstance(one, ast.Return)]
            tells += [made for one in returned if one for made in _asked(one, each.body)]
    return _Lines(_numbers(waits), _numbers(asks), _numbers(tells))


def _numbers(expressions: list[ast.expr]) -> frozenset[int]:
    return frozenset(
        line
        for each in expressions
        for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
    )


def _asked(test: ast.expr, body: list[ast.stmt]) -> Iterator[ast.expr]:
    """What is asked, and what ``body`` assigns to names there, as far as it is how large numbers
    are. Whether they are finite is another question: they are."""
    names = _names([test])
    assigned = [each for each in body if isinstance(each, ast.Assign)]
    values = [each.value for each in assigned if not names.isdisjoint(_names(each.targets))]
    asked = [test, *values]
    if any(_compares(each) for one in asked for each in ast.walk(one)):
        yield from asked


def _compares(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in _ALIKE
    return isinstance(node, _LARGER)


def _names(expressions: list[ast.expr]) -> set[str]:
    return {each.id for one in expressions for each in ast.walk(one) if isinstance(each, ast.Name)}
