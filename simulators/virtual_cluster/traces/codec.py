"""Events as lines of text and back: one JSON array a line, ``[kind, field, field, ...]``.

So are the messages of live mode (``LineCodec`` of other classes).

The kind is the class's name in snake case and the fields are the dataclass's, in its order, so
``events.py`` alone says what a line holds; the header carries the same table, and a reader refuses
a file whose table is another. Arguments of operations are written compactly:

- a tensor as a text, ``bfloat16[2048,12288]@7726`` (dtype, shape, storage), with ``{strides}``
  after the shape when it is not contiguous, ``@host`` for host memory;
- a text as ``{"text": ...}``; infinities and NaN, which JSON lacks, as ``{"float": "-inf"}``;
- other numbers, flags and None as JSON has them; a tuple as an array.
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from json import encoder
from operator import attrgetter
from typing import Any, NoReturn, cast, get_args

from . import events
from .events import Argument, Event, Header, Op, Phase, TensorSpec, ValueRead

VERSION = 4
FORMAT = "trainscout-trace"
GRADES = ("exact", "expected", "invented")
# Tensors recur (an output is an input later), so their texts and values are kept; this bounds it.
MAX_REMEMBERED_TENSORS = 1 << 16


class MalformedError(ValueError):
    """A line or header that is not what the format says; the file's reader adds where."""


def kind_of(event_class: type) -> str:
    """The name that lines of this class start with: ``WorkWait`` -> ``work_wait``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", event_class.__name__).lower()


# Writing


# Scripts count ranks and sizes with NumPy, too. A ``JSONEncoder`` would make this for every line,
# in more time than the line takes.
_chunks = encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, operator.index, encoder.encode_basestring_ascii, None, ":", ",", False, False, False
)


def _to_json(value: object) -> str:
    return "".join(_chunks(value, 0))


_shape_texts: dict[tuple[object, ...], str] = {}


def encode_header(header: Header) -> str:
    """The first line of a file: format, version, what each kind's fields are, the header."""
    fields = {kind: list(names) for kind, names in FIELDS.items()}
    return _to_json(
        {
            "format": FORMAT,
            "version": VERSION,
            "header": dataclasses.asdict(header),
            "events": fields,
        }
    )


def _tensor_text(tensor: TensorSpec) -> str:
    key = (tensor.dtype, tensor.shape, tensor.strides)
    text = _shape_texts.get(key)
    if text is None:
        text = f"{tensor.dtype}[{_numbers(tensor.shape)}]"
        if tensor.strides is not None:
            text += f"{{{_numbers(tensor.strides)}}}"
        text += "@"
        if len(_shape_texts) >= MAX_REMEMBERED_TENSORS:
            _shape_texts.clear()
        _shape_texts[key] = text
    return text + ("host" if tensor.storage is None else str(tensor.storage))


def _numbers(numbers: tuple[int, ...]) -> str:
    return ",".join([str(int(number)) for number in numbers])


def encode_argument(argument: Argument) -> object:
    """The argument as lines hold it, before it is JSON."""
    if type(argument) is TensorSpec:
        return _tensor_text(argument)
    if isinstance(argument, tuple):
        return [encode_argument(item) for item in argument]
    if type(argument) is str:
        return {"text": argument}
    if type(argument) is float and not math.isfinite(argument):
        return {"float": str(argument)}
    return argument


def _encode_op(op: Op) -> tuple[object, ...]:
    inputs = [encode_argument(argument) for argument in op.inputs]
    outputs = [_tensor_text(tensor) for tensor in op.outputs]
    return ("op", op.name, inputs, outputs, op.stream, op.site)


def _encode_value_read(read: ValueRead) -> tuple[object, ...]:
    value = encode_argument(read.value)
    return ("value_read", read.operation, value, read.grade, read.stream, read.site)


def _encoder(kind: str, names: tuple[str, ...]) -> Callable[[Any], tuple[object, ...]]:
    if not names:
        return lambda event: (kind,)
    if len(names) == 1:
        one = attrgetter(names[0])
        return lambda event: (kind, one(event))
    several = attrgetter(*names)
    return lambda event: (kind, *several(event))


# Of classes with arguments of operations.
_OWN_ENCODERS: dict[type, Callable[[Any], tuple[object, ...]]] = {
    Op: _encode_op,
    ValueRead: _encode_value_read,
}


# Reading

_NUMBER = r"(?:0|[1-9][0-9]{0,18})"
_TENSOR = re.compile(
    rf"([a-z][a-z0-9_]*)\[((?:{_NUMBER}(?:,{_NUMBER})*)?)\]"
    rf"(\{{(?:{_NUMBER}(?:,{_NUMBER})*)?\}})?@({_NUMBER}|host)"
)
_tensors: dict[str, TensorSpec] = {}


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedError(f"{name} is not JSON")


