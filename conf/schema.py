"""Typed schemas for the declarations, derived from the frozen values of ``question.job``.

OmegaConf makes every node of a frozen dataclass read-only, which would refuse
``model.num_layers=8`` on the command line. ``structured`` therefore builds an unfrozen twin
with the same fields, types and defaults; nothing is declared twice.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from typing import Any

from trainscout.simulators.predictor.io.values import field_types
from trainscout.simulators.predictor.question.architecture import Architecture
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.model import Model

# Dataclasses that a declaration names instead of spelling them out: they have files of their own.
NAMED = (Architecture, Framework, Model)


@functools.cache
def structured(cls: type[Any]) -> type[Any]:
    """The unfrozen twin of dataclass ``cls``, for OmegaConf and Hydra's ConfigStore.

    Dataclasses in its fields (``Moe | None``, ``dict[str, Target]``) become their twins too, those
    of ``NAMED`` a name. A field without a default becomes mandatory (``???``). The twin refuses
    unknown keys and values of the wrong type.
    """
    hints = field_types(typing.cast(type, cls))
    fields: list[Any] = []
    for field in dataclasses.fields(cls):
        twin, factory = _twin_type(hints[field.name]), field.default_factory
        if factory is hints[field.name] and dataclasses.is_dataclass(factory):
            factory = twin
        # A fresh Field: a Field object belongs to the class it was taken from.
        copy: Any = dataclasses.field(default=field.default, default_factory=factory)
        fields.append((field.name, twin, copy))
    # OmegaConf reads its fields; nothing else is asked of it. (Without a docstring, Python would
    # write one that shows the signature.)
    namespace = {"__module__": __name__, "__doc__": cls.__doc__}
    return dataclasses.make_dataclass(
        cls.__name__, fields, namespace=namespace, init=False, repr=False, eq=False
    )


def _twin_type(hint: Any) -> Any:
    if hint in NAMED:
        return str
    if dataclasses.is_dataclass(hint):
        return structured(typing.cast(type, hint))
    if typing.get_origin(hint) is tuple:
        return types.GenericAlias(tuple, (_twin_type(typing.get_args(hint)[0]), ...))
    if typing.get_origin(hint) is dict:
        key, value = typing.get_args(hint)
        return types.GenericAlias(dict, (key, _twin_type(value)))
    if isinstance(hint, types.UnionType):
        twins = [_twin_type(part) for part in typing.get_args(hint)]
        return functools.reduce(operator.or_, twins)
    return hint
