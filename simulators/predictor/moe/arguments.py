"""``name=value`` arguments to the values they declare."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.moe.experiment import Experiment, Extent, Message
from trainscout.simulators.predictor.moe.mesh import Mesh
from trainscout.simulators.predictor.moe.popularity import read_histograms
from trainscout.simulators.predictor.moe.router import Router
from trainscout.simulators.predictor.question.errors import InputError, nearest_name


@dataclass(frozen=True)
class Files:
    """What is read and written beside the tables."""

    histogram: Path | None = field(
        default=None, metadata={"meaning": "CSV of measured routings: [layer,] expert, tokens"}
    )
    routing_file: Path | None = field(
        default=None, metadata={"meaning": "CSV to write: the experts of every token"}
    )
    log_file: Path | None = field(
        default=None, metadata={"meaning": "CSV to write: who sent what in which rounds"}
    )


GROUPS: dict[str, type[Any]] = {
    "Routing": Router,
    "Message": Message,
    "Mesh": Mesh,
    "Extent": Extent,
    "Files": Files,
}


def parameters(group: type[Any]) -> list[dataclasses.Field[Any]]:
    """The fields of a group that can be given on the command line."""
    return [entry for entry in dataclasses.fields(group) if "meaning" in entry.metadata]


def parse(arguments: Sequence[str]) -> tuple[Experiment, Files]:
    """The checked experiment and the files of a command line.

    Raises:
        InputError: for an unknown, repeated, unreadable or impossible parameter.
    """
    given = _split(arguments)
    router, message, mesh, extent, files = (
        _build(group, given) for group in (Router, Message, Mesh, Extent, Files)
    )
    if files.histogram is not None:
        router = dataclasses.replace(router, measured=read_histograms(files.histogram))
    experiment = Experiment(router, message, mesh, extent)
    experiment.check()
    if extent.load_per_node is not None:
        _refuse_routing(given)
    if files.routing_file is not None and files.routing_file == files.log_file:
        raise InputError("log_file", files.log_file, "is the routing_file too")
    return experiment, files


def _refuse_routing(given: Mapping[str, str]) -> None:
    """An even load has no routing: say so instead of leaving a parameter without effect."""
    routing = [entry.name for group in (Router, Message) for entry in parameters(group)]
    for name in (*routing, "histogram", "routing_file"):
        if name in given:
            raise InputError(name, given[name], "has no effect: load_per_node replaces a routing")


def _split(arguments: Sequence[str]) -> dict[str, str]:
    names = [entry.name for group in GROUPS.values() for entry in parameters(group)]
    given: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name not in names:
            raise InputError(name, value, "is not a parameter", names, nearest_name(name, names))
        if not equals or not value:
            raise InputError(name, value, "has no value", f"{name}=VALUE")
        if name in given:
            raise InputError(name, value, "is given twice")
        given[name] = value
    return given


def _build(group: type[Any], given: Mapping[str, str]) -> Any:
    hints = typing.get_type_hints(group)
    names = [entry.name for entry in parameters(group) if entry.name in given]
    return group(**{name: _value(name, given[name], hints[name]) for name in names})


def _value(name: str, text: str, hint: Any) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(None) in kinds and text in ("null", "None"):
        return None
    if Path in kinds:
        return Path(text)
    try:
        # Exact for whole numbers of any length, which float is not.
        return int(text) if int in kinds else _finite(text)
    except ValueError:
        pass
    try:
        number = _finite(text)
    except ValueError:
        number = math.nan
    if int in kinds and number.is_integer():
        return int(number)
    raise InputError(
        name, text, "cannot be read", "a whole number" if int in kinds else "a number"
    )


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
