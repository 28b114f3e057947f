"""The search space as data: ordered choices, conditions, derived fields, constants.

A space file names *knobs* (fields of ``Recipe``, or helpers that only expressions read), each
with ordered choices, or with none, which are then those that the knob declares; divisors may go
``up_to`` a number or a quantity. ``when`` says under which earlier knobs it matters, ``otherwise``
what it is when it does not. ``derived`` computes recipe fields from knobs, ``constants`` fixes the
rest, and ``constraints`` are expressions over knobs that must hold: what breaks one is no point of
the space, and is never even enumerated::

    knobs:
      tp: {}
      pp: {divisors_of: [num_layers, num_gpus]}
      multiplier: {choices: [1, 2, 4]}
      sp: {when: tp > 1}
    derived:
      micro_batch: global_batch_size / (dp * multiplier * pp)
    constants: {zero_stage: 1}
    constraints: [num_gpus % (tp * pp) == 0]

``of`` names the frameworks whose settings these are (``Framework.space``), ``numerics`` what of
the numbers may change (``NUMERICS``), and ``parts`` takes the place of all the rest where a space
is several (``optimizer.union``).

A point is a tuple of choice indices, one per knob, so that every sampler sees the order.
Knobs that do not matter at a point are collapsed to index 0: equal questions, equal point.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainscout.optimizer.expressions import Expression, NotWholeError, parse
from trainscout.simulators.predictor.question.errors import InputError, require_choice
from trainscout.simulators.predictor.question.knob import NUMERICS
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import KNOBS, RECIPE_DEFAULTS, Recipe
from trainscout.simulators.predictor.question.rules import lacks
from trainscout.simulators.predictor.question.training import PRECISION_BITS, PRECISIONS
from trainscout.simulators.predictor.question.validity import Violation, why_invalid

Indices = tuple[int, ...]


class Candidate(NamedTuple):
    """The recipe of a point, and the rule that forbids it (None: it can be launched).

    Where a derived field has no value the recipe keeps that field's default.
    """

    recipe: Recipe
    violation: Violation | None


_SECTIONS = ("name", "of", "numerics", "knobs", "constraints", "derived", "constants", "held")
_KNOB_KEYS = ("choices", "divisors_of", "up_to", "powers_of_two_up_to", "when", "otherwise")
_MAX_CHOICES = 1000


@dataclass(frozen=True)
class Dimension:
    """One knob of a space: ordered ``choices``; outside ``when`` its value is ``otherwise``."""

    name: str
    choices: tuple[Any, ...]
    when: Expression | None = None
    otherwise: Any = None


@dataclass(frozen=True)
class Space:
    """A compiled space: everything a sampler may ask for this declared question."""

    name: str
    question: Question
    knobs: tuple[Dimension, ...]
    # By knob: what can be decided once that knob and those before it have values.
    constraints: tuple[tuple[Expression, ...], ...]
    derived: tuple[tuple[str, Expression], ...]
    constants: Mapping[str, Any]
    # Fields that only some values are wanted of, whatever gives them.
    held: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    numerics: str = NUMERICS[0]

    @property
    def size(self) -> int:
        """Number of raw points: the product of the numbers of choices."""
        return math.prod(len(knob.choices) for knob in self.knobs)

    def of_recipe(self, recipe: Recipe) -> Space:
        """The part that a recipe lies in, of a space that has several."""
        return self

    def canonical(self, indices: Indices) -> Indices:
        """The same point with every knob that does not matter at index 0."""
        return self._resolve(indices)[0]

    def point(self, indices: Indices) -> dict[str, Any]:
        """Knob values by name, collapsed knobs at their ``otherwise`` value."""
        values = self._resolve(indices)[1]
        return {knob.name: values[knob.name] for knob in self.knobs}

    def broken(self, values: Mapping[str, Any]) -> list[str]:
        """The constraints that values do not meet, as they are written."""
        return [
            each.text for group in self.constraints for each in group if not each.holds(values)
        ]

    def candidate(self, indices: Indices) -> Candidate:
        """The recipe at a point, and why no launcher would accept it, if so."""
        values = self._resolve(indices)[1]
        candidate = self._candidate(dict(values))
        broken = self.broken(values)
        broken += [
            f"{name} to be one of {', '.join(map(str, allowed))}"
            for name, allowed in self.held.items()
            if getattr(candidate.recipe, name) not in allowed
        ]
        if candidate.violation is None and broken:
            reason = f"the space asks for {broken[0]}"
            return Candidate(candidate.recipe, Violation("constraint", "space", reason))
        return candidate

    def _candidate(self, values: dict[str, Any]) -> Candidate:
        fields = {**self.constants, **{k: v for k, v in values.items() if k in RECIPE_DEFAULTS}}
        world = self.question.cluster.num_gpus
        product: int = math.prod(fields.get(name, 1) for name in ("tp", "pp", "cp"))
        # Without a whole dp nothing can be derived; validity says why below.
        for name, expression in self.derived if world % product == 0 else ():
            values["dp"] = world // product
            try:
                fields[name] = values[name] = expression(values)
            except NotWholeError as error:
                broken = Violation(f"derived_{name}", name, f"{name}: {error}")
                return Candidate(Recipe(**fields), broken)
        recipe = Recipe(**fields)
        return Candidate(recipe, why_invalid(self.question.job(recipe)))

    def _resolve(self, indices: Indices) -> tuple[Indices, dict[str, Any]]:
        values: dict[str, Any] = dict(self.question.quantities)
        kept = []
        for knob, index in zip(self.knobs, indices, strict=True):
            if knob.when is not None and not knob.when.holds(values):
                values[knob.name] = knob.otherwise
                kept.append(0)
            else:
                values[knob.name] = knob.choices[index]
                kept.append(index)
        return tuple(kept), values


def compile_part(spec: Mapping[str, Any], question: Question) -> Space:
    """Read the file of a space that is no union, for one declared question.

    Raises:
        InputError: for unknown sections, knobs, names or quantities, empty or repeated choices,
            or expressions outside the grammar; the nearest valid name is given.
    """
    for section in spec:
        require_choice("space", section, _SECTIONS)
    quantities = question.quantities
    numerics = spec.get("numerics", NUMERICS[0])
    require_choice("space.numerics", numerics, NUMERICS)
    known = set(quantities)
    knobs = []
    knob_specs = mapping_of("space.knobs", spec.get("knobs"))
    if not knob_specs:
        raise InputError("space.knobs", spec.get("knobs"), "is empty", "at least one knob")
    for name, entry in knob_specs.items():
        knobs.append(_compile_knob(str(name), entry, question, numerics, known))
        known.add(str(name))
    derived = []
    for name, text in mapping_of("space.derived", spec.get("derived")).items():
        require_choice("space.derived", name, RECIPE_DEFAULTS)
        derived.append((name, parse(f"space.derived.{name}", text, known | {"dp"})))
        known.add(name)
    constants = mapping_of("space.constants", spec.get("constants"))
    for name, value in constants.items():
        require_choice("space.constants", name, RECIPE_DEFAULTS)
        _check_type(f"space.constants.{name}", name, value)
    gpu, precision = question.gpu, question.training.precision
    # A choice of null is the declared precision: others beside are no answer to who asked for it.
    chosen = next((knob.choices for knob in knobs if knob.name == "precision"), (None,))
    lacked = lacks(gpu, precision)
    if lacked and "precision" not in constants and None in chosen:
        possible = [each for each in PRECISIONS if lacks(gpu, each) is None]
        raise InputError("training.precision", precision, lacked, possible)
    space = Space(
        str(spec.get("name", "space")),
        question,
        tuple(knobs),
        compile_constraints(
            "space.constraints", spec.get("constraints"), [knob.name for knob in knobs], quantities
        ),
        tuple(derived),
        constants,
        {name: tuple(allowed) for name, allowed in spec.get("held", {}).items()},
        numerics,
    )
    _refuse_conflicts(space)
    return space


def compile_constraints(
    field: str,
    texts: Any,
    names: Sequence[str],
    quantities: Collection[str],
    derived: Mapping[str, Expression] | None = None,
) -> tuple[tuple[Expression, ...], ...]:
    """Constraints grouped by the last knob, of ``names``, that they read, also by way of what is
    ``derived`` from these."""
    if not isinstance(texts, (list, tuple, type(None))):
        raise InputError(field, texts, "is not a list", "a list of expressions")
    groups: list[list[Expression]] = [[] for _ in names]
    for index, text in enumerate(texts or ()):
        expression = parse(f"{field}[{index}]", text, {*quantities, *names}, derived)
        read = [names.index(name) for name in expression.names if name in names]
        if not read:
            raise InputError(f"{field}[{index}]", text, "reads no knob", names)
        groups[max(read)].append(expression)
    return tuple(map(tuple, groups))


def mapping_of(field: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(field, value, "is not a mapping", "name: value pairs")
    return value


def _compile_knob(
    name: str, entry: Any, question: Question, numerics: str, known: set[str]
) -> Dimension:
    field = f"space.knobs.{name}"
    if not isinstance(entry, Mapping):
        entry = {"choices": entry if isinstance(entry, (list, tuple)) else [entry]}
    for key in entry:
        require_choice(field, key, _KNOB_KEYS)
    entry = with_choices(name, entry)
    # Choices beside a computed source come from the command line, and replace it.
    sources = ["choices"] if "choices" in entry else [key for key in _CHOICES if key in entry]
    if len(sources) != 1:
        raise InputError(field, sources, "needs exactly one source of choices", list(_CHOICES))
    source = entry[sources[0]]
    choices = _CHOICES[sources[0]](f"{field}.{sources[0]}", source, question.quantities)
    if "up_to" in entry and sources[0] == "divisors_of":
        most = max(_quantities(f"{field}.up_to", entry["up_to"], question.quantities))
        choices = tuple(choice for choice in choices if choice <= most)
    if name in RECIPE_DEFAULTS:
        for choice in choices:
            _check_type(field, name, choice)
        choices = _allowed(f"{field}.{sources[0]}", name, choices, question, numerics)
    when = entry.get("when")
    if when is None:
        return Dimension(name, choices)
    otherwise = entry["otherwise"] if "otherwise" in entry else RECIPE_DEFAULTS.get(name)
    return Dimension(name, choices, parse(f"{field}.when", when, known), otherwise)


def _allowed(
    field: str, name: str, choices: tuple[Any, ...], question: Question, numerics: str
) -> tuple[Any, ...]:
    """The choices that leave what is computed as far as it is to be left.

    Raises:
        InputError: where that is none.
    """
    level = NUMERICS.index(numerics)
    needed = [NUMERICS.index(needed_numerics(name, choice, question)) for choice in choices]
    kept = tuple(choice for choice, need in zip(choices, needed, strict=True) if need <= level)
    if kept:
        return kept
    problem = f"changes what is computed, which space.numerics={numerics} does not allow"
    raise InputError(field, list(choices), problem, f"space.numerics={NUMERICS[min(needed)]}")


def needed_numerics(name: str, choice: Any, question: Question) -> str:
    """What has to be allowed for a knob to have a value."""
    if name == "precision" and choice is not None:
        bits, own = (PRECISION_BITS[each] for each in (choice, question.training.precision))
        return NUMERICS[-1] if bits < own else NUMERICS[0]
    return KNOBS[name].numerics.get(choice, NUMERICS[0])


def with_choices(name: str, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a space's file says of a knob; where that is no choices, those the knob declares."""
    if name not in KNOBS or any(source in entry for source in _CHOICES):
        return entry
    return {**KNOBS[name].search_choices(), **entry}


