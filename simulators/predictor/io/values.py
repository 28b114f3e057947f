"""Frozen dataclasses from plain values: every name known, every value of its declared type."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Mapping
from datetime import date
from typing import Any, TypeVar

from trainscout.simulators.predictor.question.errors import InputError, nearest_name
from trainscout.simulators.predictor.question.redaction import visible

T = TypeVar("T")

KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
}
# What Hydra and OmegaConf write where a value has yet to be given.
MISSING = "???"
_TRUE = ("yes", "y", "on", "true")
_FALSE = ("no", "n", "off", "false")


def typed_value(cls: type[T], field: str, content: object) -> T:
    """An instance of a dataclass from a mapping of plain values.

    Numbers may be text, as on a command line; fields left out keep their default.

    Args:
        cls: a frozen dataclass of numbers, text, tuples and mappings of them, and further
            dataclasses.
        field: the dotted name of the value, for error messages (``model``); "": its fields are
            called by their names alone.

    Raises:
        InputError: for a missing, unknown, mistyped or non-finite field.
    """
    declared = _fields(typing.cast(Any, cls))
    if not isinstance(content, Mapping):
        raise InputError(field, content, "is not a group of fields", expected(cls))
    values: dict[str, Any] = {}
    for name, value in content.items():
        where = f"{field}.{name}" if field else name
        if name not in declared:
            raise unknown_name(where, value, declared)
        if not (isinstance(value, str) and value == MISSING):
            values[name] = _converted(declared[name][0], where, value)
    missing = [
        name
        for name, (_, required) in declared.items()
        if name not in values and (required or name in content)
    ]
    if missing:
        raise missing_fields(field, missing, expected(declared[missing[0]][0]))
    return cls(**values)


def missing_fields(group: str, names: list[str], allowed: str | None = None) -> InputError:
    """The refusal of a group that lacks fields; ``allowed``: what the first may be."""
    first, *others = names
    problem = "is missing"
    if others:
        problem, allowed = (
            f"{problem}, and so are {', '.join(others)}",
            "docs/reference.md has each",
        )
    return InputError(f"{group}.{first}", MISSING, problem, allowed)


def recorded(kind: Any, value: Any) -> Any:
    """An instance of a dataclass, or of what is inside one, that ``asdict`` and JSON took apart.

    Raises:
        ValueError, TypeError: for the record of anything else.
    """
    kind = next((each for each in _options(kind) if each is not types.NoneType), kind)
    if value is None:
        return None
    if dataclasses.is_dataclass(kind):
        hints = field_types(typing.cast(type, kind))
        if set(value) != set(hints):
            raise ValueError(f"{kind} record has fields {sorted(value)}")
        return typing.cast(type, kind)(
            **{name: recorded(hints[name], item) for name, item in value.items()}
        )
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)
        parts = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(recorded(part, item) for part, item in zip(parts, value, strict=True))
    return value


def unknown_name(field: str, value: object, names: typing.Iterable[str]) -> InputError:
    """The refusal of a dotted name whose last part is none of ``names``."""
    name = field.rpartition(".")[2]
    if field in ("recipe.dp", "a.dp", "b.dp"):
        problem, allowed = "follows from the other degrees", "GPUs / (tp x pp x cp)"
        return InputError(field, value, problem, allowed)
    names = sorted(names)
    return InputError(field, value, "is not a known name", names, nearest_name(name, names))


_FORMS = {
    "tokens": ": 300e9, 300B or 1T",
    "days": ", or a date: 2030-12-31",
    "usd": ": 2e6 or $2M",
    "usd_per_hour": " of USD",
    "gbps": ", in Gb/s",
    "bytes_per_s": ", in bytes per second",
    "bytes": ", in bytes",
    "s": ", in seconds",
}
"""What a number may look like, by how its field's name ends."""


def expected(hint: Any, field: str = "") -> str | None:
    """In words, what a field of this type and (dotted) name accepts; None where any value does."""
    options = _options(hint)
    parts = [part for part in options if part is not types.NoneType]
    if len(parts) != 1:
        return None
    (part,) = parts
    origin = typing.get_origin(part)
    if dataclasses.is_dataclass(part):
        text = "the fields " + ", ".join(entry.name for entry in dataclasses.fields(part))
    elif origin in (tuple, list):
        text = "a list"
    elif origin is dict:
        text = "names and values"
    elif part in KINDS:
        text = KINDS[part]
        if part is float:
            name = field.rpartition(".")[2]
            text += next(
                (form for end, form in _FORMS.items() if f"_{name}".endswith(f"_{end}")), ""
            )
    else:
        return None
    return f"{text}, or null" if len(options) > 1 else text


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Types of a dataclass's fields by name: evaluating what stands there as text takes long."""
    return typing.get_type_hints(cls)