_from_json = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode


def parse_line(line: str) -> Any:
    """The JSON value that a line holds, and nothing beside it.

    Raises:
        MalformedError: saying what is wrong.
    """
    try:
        value, end = _from_json(line)
    except MalformedError:
        raise
    except RecursionError:
        raise MalformedError("is nested too deeply") from None
    except ValueError as error:
        raise MalformedError(f"is not JSON: {error}") from None
    if end != len(line):
        raise MalformedError("has something after its JSON value")
    return value


def decode_header(line: str) -> Header:
    """The header that ``encode_header`` wrote.

    Raises:
        MalformedError: for another format or version, or a field that is missing, unknown or of a
            wrong type.
    """
    top = parse_line(line)
    if type(top) is not dict or top.get("format") != FORMAT:
        raise MalformedError(f"does not begin a {FORMAT} file")
    if top.get("version") != VERSION or type(top["version"]) is not int:
        version = _short(top.get("version"))
        reads = f"this program reads version {VERSION}: record the trace again"
        raise MalformedError(f"has version {version}; {reads}")
    _same_keys("header line", top, ("format", "version", "header", "events"))
    _check_table(top["events"])
    declared = top["header"]
    if type(declared) is not dict:
        raise MalformedError("header is not an object")
    _same_keys("header", declared, _HEADER)
    values = {}
    for name, check in _HEADER.items():
        try:
            values[name] = check(declared[name])
        except MalformedError as error:
            raise MalformedError(f"header.{name} {error}") from None
    header = Header(**values)
    if header.world_size > MOST_RANKS:
        raise MalformedError(f"header.world_size {header.world_size} is above {MOST_RANKS}")
    if not header.rank < header.world_size:
        raise MalformedError(f"header.rank {header.rank} is not below {header.world_size}")
    return header


def _check_table(table: object) -> None:
    if type(table) is not dict:
        raise MalformedError("events is not an object")
    _same_keys("events", table, FIELDS)
    for kind, names in FIELDS.items():
        if table[kind] != list(names):
            raise MalformedError(f"fields of {kind} are {_short(table[kind])}, not {list(names)}")


