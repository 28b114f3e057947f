"""What scripts assert of numbers that nobody knows: it holds."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from typing import NamedTuple

_SMALLER = ast.Lt | ast.LtE
_DIVISIONS = ast.Div | ast.FloorDiv | ast.Mod
# What numbers nobody knows are taken to be fails a bound up to this (``values.defaults``).
_BOUND = 1.0
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


class Assertions(NamedTuple):
    """Lines of a file where a flag is read that is asserted, and where a number is that is
    asserted to be smaller than a small constant: at the assertion, or where a name of it is made.
    """

    flags: frozenset[int]
    small: frozenset[int]


@functools.cache
def assertions(file: str) -> Assertions:
    """Those of a script's ``file``."""
    try:
        nodes = list(ast.walk(ast.parse("".join(linecache.getlines(file)))))
    except SyntaxError:
        nodes = []
    flags: set[int] = set()
    small: set[int] = set()
    for function in nodes:
        if not isinstance(function, _Function):
            continue
        body = list(_own(function))
        for each in body:
            if not isinstance(each, ast.Assert) or _is_negated(each.test):
                continue
            flags.update(_lines(each.test))
            if any(_is_small(one) for one in ast.walk(each.test)):
                small.update(_lines(each.test), *map(_lines, _makes(each, body)))
    return Assertions(frozenset(flags), frozenset(small))


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function, but for those of functions inside of it."""
    for each in ast.iter_child_nodes(function):
        yield each
        if not isinstance(each, _Function | ast.ClassDef | ast.Lambda):
            yield from _own(each)


def _is_negated(test: ast.expr) -> bool:
    return any(isinstance(each, ast.Not | ast.NotEq | ast.IsNot) for each in ast.walk(test))


def _is_small(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[-1], _SMALLER):
        return False
    bound = node.comparators[-1]
    return (
        isinstance(bound, ast.Constant)
        and isinstance(bound.value, int | float)
        and bound.value <= _BOUND
    )


def _makes(asserted: ast.Assert, body: list[ast.AST]) -> list[ast.Assign]:
    """The assignments that what is asserted is made by."""
    assigned = [each for each in body if isinstance(each, ast.Assign)]
    wanted, found = [asserted.test], []
    while wanted:
        names = {each.id for each in _undivided(wanted.pop()) if isinstance(each, ast.Name)}
        for each in assigned:
            targets = {one.id for one in each.targets if isinstance(one, ast.Name)}
            if each not in found and each.lineno < asserted.lineno and names & targets:
                found.append(each)
                wanted.append(each.value)
    return found


def _undivided(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of an expression but for what something is divided by, which is not small."""
    yield node
    divisor = (
        node.right if isinstance(node, ast.BinOp) and isinstance(node.op, _DIVISIONS) else None
    )
    for each in ast.iter_child_nodes(node):
        if each is not divisor:
            yield from _undivided(each)


def _lines(node: ast.expr | ast.stmt) -> set[int]:
    """Its lines, but for those where something is divided by what is read there."""
    lines, left = _span(node), set(_undivided(node))
    divisors = (each for each in ast.walk(node) if each not in left and isinstance(each, ast.Call))
    return lines.difference(*map(_span, divisors))


def _span(node: ast.expr | ast.stmt) -> set[int]:
    return {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
