"""Arguments of operations as PyTorch's execution traces write them: values, shapes and types.

A tensor is ``[tensor, storage, offset, elements, bytes an element, device]`` with its shape and a
type ``Tensor(c10::BFloat16)``; a list is a list, ``GenericList[...]``. Each of the three is a text
that holds a list with an entry for each argument. Strides have no place there.
"""

from __future__ import annotations

import ast
import json
from math import prod
from typing import Any

from trainscout.simulators.virtual_cluster.traces.events import Argument, TensorSpec
from trainscout.simulators.virtual_cluster.traces.vocabulary import DTYPE_BYTES

C_NAMES = {
    "bfloat16": "c10::BFloat16",
    "float16": "c10::Half",
    "float32": "float",
    "float64": "double",
    "int64": "long int",
    "int32": "int",
    "int16": "short int",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
    "float8_e4m3fn": "c10::Float8_e4m3fn",
    "float8_e5m2": "c10::Float8_e5m2",
    "float8_e8m0fnu": "c10::Float8_e8m0fnu",
}
DTYPES = {c_name: dtype for dtype, c_name in C_NAMES.items()}
DEVICE, HOST = "cuda:0", "cpu"
_TENSOR, _LIST = "Tensor(", "GenericList["


def texts(arguments: tuple[Argument, ...]) -> tuple[str, str, str]:
    """Values, shapes and types of ``arguments``."""
    parts = [_written(argument) for argument in arguments]
    return (
        json.dumps([value for value, _, _ in parts]),
        json.dumps([shape for _, shape, _ in parts]),
        json.dumps([type_name for _, _, type_name in parts]),
    )


def _written(argument: Argument) -> tuple[object, object, str]:
    if isinstance(argument, TensorSpec):
        elements = prod(argument.shape)
        # Storages are all that a trace numbers; a tensor is called by its storage.
        storage = 0 if argument.storage is None else argument.storage
        device = HOST if argument.storage is None else DEVICE
        size = DTYPE_BYTES.get(argument.dtype, 0)
        value = [storage, storage, 0, elements, size, device]
        type_name = C_NAMES.get(argument.dtype, argument.dtype)
        return value, list(argument.shape), f"{_TENSOR}{type_name})"
    if isinstance(argument, tuple):
        parts = [_written(item) for item in argument]
        types = ",".join(type_name for _, _, type_name in parts)
        values, shapes = [value for value, _, _ in parts], [shape for _, shape, _ in parts]
        return values, shapes, f"{_LIST}{types}]"
    names = {bool: "Bool", int: "Int", float: "Double", str: "String"}
    return argument, [], names.get(type(argument), "None")


def parsed(values: str, shapes: str, types: str) -> tuple[Argument, ...]:
    """The arguments; none at all when the texts are not what PyTorch writes."""
    lists = [_literal(text) for text in (values, shapes, types)]
    if not all(type(each) is list for each in lists):
        return ()
    if len({len(each) for each in lists}) != 1:
        return ()
    try:
        return tuple(_read(*each) for each in zip(*lists, strict=True))
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
        return ()


# What is written of tensors takes some hundred characters, and parsing 100 bytes for each.
_LONGEST_LITERAL = 1 << 20


def _literal(text: str) -> Any:
    """JSON, or what ``str`` makes of a Python list."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if len(text) > _LONGEST_LITERAL:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _read(value: Any, shape: Any, type_name: str) -> Argument:
    if type_name.startswith(_TENSOR):
        name = type_name.removeprefix(_TENSOR).removesuffix(")")
        storage, device = value[1], value[5]
        sizes = tuple([_size(each) for each in shape])
        on_host = str(device).startswith(HOST)
        return TensorSpec(DTYPES.get(name, name), sizes, None if on_host else _size(storage))
    if type_name.startswith(_LIST):
        types = _split(type_name.removeprefix(_LIST).removesuffix("]"))
        # Lists of numbers have one empty shape in PyTorch's own traces.
        shapes = shape if len(shape) == len(types) else [[]] * len(types)
        return tuple(_read(*each) for each in zip(value, shapes, types, strict=True))
    if value is None or type_name == "None":
        return None
    if type(value) in (bool, int, float, str):
        return value  # type: ignore[no-any-return]
    raise ValueError(type_name)


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _split(types: str) -> list[str]:
    """At the commas that are not within brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(types):
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            parts.append(types[start:position])
            start = position + 1
    return [*parts, types[start:]] if types else []
