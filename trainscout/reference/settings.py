"""Every setting as a row: its values, default and meaning, read from dataclasses and checks."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.conf.schema import NAMED
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.model import Model

# What a field's name says about its unit, longest ending first.
_UNITS = {
    "_bytes_per_s": "bytes/s",
    "_samples_per_s": "samples/s",
    "_usd_per_hour": "$ an hour",
    "_usd_per_gbps": "$ per Gb/s",
    "_bytes": "bytes",
    "_gbps": "Gb/s",
    "_hours": "hours",
    "_flops": "FLOP/s",
    "_s": "s",
}
_KINDS = {int: "integer", float: "number", bool: "boolean", str: "text"}
_PROBES: dict[Any, Any] = {int: -1, float: -1.0, str: "?"}

Check = Callable[[Any], object]
"""Raises InputError, with what is allowed, for a value that cannot be used."""


@dataclass(frozen=True)
class Setting:
    """One line of the reference, in Markdown; ``default`` is empty where there is none."""

    name: str
    values: str
    default: str
    meaning: str


def settings(prefix: str, value: Any, check: Check) -> list[Setting]:
    """The fields of the dataclass of ``value`` as settings named ``prefix.field``.

    ``value`` is a valid one: each field is replaced by something impossible in turn, and what
    ``check`` then calls allowed is what the reference says. Fields that are dataclasses themselves
    are left to a section of their own.
    """
    cls = type(value)
    hints = typing.get_type_hints(cls)
    docs = field_docs(cls)
    return [
        Setting(
            f"{prefix}.{field.name}",
            _values(field, hints[field.name], _allowed(value, field.name, hints, check)),
            default_text(field),
            docs.get(field.name, ""),
        )
        for field in dataclasses.fields(cls)
        if not _nested(hints[field.name])
    ]


def default_text(field: dataclasses.Field[Any]) -> str:
    """The default of a field as a user would write it; empty when there is none."""
    if field.default is not MISSING:
        return f"`{as_written(field.default)}`"
    return "" if field.default_factory is MISSING else f"`{as_written(field.default_factory())}`"


def as_written(value: Any) -> str:
    """A value as it is written on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(as_written(part) for part in value) + "]"
    if isinstance(value, dict):
        inside = ", ".join(f"{key}: {as_written(part)}" for key, part in value.items())
        return "{" + inside + "}"
    return str(value.name if isinstance(value, NAMED) else value) or '""'


def _allowed(value: Any, name: str, hints: dict[str, Any], check: Check) -> str | None:
    """What ``check`` says is allowed when it meets something impossible in a field."""
    hint = _bare(hints[name])
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[0] in _PROBES:
        probe: Any = (_PROBES[typing.get_args(hint)[0]],)
    elif hint not in _PROBES:
        return None
    else:
        probe = _PROBES[hint]
    try:
        check(dataclasses.replace(value, **{name: probe}))
    except InputError as error:
        if error.field.rpartition(".")[2] == name:
            return error.allowed
    return None


def _values(field: dataclasses.Field[Any], hint: Any, allowed: str | None) -> str:
    name, bare = field.name, _bare(hint)
    if bare is Model:
        return "what [`model`](choices.md) can be"
    if bare in NAMED:
        return ", ".join(f"`{each}`" for each in load_catalogue().contents(name))
    kind = _kind(bare)
    is_text = bare is str or typing.get_args(bare)[:1] == (str,)
    if allowed is not None and (is_text or re.fullmatch(r"\d+(, \d+)+", allowed)):
        # Words are no names: "a CSV file", "letters, digits and '.'".
        choices = [] if "'" in allowed else allowed.split(", ")
        names = ", ".join(choice if " " in choice else f"`{choice}`" for choice in choices)
        names = names or allowed
        kind = f"list of {names}" if typing.get_origin(bare) is tuple else names
    elif allowed is not None:
        for words in ("a finite number ", "a whole number "):
            allowed = allowed.removeprefix(words)
        kind = f"{kind} {allowed}"
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), None)
    text = kind if unit is None else f"{kind}, {unit}"
    # A default of null says itself that null is allowed.
    return text if bare is hint or field.default is None else f"{text}, or `null`"


def _kind(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        names = arguments[0] in (str, *NAMED)
        return "list of names" if names else f"list of {_kind(_bare(arguments[0]))}s"
    if origin is dict:
        return "names to values" if arguments[1] is Any else f"names to {_kind(arguments[1])}s"
    return _KINDS.get(hint, "value")


def _bare(hint: Any) -> Any:
    """``int`` of ``int | None``."""
    if isinstance(hint, types.UnionType):
        (hint,) = [part for part in typing.get_args(hint) if part is not type(None)]
    return hint


def _nested(hint: Any) -> bool:
    bare = _bare(hint)
    if typing.get_origin(bare) is dict:
        bare = typing.get_args(bare)[1]
    return dataclasses.is_dataclass(bare) and bare not in NAMED


_CODE = re.compile(r"``([^`]+)``")


def field_docs(cls: type) -> dict[str, str]:
    """What stands under each field of ``cls`` or of a dataclass that it inherits from; fields
    without a docstring are left out."""
    docs: dict[str, str] = {}
    for each in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        docs |= _own_field_docs(each)
    return docs


def _own_field_docs(cls: type) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for field, below in itertools.pairwise(definition.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = _markdown(" ".join(text.split()))
    return docs


def _markdown(text: str) -> str:
    # What Python calls None is null in a file and on the command line.
    return re.sub(r"\bNone\b", "`null`", _CODE.sub(r"`\1`", text))
