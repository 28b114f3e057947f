"""Machine code of plain functions over arrays, made by LLVM each time a process needs it.

Made that way it takes a tenth of a second and leaves no file. numba would compile the same
functions for two seconds once, and then take most of a second to load what it kept.

What can be read is what loops over arrays are written in: whole numbers, floats and truth values;
elements of arrays; ``range``, ``len`` and ``max`` of two; functions of the same module, which are
made part of their caller; ``return`` of values. All means what it means in Python, but that whole
numbers have 64 bits, nothing looks whether an index is inside its array, and a division by zero
is infinite.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

_INT, _FLOAT, _TRUTH, _BYTE = ir.IntType(64), ir.DoubleType(), ir.IntType(1), ir.IntType(8)
# How elements lie in memory.
_ELEMENTS = {"int64": _INT, "float64": _FLOAT, "bool": _BYTE}
_COMPARED = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
# Instructions of whole numbers and of floats.
_ARITHMETIC = {
    ast.Add: ("add", "fadd"),
    ast.Sub: ("sub", "fsub"),
    ast.Mult: ("mul", "fmul"),
    ast.Div: (None, "fdiv"),
    ast.RShift: ("ashr", None),
}


def compiled(function: FunctionType, arrays: Sequence[np.ndarray]) -> Callable[..., int]:
    """``function``, which returns a whole number, for arrays of the types of ``arrays``.

    Those are of ``int64``, ``float64`` or ``bool``; others that it is called with are copied to
    these types first, and what it fills must be contiguous and of them.

    Raises:
        NotImplementedError: for what cannot be read.
    """
    module = ir.Module()
    made = ir.Function(module, ir.FunctionType(_INT, [_INT.as_pointer()]), "made")
    build = ir.IRBuilder(made.append_basic_block())
    _Body(build, function, _arguments(build, made.args[0], arrays)).build_all()

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
    passes.getModulePassManager().run(parsed, passes)
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(engine.get_function_address("made"))

    types = [each.dtype for each in arrays]

    def run(*arrays: np.ndarray) -> int:
        held = [
            each
            if each.dtype == kind and each.flags.c_contiguous
            else np.ascontiguousarray(each, kind)
            for each, kind in zip(arrays, types, strict=True)
        ]
        played: int = call((ctypes.c_void_p * len(held))(*map(id, held)))
        return played

    # The code lives as long as its engine.
    run.engine = engine  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class _Array:
    """Where an array's elements begin, and its ``shape``."""

    first: Any
    shape: tuple[Any, ...]


def _arguments(build: Any, objects: Any, arrays: Sequence[np.ndarray]) -> list[_Array]:
    """The arrays whose objects' addresses are in ``objects``.

    An array's object holds, in words of eight bytes: two of Python's own, where its elements are,
    how many dimensions it has, where its shape is (``PyArrayObject_fields`` of NumPy's C API).
    Asking Python for the same takes longer than playing a small program.
    """

    def word(place: Any, at: int) -> Any:
        return build.load(build.gep(place, [_INT(at)]))

    found = []
    for number, array in enumerate(arrays):
        fields = build.inttoptr(word(objects, number), _INT.as_pointer())
        first = build.inttoptr(word(fields, 2), _ELEMENTS[array.dtype.name].as_pointer())
        shape = build.inttoptr(word(fields, 4), _INT.as_pointer())
        found.append(_Array(first, tuple(word(shape, axis) for axis in range(array.ndim))))
    return found


