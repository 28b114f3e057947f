"""Settings of a framework, each one field of a job or a function of it, as rows of a table.

A dialect is such a table. What it writes of a job, and what it reads back where a setting is one
field, both follow from its rows; where several settings and fields go together, a dialect has a
function for either way.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, get_args, get_type_hints

from trainscout.reports.dialects.options import Options
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knob import ENVIRONMENT
from trainscout.simulators.predictor.question.recipe import KNOBS


@dataclass(frozen=True)
class Code:
    """Source text that stands as it is, where other values stand as Python writes them."""

    text: str

    def __repr__(self) -> str:
        return self.text


Value = bool | int | float | str | tuple[str, ...] | None
Settings = dict[str, Value]
"""Values by the framework's names, in the order that they are written in; a switch is True."""


@dataclass(frozen=True)
class Setting:
    """One setting. What comes out as None or False is not written, nor is a field that is 0; a
    setting that is not given says nothing, or ``default``."""

    name: str
    """As the framework has it: ``--num-layers``."""
    source: str | Callable[[Job], Value]
    """The field of a job that it is (``model.moe.top_k``), or what is written of a job."""
    values: Mapping[Any, Any] | None = None
    """The framework's words by ours, for a choice."""
    near: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    """Its words that are none of ours: the nearest, and what is assumed (None: the same)."""
    on: bool = True
    """What a switch says of its field."""
    default: Any = None
    """What the framework takes without it, where that is not the field's default."""
    when: Callable[[Job], bool] = lambda job: True
    """Whether it means anything to a job, and is written."""

    def write(self, job: Job) -> Value:
        if not self.when(job):
            return None
        if not isinstance(self.source, str):
            return self.source(job)
        value: Value = value_at(job, self.source)
        if isinstance(value, bool):
            return value == self.on
        return (value or None) if self.values is None or value is None else self.values[value]

    def read(self, options: Options) -> Any:
        """The field's value; None: nothing is said of it.

        Raises:
            InputError: for a value that is no such number or choice.
        """
        assert isinstance(self.source, str)
        kind = _kind(self.source)
        value: Any = None
        if kind is bool:
            value = self.on if options.has(self.name) else None
        elif self.values is not None:
            value = self._choice(options, self.values)
        elif kind is str:
            value = options.text(self.name)
        else:
            value = options.whole(self.name) if kind is int else options.number(self.name)
        return self.default if value is None else value

    def _choice(self, options: Options, values: Mapping[str, str]) -> str | None:
        ours = {theirs: value for value, theirs in values.items()}
        text = options.text(self.name, (*ours, *self.near))
        if text is None or text in ours:
            return None if text is None else ours[text]
        value, assumed = self.near[text]
        if assumed is not None:
            options.assume(f"{self.name} {text}", assumed)
        return value


def knob(framework: str, name: str, when: Callable[[Job], bool] = lambda job: True) -> Setting:
    """The row of a knob that the framework has a flag for."""
    flag = KNOBS[name].flags[framework]
    if KNOBS[name].kind is bool and flag.values is not None:
        # A switch that is there for the value it is true of: --no-...
        on = next(ours for ours, theirs in flag.values.items() if theirs)
        return Setting(flag.name, f"recipe.{name}", on=on, when=when)
    return Setting(flag.name, f"recipe.{name}", flag.values, when=when)


def with_other_knobs(framework: str, *table: Setting) -> tuple[Setting, ...]:
    """A table, and rows of the knobs that the framework has a flag for and the table no row."""
    named = {row.name for row in table}
    rows = (knob(framework, name) for name, each in KNOBS.items() if framework in each.flags)
    return (*table, *(row for row in rows if row.name not in named))


def unknown_knobs(framework: str, together: Container[str], job: Job) -> list[str]:
    """Knobs with an effect that the framework knows nothing of: neither has it a flag for one, nor
    does what its settings say ``together``. Which framework a recipe is of, no flag says."""
    return [
        f"{name}={value}"
        for name, each in KNOBS.items()
        if not {framework, ENVIRONMENT} & set(each.flags)
        and name not in together
        and name != "framework"
        if (value := each.canonical_value(job)) != each.default
    ]


def write(table: Iterable[Setting], job: Job) -> Settings:
    """What a job sets, in the table's order."""
    made = ((row.name, row.write(job)) for row in table)
    return {name: value for name, value in made if value is not None and value is not False}


def read(table: Iterable[Setting], part: str, options: Options) -> dict[str, Any]:
    """Fields of one part of a job (``recipe``, ``model.moe``) that options say something of."""
    found = {}
    for row in table:
        if not isinstance(row.source, str):
            continue
        parent, _, name = row.source.rpartition(".")
        if parent == part and (value := row.read(options)) is not None:
            found[name] = value
    return found


def command_options(settings: Settings) -> list[tuple[str, ...]]:
    """Settings as groups of one option with its values."""
    return [
        (name, *(() if value is True else value if isinstance(value, tuple) else (str(value),)))
        for name, value in settings.items()
    ]


def num_steps(job: Job) -> int:
    """Steps until the training has seen its tokens."""
    return max(1, math.ceil(job.training.tokens / job.tokens_per_step))


def value_at(job: Job, path: str) -> Any:
    """A field of a job; None where a part on the way is left out."""
    if path == "model.moe.dispatcher":
        return job.dispatcher  # the recipe may say another
    value: Any = job
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


@functools.cache
def _kind(path: str) -> Any:
    """The type that a field is declared with, without None."""
    kind: Any = Job
    for name in path.split("."):
        declared = get_type_hints(kind)[name]
        kind = next((each for each in get_args(declared) if each is not NoneType), declared)
    return kind
