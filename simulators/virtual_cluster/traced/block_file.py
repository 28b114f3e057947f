"""Blocks as JSON and back, strictly: a line of ``[class, field, ...]`` for every operation."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, get_args

from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.ir import Block

_CLASSES: dict[str, type[Any]] = {each.__name__: each for each in get_args(ir.Op)}
_FIELDS = {name: tuple(f.name for f in dataclasses.fields(c)) for name, c in _CLASSES.items()}
_TYPES = {name: typing.get_type_hints(cls) for name, cls in _CLASSES.items()}


class MalformedBlockError(ValueError):
    """What was read is no block."""


def encode_block(block: Block) -> dict[str, Any]:
    ops = [
        [type(op).__name__, *(getattr(op, name) for name in _FIELDS[type(op).__name__])]
        for op in block.ops
    ]
    return {
        "name": block.name,
        "ops": ops,
        "peak_bytes": block.peak_bytes,
        "forward_ops": block.forward_ops,
    }


def decode_block(given: object) -> Block:
    """The block that ``encode_block`` wrote.

    Raises:
        MalformedBlockError: for anything else.
    """
    if not isinstance(given, dict) or set(given) != {"name", "ops", "peak_bytes", "forward_ops"}:
        raise MalformedBlockError("a block has name, ops, peak_bytes and forward_ops")
    name, ops = given["name"], given["ops"]
    peak, forward = given["peak_bytes"], given["forward_ops"]
    if not isinstance(name, str) or not isinstance(ops, list):
        raise MalformedBlockError("name is a text and ops a list")
    if not (_fits(peak, int) and _fits(forward, int)) or min(peak, forward) < 0:
        raise MalformedBlockError("peak_bytes and forward_ops are counts")
    return Block(name, tuple(_decode_op(op) for op in ops), peak, forward)


def _decode_op(given: object) -> ir.Op:
    if not isinstance(given, list) or not given or given[0] not in _CLASSES:
        raise MalformedBlockError(f"no operation: {given!r:.80}")
    kind, *values = given
    names = _FIELDS[kind]
    if len(values) != len(names):
        raise MalformedBlockError(f"{kind} has {len(names)} fields, not {len(values)}")
    values = [tuple(value) if isinstance(value, list) else value for value in values]
    for name, value in zip(names, values, strict=True):
        if not _fits(value, _TYPES[kind][name]):
            raise MalformedBlockError(f"{kind}.{name} cannot be {value!r:.80}")
    op: ir.Op = _CLASSES[kind](*values)
    return op


def _fits(value: object, wanted: Any) -> bool:
    origin = typing.get_origin(wanted)
    if origin is tuple:
        inner = get_args(wanted)[0]
        return isinstance(value, tuple) and all(_fits(each, inner) for each in value)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, each) for each in get_args(wanted))
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, wanted)
