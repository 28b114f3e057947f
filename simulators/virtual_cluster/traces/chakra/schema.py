"""The messages of Chakra's protobuf schema, built when first used, and arguments within them.

Names and numbers of fields and enumerations are those of ``et_def.proto`` of MLCommons Chakra
(package ``ChakraProtoMsg``); fields that traces do not need are left out, and what others wrote in
them is passed over. The messages live in a pool of their own, so that the schema of an installed
``chakra`` does not clash.

A file is messages one after the other, each after its length as a varint: the metadata, then
nodes.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.events import Argument, TensorSpec
from trainscout.simulators.virtual_cluster.traces.vocabulary import C_DTYPES, DTYPE_BYTES

PACKAGE = "ChakraProtoMsg"
FIELD = "chakra"
MAX_MESSAGE_BYTES = 64 << 20
_CONTINUES = 0x80


class NodeType(IntEnum):
    """``NodeType``; the kinds that traces use."""

    INVALID_NODE = 0
    METADATA_NODE = 1
    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7


class CollectiveCommType(IntEnum):
    """``CollectiveCommType``."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


# Message -> (field, number, type); a message's name as type, ``repeated`` before either.
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "Int64List": (("values", 1, "repeated int64"),),
    "GlobalMetadata": (("version", 1, "string"), ("attr", 2, "repeated AttributeProto")),
    "IOInfo": (("values", 1, "string"), ("shapes", 2, "string"), ("types", 3, "string")),
    "Node": (
        ("id", 1, "uint64"),
        ("name", 2, "string"),
        # An enumeration, which is an int32 to the wire: unknown kinds must not be lost.
        ("type", 3, "int32"),
        ("ctrl_deps", 4, "repeated uint64"),
        ("data_deps", 5, "repeated uint64"),
        ("start_time_micros", 6, "uint64"),
        ("duration_micros", 7, "uint64"),
        ("inputs", 8, "IOInfo"),
        ("outputs", 9, "IOInfo"),
        ("attr", 10, "repeated AttributeProto"),
    ),
    "AttributeProto": (("name", 1, "string"),),
}
# The oneof ``value`` of AttributeProto.
_VALUES: tuple[tuple[str, int, str], ...] = (
    ("double_val", 3, "double"),
    ("float_val", 5, "float"),
    ("int32_val", 7, "int32"),
    ("int64_val", 9, "int64"),
    ("int64_list", 10, "Int64List"),
    ("uint32_val", 11, "uint32"),
    ("uint64_val", 13, "uint64"),
    ("bool_val", 27, "bool"),
    ("string_val", 29, "string"),
)


@cache
def message_classes() -> dict[str, type[Any]]:
    """Message classes by name.

    Raises:
        InputError: when the package ``protobuf`` is missing.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
    except ImportError as error:
        raise InputError(FIELD, "protobuf", "is not installed", "the extra chakra") from error
    file = descriptor_pb2.FileDescriptorProto(
        name="et_def.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _add_field(descriptor_pb2.FieldDescriptorProto, message, *field)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
            for field in _VALUES:
                _add_field(descriptor_pb2.FieldDescriptorProto, message, *field).oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in _MESSAGES
    }


def _add_field(declaration: Any, message: Any, name: str, number: int, type_name: str) -> Any:
    repeated = type_name.startswith("repeated ")
    type_name = type_name.removeprefix("repeated ")
    field = message.field.add(
        name=name,
        number=number,
        label=declaration.LABEL_REPEATED if repeated else declaration.LABEL_OPTIONAL,
    )
    if type_name in _MESSAGES:
        field.type = declaration.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{type_name}"
    else:
        field.type = getattr(declaration, f"TYPE_{type_name.upper()}")
    return field


def attribute(name: str, kind: str, value: Any) -> Any:
    """An ``AttributeProto``; ``kind`` is the member of its oneof, as ``int64_val``."""
    made = message_classes()["AttributeProto"](name=name)
    if kind == "int64_list":
        made.int64_list.values.extend(value)
        # An empty list is still a list.
        made.int64_list.SetInParent()
    else:
        setattr(made, kind, value)
    return made


def attributes(message: Any) -> dict[str, Any]:
    """The attributes of a message by name: numbers, texts, flags, tuples for lists."""
    found = {}
    for each in message.attr:
        kind = each.WhichOneof("value")
        if kind is not None:
            value = getattr(each, kind)
            found[each.name] = tuple(value.values) if kind == "int64_list" else value
    return found


def write_message(file: BinaryIO, message: Any) -> None:
    """Append a message after its length."""
    text = message.SerializeToString(deterministic=True)
    length = len(text)
    prefix = bytearray()
    while length >= _CONTINUES:
        prefix.append(length % _CONTINUES + _CONTINUES)
        length //= _CONTINUES
    prefix.append(length)
    file.write(bytes(prefix) + text)


def read_messages(path: Path, file: BinaryIO) -> Iterator[Any]:
    """The messages of a file: the metadata, then nodes.

    Raises:
        InputError: naming file and message, when it is cut short or not of this schema.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    classes = message_classes()
    name, number = "GlobalMetadata", 0
    while (length := _read_length(path, file, number)) is not None:
        text = file.read(length)
        if len(text) != length:
            raise InputError(FIELD, f"{path}: message {number}", "was cut short")
        try:
            yield classes[name].FromString(text)
        except DecodeError as error:
            problem = f"is no {name}: {error}"
            raise InputError(FIELD, f"{path}: message {number}", problem) from None
        name, number = "Node", number + 1
    if number == 0:
        raise InputError(FIELD, path, "is empty")


def _read_length(path: Path, file: BinaryIO, number: int) -> int | None:
    """The varint at the place of reading; None at the end of the file."""
    length, shift = 0, 0
    while True:
        byte = file.read(1)
        if not byte:
            if shift == 0:
                return None
            raise InputError(FIELD, f"{path}: message {number}", "was cut short")
        length += (byte[0] % _CONTINUES) << shift
        if length > MAX_MESSAGE_BYTES or shift > 28:
            problem = f"is longer than {MAX_MESSAGE_BYTES} bytes"
            raise InputError(FIELD, f"{path}: message {number}", problem)
        if byte[0] < _CONTINUES:
            return length
        shift += 7


# Arguments of operations as PyTorch's execution traces write them: values, shapes and types.
#
# A tensor is ``[tensor, storage, offset, elements, bytes an element, device]`` with its shape and
# a type ``Tensor(c10::BFloat16)``; a list is a list, ``GenericList[...]``. Each of the three is a
# text that holds a list with an entry for each argument. Strides have no place there.

C_NAMES = {dtype: name for name, dtype in reversed(C_DTYPES.items())}
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
        return TensorSpec(C_DTYPES.get(name, name), sizes, None if on_host else _size(storage))
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