@functools.cache
def _fields(cls: type[Any]) -> dict[str, tuple[Any, bool]]:
    """Type of each field of a dataclass, and whether it has to be given."""
    hints = field_types(typing.cast(type, cls))
    unset = dataclasses.MISSING
    return {
        entry.name: (hints[entry.name], entry.default is unset and entry.default_factory is unset)
        for entry in dataclasses.fields(cls)
    }


def _options(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if is_union else (hint,)


def _converted(hint: Any, field: str, value: Any) -> Any:
    options = _options(hint)
    if value is None and (types.NoneType in options or hint is Any):
        return None
    (kind,) = (part for part in options if part is not types.NoneType)
    if kind is Any:
        _require_finite(field, value)
        return tuple(value) if isinstance(value, list) else value
    if dataclasses.is_dataclass(kind):
        if isinstance(value, typing.cast(type, kind)):
            return value
        if value is None:
            raise InputError(field, value, "has the wrong type", expected(hint))
        return typed_value(typing.cast(type, kind), field, value)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict and isinstance(value, Mapping):
        if inner[1] is Any:
            _require_finite(field, value)
            return dict(value)
        return {
            str(name): _converted(inner[1], f"{field}.{name}", item)
            for name, item in value.items()
        }
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_converted(inner[0], f"{field}.{i}", item) for i, item in enumerate(value))
    if kind is str and isinstance(value, str) and visible(value) != value:
        # Names are shown on terminals, and these would be obeyed.
        raise InputError(field, value, "holds control characters", "text that can be shown")
    if kind is float and isinstance(value, str):
        value = _spoken(field, value)
    try:
        found = _PRIMITIVES[kind](value)
    except (KeyError, ValueError):
        nearest = f"[{value}]" if origin is tuple and isinstance(value, str | int) else None
        problem, allowed = "has the wrong type", expected(hint, field)
        raise InputError(field, value, problem, allowed, nearest) from None
    if kind is int and abs(found) > _MOST_WHOLE:
        raise InputError(field, value, "is out of range", f"at most {_MOST_WHOLE:,}")
    _require_finite(field, found)
    return found


def _spoken(field: str, text: str) -> str | float:
    """Counts of tokens and dollars as people write them, and days until a date."""
    name = field.rpartition(".")[2]
    if name in ("tokens", "usd"):
        text = text.removeprefix("$") if name == "usd" else text
        return spoken_number(text) or text
    if name != "days" or not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        return text
    try:
        left = (date.fromisoformat(text) - date.today()).days
    except ValueError:  # no date: refused as what is no number
        return text
    if left <= 0:
        raise InputError(field, text, "is past", "a date to come, or a number of days")
    return left


def _require_finite(field: str, value: object) -> None:
    """Refuse NaN and infinities wherever they are; ``check()`` does not look at every field."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            _require_finite(f"{field}.{name}", item)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(field, value, "is out of range", "a finite number")


def _whole(value: object) -> int:
    if isinstance(value, str) or type(value) is int:
        return int(value)
    raise ValueError


# Sizes are multiplied with each other, and arrays of them count in 64 bits.
_MOST_WHOLE = 10**12


def _number(value: object) -> float:
    if isinstance(value, str | float) or type(value) is int:
        return float(value)
    raise ValueError


_SCALES = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def spoken_number(text: str) -> float | None:
    """A number as people write counts of tokens, ``1T`` or ``300B``; None for other texts."""
    digits, scale = text[:-1].strip(), text[-1:]
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", digits) or scale not in _SCALES:
        return None
    return float(digits) * _SCALES[scale]


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in (*_TRUE, *_FALSE):
        return value.lower() in _TRUE
    raise ValueError


def _text(value: object) -> str:
    if value is None or isinstance(value, Mapping | list | tuple | bytes):
        raise ValueError
    return str(value)


_PRIMITIVES: dict[Any, typing.Callable[[object], Any]] = {
    int: _whole,
    float: _number,
    bool: _truth,
    str: _text,
}
