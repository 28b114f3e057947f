"""A space of several parts: one for every framework that its recipes may run under.

Parts keep their own conditions, constraints and derived fields. Together they are one space to a
search: its first knob is the framework, a knob of several parts is one knob with the choices of
all, and a knob that the chosen part has not is collapsed like one that does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainscout.optimizer.space import (
    Candidate,
    Dimension,
    Indices,
    Space,
    compile_part,
    mapping_of,
    unknown_knob,
)
from trainscout.simulators.predictor.question.errors import InputError, require_choice
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import KNOBS, Recipe
from trainscout.simulators.predictor.question.validity import Violation

_SECTIONS = ("name", "numerics", "knobs", "parts")


@dataclass(frozen=True)
class UnionSpace(Space):
    """``parts`` under the frameworks that the first knob chooses from, in that order."""

    parts: tuple[Space, ...] = ()

    def canonical(self, indices: Indices) -> Indices:
        part, inside = self._inside(indices)
        if inside is None:
            return indices
        return self._outside(part, self.parts[part].canonical(inside))

    def point(self, indices: Indices) -> dict[str, Any]:
        part, inside = self._inside(indices)
        first = {self.knobs[0].name: self.knobs[0].choices[part]}
        return first if inside is None else first | self.parts[part].point(inside)

    def candidate(self, indices: Indices) -> Candidate:
        part, inside = self._inside(indices)
        if inside is not None:
            return self.parts[part].candidate(inside)
        framework = self.knobs[0].choices[part]
        reason = f"{framework} does not have these choices"
        return Candidate(Recipe(framework=framework), Violation("choices", "framework", reason))

    def of_recipe(self, recipe: Recipe) -> Space:
        """The part that holds recipes of this one's framework; the first where it names none."""
        names = self.knobs[0].choices
        return self.parts[names.index(recipe.framework) if recipe.framework in names else 0]

    def as_union(self, part: int, indices: NDArray[np.int16]) -> NDArray[np.int16]:
        """Points of a part as points of the union."""
        made = np.zeros((len(indices), len(self.knobs)), dtype=np.int16)
        made[:, 0] = part
        for column, (place, numbers) in enumerate(self._places[part]):
            made[:, place] = np.array(numbers, dtype=np.int16)[indices[:, column]]
        return made

    @cached_property
    def _places(self) -> tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]:
        """For every knob of every part: which of the union's it is, and the union's numbers of its
        choices."""
        place = {knob.name: index for index, knob in enumerate(self.knobs)}
        return tuple(
            tuple(
                (place[knob.name], tuple(_numbers(self.knobs[place[knob.name]], knob.choices)))
                for knob in part.knobs
            )
            for part in self.parts
        )

    def _inside(self, indices: Indices) -> tuple[int, Indices | None]:
        """The part of a point and its place there; None where the part lacks a choice."""
        inside = []
        for place, numbers in self._places[indices[0]]:
            if indices[place] not in numbers:
                return indices[0], None
            inside.append(numbers.index(indices[place]))
        return indices[0], tuple(inside)

    def _outside(self, part: int, inside: Indices) -> Indices:
        made = [part] + [0] * (len(self.knobs) - 1)
        for (place, numbers), index in zip(self._places[part], inside, strict=True):
            made[place] = numbers[index]
        return tuple(made)


AsUnion = Callable[[NDArray[np.int16]], NDArray[np.int16]]


def parts_of(space: Space) -> list[tuple[Space, AsUnion]]:
    """The spaces that a space is a union of, and what makes points of theirs its own."""
    if not isinstance(space, UnionSpace):
        return [(space, lambda points: points)]
    return [(part, partial(space.as_union, number)) for number, part in enumerate(space.parts)]


def _numbers(knob: Dimension, choices: Sequence[Any]) -> Iterator[int]:
    known = {(type(value), value): number for number, value in enumerate(knob.choices)}
    return (known[type(value), value] for value in choices)


