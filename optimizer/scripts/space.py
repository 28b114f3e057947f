"""A knob file and a script's command line, as a space of launches.

A knob file names the knobs of any script: what they may be, how that is written, and, where the
user knows, what it means::

    given: {num_layers: 40, global_batch_size: 512}
    knobs:
      tp: {choices: [1, 2, 4, 8]}
      sp: {choices: [false, true], text: ["", --sequence-parallel], when: tp > 1}
    derived:
      dp: world_size / tp
    constraints: [global_batch_size % dp == 0]
    means: {tp: tp, sp: sp}
    environment: {NCCL_ALGO: "{algorithm}"}
    files: {config: train.toml}
    work_per_step: global_batch_size * 2048
    repeats:
      micro_batches: {step: global_batch_size / dp, traced: 4}
      layers: {step: num_layers, traced: [1, 2]}

Expressions are those of search spaces (``optimizer.expressions``).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from trainscout.optimizer.expressions import Expression, NotWholeError, parse
from trainscout.optimizer.space import (
    Candidate,
    Dimension,
    Indices,
    Space,
    compile_constraints,
    listed,
    mapping_of,
)
from trainscout.simulators.predictor.question.errors import InputError, read_text, require_choice
from trainscout.simulators.predictor.question.launch import (
    Launch,
    Linear,
    MicroBatches,
    ScriptQuestion,
    Start,
)
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import KNOBS
from trainscout.simulators.predictor.question.validity import Violation

SECTIONS = (
    *("name", "given", "knobs", "derived", "constraints", "means"),
    *("environment", "files", "work_per_step", "repeats"),
)
_KNOB_KEYS = ("choices", "text", "when", "otherwise")
_DEGREES = ("tp", "pp", "cp")


# ``{name}`` is a place; ``{{name}}`` stands for itself, and other braces (JSON) are left alone.
_PLACE = re.compile(r"\{\{(\w+)\}\}|\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True)
class Template:
    """What a launch consists of before its settings are filled in.

    ``words``: script and arguments. ``environment``: by variable. ``files``: content of
    configuration files by name; ``{name}`` among the words is where the filled-in copy lies, which
    has the ending of its template (``endings``): scripts go by it.
    """

    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    endings: Mapping[str, str] = field(default_factory=dict)

    @property
    def places(self) -> Mapping[str, str]:
        """The names that are placed, each with where it is first."""
        found: dict[str, str] = {}
        parts = [(f"script: {word}", word) for word in self.words]
        parts += [(f"environment.{name}", text) for name, text in self.environment.items()]
        parts += [(f"files.{name}", text) for name, text in self.files.items()]
        for where, text in parts:
            for name in names_in(text):
                found.setdefault(name, where)
        return {name: where for name, where in found.items() if name not in self.files}

    def check(self, known: Sequence[str]) -> None:
        """Refuse places that nothing fills, and files that no word names."""
        for name, where in self.places.items():
            if name not in known:
                raise InputError(where, f"{{{name}}}", "is no knob and not derived", known)
        named = {name for word in self.words for name in names_in(word)}
        for name in self.files:
            if name not in named:
                problem = "is read by no argument of the script"
                raise InputError("files", name, problem, f"{{{name}}} among the arguments")
            if name in known:
                raise InputError("files", name, "is a name already", "another name")

    def file_name(self, name: str) -> str:
        """Of a filled-in configuration file."""
        return name + self.endings.get(name, "")

    def words_with(self, texts: Mapping[str, str], split: frozenset[str]) -> tuple[str, ...]:
        """The words filled in; a word that is one of the ``split`` places and nothing else becomes
        the words of its text, or none. Places of files stay, by their whole name."""
        texts = {**texts, **{name: f"{{{self.file_name(name)}}}" for name in self.files}}
        made: list[str] = []
        for word in self.words:
            place = _PLACE.fullmatch(word)
            if place is not None and place[2] in split:
                made += shlex.split(texts[place[2]])
            else:
                made.append(filled(word, texts))
        return tuple(made)


def names_in(text: str) -> list[str]:
    """The names placed in a text."""
    return [found[2] for found in _PLACE.finditer(text) if found[2]]


def filled(text: str, texts: Mapping[str, str]) -> str:
    """A text with every known place filled in."""

    def value(found: re.Match[str]) -> str:
        if found[1]:
            return f"{{{found[1]}}}"
        return texts.get(found[2], found[0])

    return _PLACE.sub(value, text)


@dataclass(frozen=True)
class Repeated:
    """A number of equal things in a step, of which fewer are traced: ``traced`` and ``period`` of
    micro-batches, or ``first`` and ``second`` of what time and memory are linear in."""

    parts: Mapping[str, Expression]

    def at(self, values: Mapping[str, Any]) -> dict[str, int]:
        """The numbers at a point; where there are no more than are traced, all are."""
        found = {name: each(values) for name, each in self.parts.items()}
        if "traced" in found:
            found["traced"] = min(found["traced"], found["step"])
        elif found["second"] >= found["step"] or found["second"] <= found["first"]:
            return {"step": found["step"]}
        return found


def _traced_choices(counts: Mapping[str, Mapping[str, int]]) -> list[dict[str, int]]:
    """What is traced instead of the whole: once, or twice where something is linear."""
    made: list[dict[str, int]] = [{}]
    for name, count in counts.items():
        some = [count[part] for part in ("traced", "first", "second") if part in count]
        made = [{**chosen, name: value} for chosen in made for value in some or [count["step"]]]
    return made


@dataclass(frozen=True)
class ScriptSpace(Space):
    """The launches of one script: a ``Space`` whose recipes are ``Launch``es.

    ``texts``: of knobs whose choices are written otherwise, by value. ``means``: fields of
    ``Recipe``, each the name of a knob or derived value, or a value. ``distinguished_by``: names
    of what else distinguishes launches.
    """

    template: Template = field(default_factory=Template)
    texts: Mapping[str, Mapping[Any, str]] = field(default_factory=dict)
    means: Mapping[str, Any] = field(default_factory=dict)
    work: Expression | None = None
    repeats: Mapping[str, Repeated] = field(default_factory=dict)
    distinguished_by: tuple[str, ...] = ()

    @property
    def script_question(self) -> ScriptQuestion:
        return cast(ScriptQuestion, self.question)

    def holds(self, indices: Indices) -> bool:
        """Whether indices are a point: canonical, and every constraint is met."""
        canonical, values = self._resolve(indices)
        return canonical == indices and not self.broken(values)

    def candidate(self, indices: Indices) -> Candidate:
        """The launch at a point; the rule that forbids it where a derived value is not whole, or
        the degrees do not divide the world."""
        values = dict(self._resolve(indices)[1])
        try:
            counts = {name: each.at(values) for name, each in self.repeats.items()}
            whole = self._derive(values, {name: count["step"] for name, count in counts.items()})
            work = None if self.work is None else self.work(whole)
            shorter = [self._derive(values, chosen) for chosen in _traced_choices(counts)]
        except NotWholeError as error:
            return Candidate(Launch(), Violation("not_whole", "derived", str(error)))
        if work is not None and work < 1:
            return Candidate(Launch(), Violation("no_work", "work_per_step", f"is {work}"))
        fields = {name: whole.get(of, of) for name, of in self.means.items()}
        violation = self._violation(fields)
        if violation is not None:
            return Candidate(Launch(), violation)
        launch = Launch(
            **fields,
            settings=tuple((name, whole[name]) for name in self.distinguished_by),
            start=self._start(whole),
            traced=tuple(map(self._start, shorter)),
            work=work,
            micro_batches=next(
                (MicroBatches(**count) for count in counts.values() if "traced" in count), None
            ),
            linear=next(
                (
                    Linear(count["step"], (count["first"], count["second"]))
                    for count in counts.values()
                    if "first" in count
                ),
                None,
            ),
        )
        return Candidate(launch, None)

    def _derive(self, values: Mapping[str, Any], chosen: Mapping[str, int]) -> dict[str, Any]:
        known = {**values, **chosen}
        for name, expression in self.derived:
            known[name] = expression(known)
        return known

    def _violation(self, fields: Mapping[str, Any]) -> Violation | None:
        for name, value in fields.items():
            knob = KNOBS[name]
            if type(value) is not knob.kind:
                problem = f"is no {knob.kind.__name__}, as recipes have it"
                raise InputError(f"means.{name}", value, problem)
            if knob.kind is str and knob.choices:
                require_choice(f"means.{name}", value, knob.choices)
            if type(value) is int and value < (name != "zero_stage"):
                return Violation("not_positive", name, f"{self.means[name]} is {value}")
        product = 1
        for name in _DEGREES:
            product *= fields.get(name, 1)
        if self.script_question.world_size % product == 0:
            return None
        degrees = " x ".join(f"{name}={fields[name]}" for name in _DEGREES if name in fields)
        reason = f"{degrees} does not divide a world of {self.script_question.world_size}"
        return Violation("world_size", "world_size", reason)

    def _start(self, values: Mapping[str, Any]) -> Start:
        texts = {name: self._text(name, value) for name, value in values.items()}
        template = self.template
        return Start(
            template.words_with(texts, frozenset(self.texts)),
            tuple((name, filled(text, texts)) for name, text in template.environment.items()),
            tuple(
                (template.file_name(name), filled(text, texts))
                for name, text in template.files.items()
            ),
        )

    def _text(self, name: str, value: Any) -> str:
        if name in self.texts:
            # Outside ``when`` a knob is not there at all.
            return self.texts[name].get(value, "")
        return str(value).lower() if isinstance(value, bool) else str(value)


def compile_script_space(
    spec: Mapping[str, Any], words: Sequence[str], question: ScriptQuestion, folder: Path
) -> ScriptSpace:
    """Read a knob file's content for a command line; templates of files lie in ``folder``.

    Raises:
        InputError: for unknown sections or names, empty or repeated choices, places that nothing
            fills, knobs that nothing reads, expressions outside the grammar.
    """
    for section in spec:
        if section not in SECTIONS:
            problem = "is no section of a knob file, whose knobs stand under knobs:"
            raise InputError("--space", section, problem, list(SECTIONS))
    known = set(question.quantities)
    texts: dict[str, Mapping[Any, str]] = {}
    knobs = []
    entries = mapping_of("knobs", spec.get("knobs"))
    if not entries:
        raise InputError("knobs", spec.get("knobs"), "is empty", "at least one knob")
    for name, entry in entries.items():
        _refuse_taken(f"knobs.{name}", name, known)
        knobs.append(_knob(str(name), entry, known, texts))
        known.add(str(name))
    names = [knob.name for knob in knobs]
    repeats = _repeats(spec.get("repeats"), known)
    known |= set(repeats)
    derived: list[tuple[str, Expression]] = []
    written_out: dict[str, Expression] = {}
    for name, text in mapping_of("derived", spec.get("derived")).items():
        field, text = f"derived.{name}", _as_text(text)
        _refuse_taken(field, name, known)
        derived.append((name, parse(field, text, known)))
        written_out[name] = parse(field, text, known, written_out)
        known.add(name)
    constraints = compile_constraints(
        "constraints", spec.get("constraints"), names, question.quantities, written_out
    )
    means = mapping_of("means", spec.get("means"))
    for meant, of in means.items():
        require_choice("means", meant, KNOBS)
        if isinstance(of, str) and KNOBS[meant].kind is not str:
            require_choice(f"means.{meant}", of, known)
    template = _template(spec, words, folder)
    template.check(sorted(known))
    work = spec.get("work_per_step")
    space = ScriptSpace(
        name=str(spec.get("name", "knobs")),
        question=cast(Question, question),
        knobs=tuple(knobs),
        constraints=constraints,
        derived=tuple(derived),
        constants={},
        template=template,
        texts=texts,
        means=means,
        work=None if work is None else parse("work_per_step", _as_text(work), known),
        repeats=repeats,
    )
    _refuse_unused(space)
    return space


def _as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _refuse_taken(where: str, name: Any, known: set[str]) -> None:
    if not str(name).isidentifier():
        raise InputError(where, name, "is no name", "letters, digits and _")
    if name in known:
        raise InputError(where, name, "is a name already", "another name")


def _knob(
    name: str, entry: Any, known: set[str], texts: dict[str, Mapping[Any, str]]
) -> Dimension:
    where = f"knobs.{name}"
    if not isinstance(entry, Mapping):
        entry = {"choices": entry if isinstance(entry, list) else [entry]}
    for key in entry:
        require_choice(where, key, _KNOB_KEYS)
    stated = entry.get("choices")
    for choice in stated if isinstance(stated, list) else ():
        if not isinstance(choice, (bool, int, float, str)):
            raise InputError(f"{where}.choices", choice, "is no value", "numbers, words, true")
    choices = listed(f"{where}.choices", stated, {})
    text = entry.get("text")
    if text is not None:
        if not isinstance(text, list) or len(text) != len(choices):
            problem = "is no list of one text for each choice"
            raise InputError(f"{where}.text", text, problem, f"{len(choices)} texts")
        texts[name] = {
            value: "" if word is None else str(word)
            for value, word in zip(choices, text, strict=True)
        }
    when = entry.get("when")
    if when is None:
        return Dimension(name, choices)
    condition = parse(f"{where}.when", when, known)
    return Dimension(name, choices, condition, entry.get("otherwise", choices[0]))


def _repeats(entries: Any, known: set[str]) -> dict[str, Repeated]:
    """Read what repeats itself: at most one number of micro-batches, and one linear number."""
    made: dict[str, Repeated] = {}
    ways = set()
    for name, entry in mapping_of("repeats", entries).items():
        where = f"repeats.{name}"
        _refuse_taken(where, name, known)
        parts = dict(mapping_of(where, entry))
        for part in parts:
            require_choice(where, part, ("step", "traced", "period"))
        if not {"step", "traced"} <= set(parts):
            raise InputError(where, list(parts), "needs both", "step and traced")
        linear = isinstance(parts["traced"], list)
        if linear:
            if len(parts["traced"]) != 2 or "period" in parts:
                raise InputError(where, parts, "is no line", "traced: [smaller, larger]")
            parts["first"], parts["second"] = parts.pop("traced")
        if linear in ways:
            raise InputError(where, entry, "is the second of its kind", "one")
        ways.add(linear)
        made[str(name)] = Repeated(
            {part: parse(f"{where}.{part}", _as_text(text), known) for part, text in parts.items()}
        )
    return made


def _template(spec: Mapping[str, Any], words: Sequence[str], folder: Path) -> Template:
    environment = mapping_of("environment", spec.get("environment"))
    files, endings = {}, {}
    for name, content in mapping_of("files", spec.get("files")).items():
        path = folder / str(content)
        files[str(name)], endings[str(name)] = read_text(f"files.{name}", path), path.suffix
    variables = {str(name): str(text) for name, text in environment.items()}
    return Template(tuple(words), variables, files, endings)


def _refuse_unused(space: ScriptSpace) -> None:
    """Every knob changes what is launched, or how much of it is traced."""
    conditions = [knob.when for knob in space.knobs if knob.when is not None]
    used = set(space.template.places)
    counts = [each for repeated in space.repeats.values() for each in repeated.parts.values()]
    used |= {name for each in (*conditions, *counts) for name in each.names}
    # What is derived counts where it is used itself, from the last to the first.
    for name, expression in reversed(space.derived):
        if name in used:
            used |= expression.names
    for knob in space.knobs:
        if knob.name not in used:
            problem = "changes nothing: no argument, variable or file has it"
            raise InputError("knobs", knob.name, problem, f"{{{knob.name}}} among the arguments")