def _check_type(field: str, name: str, choice: Any) -> None:
    knob = KNOBS[name]
    if knob.optional and choice is None:
        return
    if type(choice) is not knob.kind:
        raise InputError(field, choice, "has the wrong type", f"{knob.kind.__name__} values")


def listed(field: str, values: Any, _: Mapping[str, int]) -> tuple[Any, ...]:
    if not isinstance(values, (list, tuple)) or not values or len(values) > _MAX_CHOICES:
        raise InputError(field, values, "is not a list of choices", f"1..{_MAX_CHOICES} values")
    if len({(type(value), value) for value in values}) != len(values):
        raise InputError(field, values, "repeats a choice", "distinct values")
    return tuple(values)


def _quantity(field: str, name: Any, quantities: Mapping[str, int]) -> int:
    if isinstance(name, int) and not isinstance(name, bool) and name > 0:
        return name
    require_choice(field, name, quantities)
    return quantities[name]


def _quantities(field: str, names: Any, quantities: Mapping[str, int]) -> list[int]:
    several = names if isinstance(names, (list, tuple)) and names else [names]
    return [_quantity(field, name, quantities) for name in several]


def _divisors(field: str, names: Any, quantities: Mapping[str, int]) -> tuple[int, ...]:
    common = math.gcd(*_quantities(field, names, quantities))
    return tuple(d for d in range(1, common + 1) if common % d == 0)


