"""What a search or a study goes by: what is given, else what the command goes by."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainscout.conf.catalogue import Catalogue, command_defaults
from trainscout.optimizer.objective import MEASURES
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.simulators.predictor.io.values import typed_value

Choice = str | Path | Mapping[str, Any]
"""A declaration by its name, its YAML file, or its fields."""


def content_of(named: Catalogue, command: str, group: str, given: Any) -> dict[str, Any]:
    """The fields of a declaration: those given, or of the command's choice."""
    if isinstance(given, Mapping):
        return dict(given)
    name = command_defaults(command)[1][group] if given is None else str(given)
    return named.contents(group).chosen(group, name)


def search_options(
    named: Catalogue, command: str, search: str | SearchOptions | None, changed: Mapping[str, Any]
) -> SearchOptions:
    """How to search; a command's own settings go before those of the algorithm's file."""
    if isinstance(search, SearchOptions):
        return dataclasses.replace(search, **changed)
    own = command_defaults(command)[0].get("search", {})
    fields = {**content_of(named, command, "search", search), **own, **changed}
    return typed_value(SearchOptions, "search", fields)


def measures_of(named: Catalogue, objective: str | Sequence[str] | None) -> tuple[str, ...]:
    """A measure by its name, or those of a file of the group ``objective``."""
    if objective is not None and not isinstance(objective, str):
        return tuple(objective)
    if objective in MEASURES:
        return (str(objective),)
    return tuple(content_of(named, "config", "objective", objective)["names"])


def executor_options(named: Catalogue, executor: str | ExecutorOptions | None) -> ExecutorOptions:
    if isinstance(executor, ExecutorOptions):
        return executor
    content = content_of(named, "config", "executor", executor)
    return typed_value(ExecutorOptions, "executor", content)
