"""The small language of search spaces: whole numbers, names, comparisons, nothing else.

``tp > 1 and recompute == 'full'``, ``global_batch_size / (dp * multiplier * pp)``. Parsed
with ``ast`` and turned into closures; anything outside the list below is refused, so a space
file can compute but never run code. Arithmetic is on whole numbers only: text that could be
multiplied is text that could fill the memory.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError

Values = Mapping[str, Any]
_Compiled = Callable[[Values], Any]

_MAX_LENGTH = 500
GRAMMAR = (
    "whole numbers, 'text', true/false/null, names, + - * / // %, comparisons, and/or/not, "
    "a if b else c"
)


class NotWholeError(ArithmeticError):
    """``/`` divides exactly or not at all."""


def _divide_exactly(left: int, right: int) -> int:
    if right == 0 or left % right:
        raise NotWholeError(f"{left} / {right} is not a whole number")
    return left // right


def _floor(left: int, right: int) -> int:
    if right == 0:
        raise NotWholeError(f"{left} // 0 has no value")
    return left // right


def _modulo(left: int, right: int) -> int:
    if right == 0:
        raise NotWholeError(f"{left} % 0 has no value")
    return left % right


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide_exactly,
    ast.FloorDiv: _floor,
    ast.Mod: _modulo,
}


def _whole(value: Any) -> Any:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CONSTANTS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Expression:
    """A parsed expression of one configuration field; ``names`` are the names it reads."""

    field: str
    text: str
    names: frozenset[str]
    _evaluate: _Compiled

    def __call__(self, values: Values) -> Any:
        """The value under ``values``.

        Raises:
            NotWholeError: where ``/`` does not come out whole or a divisor is zero.
            InputError: where text or null meets arithmetic or an ordering.
        """
        try:
            return self._evaluate(values)
        except TypeError as error:
            problem = f"has no value at every point of the space: {error}"
            raise InputError(self.field, self.text, problem, GRAMMAR) from error

    def holds(self, values: Values) -> bool:
        """Whether a condition is true; one whose division does not come out whole is not."""
        try:
            return bool(self(values))
        except NotWholeError:
            return False


def parse(
    field: str,
    text: object,
    known: Collection[str],
    derived: Mapping[str, Expression] | None = None,
) -> Expression:
    """Parse ``text`` of the configuration field ``field``, which may read the names ``known`` and,
    as if they were written out, those ``derived`` from these.

    Raises:
        InputError: for anything that is not in the grammar, or an unknown name.
    """
    if not isinstance(text, str) or len(text) > _MAX_LENGTH:
        raise InputError(field, text, "is not an expression", GRAMMAR)
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(field, text, "is not an expression", GRAMMAR) from error
    names: set[str] = set()
    evaluate = _compile(field, text, tree.body, known, derived or {}, names)
    return Expression(field, text, frozenset(names), evaluate)


def _compile(
    field: str,
    text: str,
    node: ast.expr,
    known: Collection[str],
    derived: Mapping[str, Expression],
    names: set[str],
) -> _Compiled:
    def sub(child: ast.expr) -> _Compiled:
        return _compile(field, text, child, known, derived, names)

    match node:
        case ast.Constant(value=bool() | int() | str() as value):
            return lambda _: value
        case ast.Name(id=name) if name in _CONSTANTS:
            constant = _CONSTANTS[name]
            return lambda _: constant
        case ast.Name(id=name) if name in derived:
            if beyond := sorted(derived[name].names.difference(known)):
                problem = f"rests on {beyond[0]}, which is not a name this expression may use"
                raise InputError(field, name, problem, known)
            names |= derived[name].names
            return derived[name]._evaluate
        case ast.Name(id=name):
            if name not in known:
                allowed = [*known, *derived]
                raise InputError(field, name, "is not a name this expression may use", allowed)
            names.add(name)
            return lambda values: values[name]
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            apply, left, right = _ARITHMETIC[type(op)], sub(node.left), sub(node.right)
            return lambda values: apply(_whole(left(values)), _whole(right(values)))
        case ast.UnaryOp(op=ast.Not()):
            operand = sub(node.operand)
            return lambda values: not operand(values)
        case ast.BoolOp():
            parts = [sub(child) for child in node.values]
            every = isinstance(node.op, ast.And)
            return lambda values: (all if every else any)(part(values) for part in parts)
        case ast.IfExp():
            test, chosen, other = sub(node.test), sub(node.body), sub(node.orelse)
            return lambda values: (chosen if test(values) else other)(values)
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            compare = _COMPARISONS[type(op)]
            first, second = sub(node.left), sub(node.comparators[0])
            return lambda values: compare(first(values), second(values))
        case _:
            raise InputError(field, text, "is more than a space expression may say", GRAMMAR)
