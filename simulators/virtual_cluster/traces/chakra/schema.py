"""The messages of Chakra's protobuf schema that traces need, built when first used.

Names and numbers of fields and enumerations are those of ``et_def.proto`` of MLCommons Chakra
(package ``ChakraProtoMsg``); fields that traces do not need are left out, and what others wrote in
them is passed over. The messages live in a pool of their own, so that the schema of an installed
``chakra`` does not clash.

A file is messages one after the other, each after its length as a varint: the metadata, then
nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from trainscout.simulators.predictor.question.errors import InputError

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
        from google.protobuf import (  # type: ignore[import-untyped]
            descriptor_pb2,
            descriptor_pool,
            message_factory,
        )
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