def _powers_of_two(field: str, name: Any, quantities: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(1 << i for i in range(_quantity(field, name, quantities).bit_length()))


_CHOICES: dict[str, Callable[[str, Any, Mapping[str, int]], tuple[Any, ...]]] = {
    "choices": listed,
    "divisors_of": _divisors,
    "powers_of_two_up_to": _powers_of_two,
}


def _refuse_conflicts(space: Space) -> None:
    """Every name once; a knob is a recipe field or something reads it."""
    read: set[str] = set()
    constraints = [expression for group in space.constraints for expression in group]
    conditions = [knob.when for knob in space.knobs]
    for expression in [*conditions, *constraints, *(e for _, e in space.derived)]:
        read |= expression.names if expression is not None else set()
    seen: set[str] = set()
    names = [knob.name for knob in space.knobs] + [n for n, _ in space.derived]
    for name in [*names, *space.constants]:
        if name in seen or name in space.question.quantities or name == "dp":
            raise InputError("space", name, "is set twice", "each name in one place")
        seen.add(name)
    for knob in space.knobs:
        if knob.name not in RECIPE_DEFAULTS and knob.name not in read:
            raise unknown_knob(knob.name, RECIPE_DEFAULTS)


def unknown_knob(name: str, known: Iterable[str]) -> InputError:
    """The refusal of a knob that is none, with the one that other tools call so."""
    from trainscout.conf.input_errors import meant_setting

    group, _, meant = (meant_setting(name) or "").partition("=")[0].partition(".")
    problem = "is neither a recipe field nor read by any expression"
    return InputError("space.knobs", name, problem, known, meant if group == "recipe" else None)