def _same_keys(
    what: str, entries: Mapping[str, object], known: Mapping[str, Any] | tuple[str, ...]
) -> None:
    for name in entries:
        if name not in known:
            raise MalformedError(f"{what} has the unknown entry {_short(name)}")
    for name in known:
        if name not in entries:
            raise MalformedError(f"{what} lacks {name}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _wrong(value: object, wanted: str) -> NoReturn:
    raise MalformedError(f"is {_short(value)}, not {wanted}")


def _integer(value: Any) -> int:
    if type(value) is not int or value < 0:
        _wrong(value, "a whole number from 0")
    return value


def _positive(value: Any) -> int:
    if type(value) is not int or value < 1:
        _wrong(value, "a whole number from 1")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        _wrong(value, "a text")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        _wrong(value, "true or false")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
        _wrong(value, "seconds, finite and not negative")
    return float(value)


def _versions(value: Any) -> dict[str, str]:
    if type(value) is not dict:
        _wrong(value, "an object of texts")
    return {name: _text(version) for name, version in value.items()}


def _optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _array(check: Callable[[Any], Any], of: str) -> Callable[[Any], tuple[Any, ...]]:
    def checked(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            _wrong(value, f"an array of {of}")
        return tuple([check(item) for item in value])

    return checked


def one_of(choices: tuple[str, ...]) -> Callable[[Any], str]:
    """A check of a field: it holds one of these texts."""

    def check(value: Any) -> str:
        if value not in choices:
            _wrong(value, f"one of {', '.join(choices)}")
        return cast(str, value)

    return check


def _tensor(value: Any) -> TensorSpec:
    known = _tensors.get(value) if type(value) is str else _wrong(value, "a tensor")
    if known is not None:
        return known
    match = _TENSOR.fullmatch(value)
    if match is None:
        _wrong(value, "a tensor")
    dtype, shape, strides, storage = match.groups()
    tensor = TensorSpec(
        dtype,
        _parsed(shape),
        None if storage == "host" else int(storage),
        None if strides is None else _parsed(strides[1:-1]),
    )
    if len(_tensors) >= MAX_REMEMBERED_TENSORS:
        _tensors.clear()
    _tensors[value] = tensor
    return tensor


def _parsed(numbers: str) -> tuple[int, ...]:
    return tuple([int(number) for number in numbers.split(",")]) if numbers else ()


def _argument(value: Any) -> Argument:
    if type(value) is str:
        return _tensor(value)
    if type(value) is list:
        return tuple([_argument(item) for item in value])
    if type(value) is dict:
        return _tagged(value)
    return cast(Argument, value)


def _tagged(value: dict[str, Any]) -> str | float:
    if len(value) == 1:
        ((tag, content),) = value.items()
        if tag == "text" and type(content) is str:
            return content
        if tag == "float" and content in ("inf", "-inf", "nan"):
            return float(content)
    _wrong(value, "a text or a float")


def _value(value: Any) -> Argument:
    if _has_tensor(value):
        _wrong(value, "a value or values")
    return _argument(value)


def _has_tensor(value: Any) -> bool:
    if type(value) is list:
        # The values that one call reads are flat.
        return any(type(item) in (str, list) for item in value)
    return type(value) is str


# What a field's annotation in events.py asks of its value; ``Scalar`` is the value of a read.
_CHECKS: dict[str, Callable[[Any], Any]] = {
    "int": _integer,
    "int | None": _optional(_integer),
    "str": _text,
    "bool": _flag,
    "float": _seconds,
    "float | None": _optional(_seconds),
    "tuple[int, ...]": _array(_integer, "whole numbers"),
    "tuple[int, ...] | None": _optional(_array(_integer, "whole numbers")),
    "tuple[str, ...]": _array(_text, "texts"),
    "tuple[str | None, ...]": _array(_optional(_text), "texts"),
    "dict[str, str]": _versions,
    "tuple[Argument, ...]": _array(_argument, "arguments"),
    "tuple[TensorSpec, ...]": _array(_tensor, "tensors"),
    "Scalar | tuple[Scalar, ...]": _value,
}


def _checks(declared: type[Any]) -> dict[str, Callable[[Any], Any]]:
    return {field.name: _CHECKS[str(field.type)] for field in dataclasses.fields(declared)}


# Ten times the largest GPU cluster announced; a job's ranks are listed when it is put together.
MOST_RANKS = 10_000_000
_HEADER = _checks(Header) | {"world_size": _positive, "local_world_size": _positive}
EVENT_CHECKS: dict[tuple[type, str], Callable[[Any], Any]] = {
    (Phase, "phase"): one_of(events.PHASES),
    (ValueRead, "grade"): one_of(GRADES),
}


class LineCodec:
    """Values of some dataclasses as lines and back.

    Args:
        classes: of which a line may hold a value.
        checks: what fields ask of their value beyond their annotation, by class and name.
    """

    def __init__(
        self, classes: Iterable[type[Any]], checks: Mapping[tuple[type, str], Callable[[Any], Any]]
    ) -> None:
        self.classes = {kind_of(each): each for each in classes}
        self.fields = {
            kind: tuple(field.name for field in dataclasses.fields(each))
            for kind, each in self.classes.items()
        }
        self._encoders = {
            each: _OWN_ENCODERS.get(each) or _encoder(kind, self.fields[kind])
            for kind, each in self.classes.items()
        }
        self._decoders = {
            kind: (
                each,
                tuple(checks.get((each, name), check) for name, check in _checks(each).items()),
            )
            for kind, each in self.classes.items()
        }

    def encode(self, value: Any) -> str:
        """The value's line, without the line's end.

        Raises:
            TypeError: for an object of another class, or a value that no line holds.
            ValueError: for seconds that are not finite.
        """
        return _to_json(self.row(value))

    def row(self, value: Any) -> tuple[object, ...]:
        """What the value's line says, before it is JSON; raises TypeError as ``encode``."""
        encode = self._encoders.get(type(value))
        if encode is None:
            raise TypeError(f"{type(value).__name__} is no event of a trace")
        return encode(value)

    def decode(self, line: str) -> Any:
        """The value that ``encode`` wrote.

        Raises:
            MalformedError: for an unknown kind, another number of fields, or a value that the
                field cannot have.
        """
        return self.value(parse_line(line))

    def value(self, row: Any) -> Any:
        """The value whose line says so; raises as ``decode``."""
        if type(row) is not list or not row:
            raise MalformedError("is not an array that starts with an event's kind")
        kind = row[0]
        if type(kind) is not str or kind not in self._decoders:
            raise MalformedError(f"kind {_short(kind)} is unknown")
        make, checks = self._decoders[kind]
        if len(row) - 1 != len(checks):
            raise MalformedError(f"{kind} has {len(row) - 1} fields, not {len(checks)}")
        values = []
        for position, check in enumerate(checks, start=1):
            try:
                values.append(check(row[position]))
            except (MalformedError, RecursionError) as error:
                problem = "is nested too deeply" if isinstance(error, RecursionError) else error
                field = self.fields[kind][position - 1]
                raise MalformedError(f"{kind}.{field} {problem}") from None
        return make(*values)


EVENTS = LineCodec(get_args(Event), EVENT_CHECKS)
CLASSES, FIELDS = EVENTS.classes, EVENTS.fields
encode_event: Callable[[Event], str] = EVENTS.encode
decode_event: Callable[[str], Event] = EVENTS.decode