def compile_space(spec: Mapping[str, Any], question: Question) -> Space:
    """Read a space file (as plain mappings and lists) for one declared question.

    A space of one part under the question's own framework is that part; what else there is makes
    a union.

    Raises:
        InputError: as ``compile_part``, and for a framework that runs nothing of the space.
    """
    specs = _parts(spec)
    frameworks = question.framework.offered
    for part in specs:
        for name in part.get("held", {}).get("framework", ()):
            require_choice("space.knobs.framework", name, [each.name for each in frameworks])
    superseded = {name for framework in frameworks for name in framework.supersedes}
    frameworks = tuple(each for each in frameworks if each.name not in superseded)
    pairs = [
        (part, framework)
        for part in specs
        for framework in frameworks
        if part.get("of", framework.space) == framework.space
        if "of" in part or framework is frameworks[0]
    ]
    if not pairs:
        known = sorted({str(part["of"]) for part in specs})
        problem = f"has no recipe in space {spec.get('name')}, which is of {', '.join(known)}"
        advice = f"another framework=, or space={question.framework.space}"
        raise InputError("framework", question.framework.name, problem, advice)
    offered = bool(question.framework.alternatives)
    parts = [
        compile_part(_named(part, framework) if offered else part, question)
        for part, framework in pairs
    ]
    if len(parts) == 1:
        return parts[0]
    names = tuple(framework.name for _, framework in pairs)
    if len(set(names)) < len(names):
        raise InputError("space.parts", names, "has two parts of one framework")
    return UnionSpace(
        name=str(spec.get("name", "space")),
        question=question,
        knobs=(Dimension("framework", names), *_together(parts)),
        constraints=tuple(group for part in parts for group in part.constraints),
        derived=(),
        constants={},
        numerics=parts[0].numerics,
        parts=tuple(parts),
    )


def _parts(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The specifications that a space consists of, with the choices that it gives to all."""
    if "parts" not in spec:
        return [spec]
    for section, value in spec.items():
        if section in KNOBS:
            instead = f"space.knobs.{section}={value} to hold it; .choices=[...] to offer several"
            raise InputError(f"space.{section}", value, "is not a known name", instead)
        require_choice("space", section, _SECTIONS)
    parts = spec["parts"]
    if not isinstance(parts, Mapping) or not parts or not all(
        isinstance(part, Mapping) for part in parts.values()
    ):  # fmt: skip
        raise InputError("space.parts", parts, "is not a mapping of spaces", "name: space")
    held = mapping_of("space.knobs", spec.get("knobs"))
    known = {name for part in parts.values() for name in part.get("knobs") or {}}
    for name in held:
        if name not in known | set(KNOBS):
            raise unknown_knob(name, known | set(KNOBS))
    numerics = {name: spec[name] for name in ("numerics",) if name in spec}
    return [{**_held(part, held, known), **numerics} for part in parts.values()]


def _held(part: Mapping[str, Any], held: Mapping[str, Any], known: set[str]) -> Mapping[str, Any]:
    """A part with other choices of some knobs. What is no choice of this part, but of another, it
    has or has not."""
    knobs, kept = dict(part.get("knobs") or {}), {}
    resolved = {*(part.get("derived") or {}), *(part.get("constants") or {}), "framework"}
    for name, entry in held.items():
        knob = entry if isinstance(entry, Mapping) else {"choices": _listed(entry)}
        if name in knobs:
            own = knobs[name]
            own = own if isinstance(own, Mapping) else {"choices": _listed(own)}
            knobs[name] = {**own, **knob}
            if "choices" in knob and "otherwise" in own and name in KNOBS:
                # Where its condition does not hold, the part has a value that was not asked for.
                kept[name] = _listed(knob["choices"])
        elif name in resolved or name in known:
            kept[name] = _listed(knob.get("choices"))
        else:
            knobs[name] = knob
    return {**part, "knobs": knobs, "held": kept}


def _listed(entry: Any) -> list[Any]:
    return list(entry) if isinstance(entry, list | tuple) else [entry]


def _named(part: Mapping[str, Any], framework: Framework) -> Mapping[str, Any]:
    """A part whose recipes name the framework, as they do where there are others."""
    return {**part, "constants": {**(part.get("constants") or {}), "framework": framework.name}}


def _together(parts: Sequence[Space]) -> list[Dimension]:
    """The knobs of all parts, each once, with the choices of all."""
    choices: dict[str, dict[tuple[type, Any], Any]] = {}
    for part in parts:
        for knob in part.knobs:
            found = choices.setdefault(knob.name, {})
            found |= {(type(value), value): value for value in knob.choices}
    return [Dimension(name, _ordered(found.values())) for name, found in choices.items()]


def _ordered(values: Any) -> tuple[Any, ...]:
    """Numbers by size, behind what is left out; other values as they come."""
    values = list(values)
    if all(value is None or type(value) is int for value in values):
        return tuple(sorted(values, key=lambda value: -1 if value is None else value))
    return tuple(values)