@dataclass
class _Body:
    """One function, made part of what ``build`` builds.

    ``names`` are its arrays and where its values are kept; ``results`` are where what it returns
    is kept, and ``end`` is the block after it (None: of the outermost, which returns);
    ``loops`` are the blocks where ``continue`` and ``break`` go, innermost last.
    """

    build: Any
    function: FunctionType
    arguments: Sequence[Any]
    names: dict[str, Any] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)
    end: Any = None
    loops: list[tuple[Any, Any]] = field(default_factory=list)

    def build_all(self) -> None:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(self.function))).body
        assert isinstance(definition, ast.FunctionDef)
        for argument, value in zip(definition.args.args, self.arguments, strict=True):
            self.assign(argument.arg, value)
        self.block(definition.body)
        if not self.build.block.is_terminated:
            self.build.branch(self.end)

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        build = self.build
        match node:
            case ast.Expr(ast.Constant(str())):
                pass
            case ast.Expr(ast.Call() as call):
                self.call(call)
            case ast.Assign([ast.Tuple(targets)], ast.Call() as call):
                for target, value in zip(targets, self.call(call), strict=True):
                    self.store(target, value)
            case ast.Assign([target], value):
                self.store(target, self.value(value))
            case ast.AugAssign(target, operator, value):
                self.store(
                    target, self.arithmetic(operator, self.value(target), self.value(value))
                )
            case ast.If(test, body, otherwise):
                yes, no, after = (build.append_basic_block() for _ in range(3))
                build.cbranch(self.truth(test), yes, no)
                self.branch(yes, body, after)
                self.branch(no, otherwise, after)
                build.position_at_end(after)
            case ast.While(test, body, []):
                begin, inside, after = (build.append_basic_block() for _ in range(3))
                build.branch(begin)
                build.position_at_end(begin)
                build.cbranch(self.truth(test), inside, after)
                self.loop(inside, body, begin, after)
            case ast.For(ast.Name(name), ast.Call(ast.Name("range"), bounds), body, []):
                values = [self.value(bound) for bound in bounds]
                low, high = values if len(values) == 2 else (_INT(0), values[0])
                place = self.kept(_INT)
                build.store(low, place)
                begin, inside, step, after = (build.append_basic_block() for _ in range(4))
                build.branch(begin)
                build.position_at_end(begin)
                at = build.load(place)
                build.cbranch(build.icmp_signed("<", at, high), inside, after)
                build.position_at_end(inside)
                self.assign(name, at)
                self.loop(inside, body, step, after)
                build.position_at_end(step)
                build.store(build.add(build.load(place), _INT(1)), place)
                build.branch(begin)
                build.position_at_end(after)
            case ast.Break() | ast.Continue():
                build.branch(self.loops[-1][isinstance(node, ast.Break)])
            case ast.Return(value):
                self.give(value)
            case _:
                raise NotImplementedError(ast.unparse(node))

    def branch(self, block: Any, statements: Sequence[ast.stmt], after: Any) -> None:
        """Have ``statements`` in ``block``, and go to ``after`` if nothing goes elsewhere."""
        self.build.position_at_end(block)
        self.block(statements)
        if not self.build.block.is_terminated:
            self.build.branch(after)

    def loop(self, inside: Any, body: Sequence[ast.stmt], again: Any, after: Any) -> None:
        self.loops.append((again, after))
        self.branch(inside, body, again)
        self.loops.pop()
        self.build.position_at_end(after)

    def give(self, value: ast.expr | None) -> None:
        parts = value.elts if isinstance(value, ast.Tuple) else [value] if value else []
        values = [self.value(part) for part in parts]
        if self.end is None:
            self.build.ret(values[0])
            return
        if not self.results:
            self.results += [self.kept(each.type) for each in values]
        for place, each in zip(self.results, values, strict=True):
            self.build.store(self.cast(each, place.type.pointee), place)
        self.build.branch(self.end)

    def call(self, node: ast.Call) -> list[Any]:
        """What a function of the module returns."""
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise NotImplementedError(ast.unparse(node))
        called = self.function.__globals__[node.func.id]
        arguments = [self.array_or_value(argument) for argument in node.args]
        end = self.build.append_basic_block()
        body = _Body(self.build, called, arguments, end=end)
        body.build_all()
        self.build.position_at_end(end)
        return [self.build.load(place) for place in body.results]

    def kept(self, kind: Any) -> Any:
        """Room for a value, of which there is one however often the place is passed."""
        with self.build.goto_entry_block():
            return self.build.alloca(kind)

    def assign(self, name: str, value: Any) -> None:
        if isinstance(value, _Array):
            self.names[name] = value
            return
        if name not in self.names:
            self.names[name] = self.kept(value.type)
        self.build.store(self.cast(value, self.names[name].type.pointee), self.names[name])

    def store(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.assign(target.id, value)
            return
        place = self.element(target)
        self.build.store(self.cast(value, place.type.pointee), place)

    def element(self, node: ast.expr) -> Any:
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            raise NotImplementedError(ast.unparse(node))
        array = self.names[node.value.id]
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        at = _INT(0)
        for size, part in zip(array.shape, parts, strict=True):
            at = self.build.add(self.build.mul(at, size), self.value(part))
        return self.build.gep(array.first, [at])

    def array_or_value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name) and isinstance(self.names.get(node.id), _Array):
            return self.names[node.id]
        return self.value(node)

    def value(self, node: ast.expr) -> Any:
        build = self.build
        match node:
            case ast.Constant(bool() as truth):
                return _TRUTH(truth)
            case ast.Constant(int() as number):
                return _INT(number)
            case ast.Constant(float() as number):
                return _FLOAT(number)
            case ast.Name(name) if name in self.names:
                return build.load(self.names[name])
            case ast.Name(name):
                return self.value(ast.Constant(self.function.__globals__[name]))
            case ast.Subscript():
                found = build.load(self.element(node))
                return build.icmp_signed("!=", found, _BYTE(0)) if found.type == _BYTE else found
            case ast.UnaryOp(ast.USub(), operand):
                negated = self.value(operand)
                return build.fneg(negated) if negated.type == _FLOAT else build.neg(negated)
            case ast.UnaryOp(ast.Not(), operand):
                return build.not_(self.truth(operand))
            case ast.BinOp(left, operator, right):
                return self.arithmetic(operator, self.value(left), self.value(right))
            case ast.Compare(left, [operator], [right]):
                return self.compare(_COMPARED[type(operator)], self.value(left), self.value(right))
            case ast.BoolOp(operator, parts):
                return self.either(isinstance(operator, ast.Or), parts)
            case ast.Call(ast.Name("len"), [ast.Name(name)]):
                return self.names[name].shape[0]
            case ast.Call(ast.Name("max"), [first, second]):
                left, right = self.alike(self.value(first), self.value(second))
                return build.select(self.compare(">", right, left), right, left)
            case ast.Call():
                (result,) = self.call(node)
                return result
        raise NotImplementedError(ast.unparse(node))

    def truth(self, node: ast.expr) -> Any:
        value = self.value(node)
        return value if value.type == _TRUTH else self.compare("!=", value, value.type(0))

    def either(self, either: bool, parts: Sequence[ast.expr]) -> Any:
        """``or`` (else ``and``) of truth values; the next is not looked at once one decides."""
        decided = self.kept(_TRUTH)
        after = self.build.append_basic_block()
        for part in parts:
            truth = self.truth(part)
            self.build.store(truth, decided)
            following = self.build.append_basic_block()
            self.build.cbranch(truth, *((after, following) if either else (following, after)))
            self.build.position_at_end(following)
        self.build.branch(after)
        self.build.position_at_end(after)
        return self.build.load(decided)

    def arithmetic(self, operator: ast.operator, left: Any, right: Any) -> Any:
        left, right = self.alike(left, right)
        name = _ARITHMETIC[type(operator)][left.type == _FLOAT]
        if name is None:
            raise NotImplementedError(ast.dump(operator))
        return getattr(self.build, name)(left, right)

    def compare(self, how: str, left: Any, right: Any) -> Any:
        left, right = self.alike(left, right)
        if left.type != _FLOAT:
            return self.build.icmp_signed(how, left, right)
        compared = self.build.fcmp_unordered if how == "!=" else self.build.fcmp_ordered
        return compared(how, left, right)

    def alike(self, left: Any, right: Any) -> tuple[Any, Any]:
        kind = _FLOAT if _FLOAT in (left.type, right.type) else _INT
        return self.cast(left, kind), self.cast(right, kind)

    def cast(self, value: Any, kind: Any) -> Any:
        if value.type == kind:
            return value
        if kind == _FLOAT:
            return self.build.sitofp(value, kind)
        if value.type == _FLOAT:
            raise NotImplementedError("a float where a whole number was")
        return self.build.zext(value, kind)
