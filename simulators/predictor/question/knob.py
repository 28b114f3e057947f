"""What a knob is: all that the project has to know of one field of ``Recipe``, as data.

A knob is declared once, where its field is (``question.knobs``). Validity, canonical forms, the
columns of a search, the words of a recipe, and the dialects of frameworks are derived from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .job import Job

# What of a prediction a knob enters, so that each is worked out once per combination of knobs.
LAYER_BLOCKS = "layer_blocks"
"""The operations of a layer, and their prices."""
HOST = "host"
"""What the host takes to launch them, and with it their prices; neither which there are nor any
memory."""
PASSES = "passes"
"""Which blocks a pass has, and the order of passes."""
LAYOUT = "layout"
"""How the layers lie on stages and chunks, and what else distinguishes those."""
BOUNDARY = "boundary"
"""The messages between stages."""
STEP_END = "step_end"
"""Gradient reduction, optimizer and parameter gathers, and what is held all through a step."""
MICRO_BATCHES = "micro_batches"
"""How many replicas there are, and how many micro-batches each runs."""

# Frameworks that flags are declared for; what NCCL reads from the environment holds for all.
MEGATRON_LM, MEGATRON_BRIDGE = "megatron_lm", "megatron_bridge"
TORCHTITAN, DEEPSPEED = "torchtitan", "deepspeed"
ENVIRONMENT = "environment"
_DIALECTS = (MEGATRON_LM, MEGATRON_BRIDGE, TORCHTITAN, DEEPSPEED, ENVIRONMENT)


# What a search may change of what is computed: nothing that was declared; 16-bit gradients and
# optimizer states; these and linear layers in fewer bits than the training's.
NUMERICS = ("declared", "16bit", "any")


@dataclass(frozen=True)
class Flag:
    """How a framework says a knob, where one flag says one knob."""

    name: str
    """The option, configuration key or variable: ``--tensor-model-parallel-size``."""
    values: Mapping[Any, Any] | None = None
    """The framework's word for each value that it can say; None: the value itself. A value that is
    true or false is a switch, which is there or not."""


@dataclass(frozen=True, eq=False, repr=False)
class Canonical:
    """Where a knob has no effect, or says what another value of it says."""

    why: str
    """The reason, in words."""
    reads: tuple[str, ...]
    """The fields of the recipe that ``holds`` and ``value`` read, besides the knob's own."""
    holds: Callable[[Job], bool]
    """Whether a launchable job is such a place."""
    value: Callable[[Job], Any] | None = None
    """What the knob is then; None: its default."""


@dataclass(frozen=True, eq=False, repr=False)
class Knob:
    """One field of ``Recipe``."""

    label: str
    """How recipes show it in one line, with ``{}`` for the value (``tp{}``). What begins with a
    parenthesis joins the word before it, and neighbours that share what is before ``=`` are one
    word (``overlap=grad+param``)."""
    enters: tuple[str, ...]
    """What of a prediction it is read by: ``LAYER_BLOCKS`` and its kin."""
    choices: tuple[Any, ...] | None = None
    """The values there are; None: true and false, or whole numbers."""
    own: Callable[[Any], bool] | None = None
    """Whether a value that is none of the choices is one of the user's own."""
    own_words: str = ""
    """What the user's own values are, or all values of text, in words."""
    least: int = 1
    """The smallest whole number."""
    always: bool = False
    """Recipes show its default, too."""
    left_out: str = "none"
    """What None means, in words."""
    topic: str | None = None
    """Knobs of one topic are explained together where there are many changes."""
    one_thing: bool = False
    """They say one thing together, so that a change of one alone means little."""
    detail_of: tuple[str, ...] = ()
    """Knobs without whose value it means nothing: it falls back to its default with them."""
    canonical: Canonical | None = None
    """Where it has no effect."""
    search: Mapping[str, Any] | tuple[Any, ...] | None = None
    """Choices of a search space that names the knob and no choices: a tuple of them, or how they
    are computed, as in a space's file; None: all there are."""
    numerics: Mapping[Any, str] = dataclasses.field(default_factory=dict)
    """Values that change what is computed, and the least ``NUMERICS`` that allows each."""
    flags: Mapping[str, Flag] = dataclasses.field(default_factory=dict)
    """By framework, where one flag says it."""
    name: str = ""
    """The field's name."""
    default: Any = None
    """The field's default."""
    kind: type = int
    """The type of its values: int, bool or str."""
    optional: bool = False
    """Whether it can be left out (None)."""

    def why_not(self, value: Any) -> str | None:
        """Why the knob cannot have a value whatever the job, or None."""
        if not self.is_limited or (value is None and self.optional):
            return None
        if self.choices is not None:
            known = value in self.choices or (self.own is not None and self.own(value))
            return None if known else f"is not one of {self.allowed}"
        if isinstance(value, int) and value >= self.least:
            return None
        return f"must be {self.allowed}" + (", or left out" if self.optional else "")

    @property
    def is_limited(self) -> bool:
        """Whether there are values of its type that it cannot have."""
        return self.choices is not None or self.kind is int

    @property
    def allowed(self) -> str:
        """The values there are, in words."""
        if self.choices is not None:
            return ", ".join(map(str, (*self.choices, *filter(None, (self.own_words,)))))
        if self.kind is str:
            return self.own_words
        return f"a whole number >= {self.least}"

    def canonical_value(self, job: Job) -> Any:
        """The knob's value in the canonical recipe of a launchable job."""
        value = getattr(job.recipe, self.name)
        if self.canonical is None or not self.canonical.holds(job):
            return value
        return self.default if self.canonical.value is None else self.canonical.value(job)

    def search_choices(self) -> Mapping[str, Any]:
        """Its default choices, as a space's file gives them."""
        if isinstance(self.search, Mapping):
            return self.search
        every = (False, True) if self.kind is bool else self.choices
        return {"choices": list(self.search or every or (self.default,))}


def knob(default: Any, label: str, enters: tuple[str, ...], **declared: Any) -> Any:
    """The default of a field that is a knob; further arguments as in ``Knob``, and by framework
    its flag, or the name of one that says the value itself (``torchtitan="--training.steps"``)."""
    stated = {name: declared.pop(name) for name in _DIALECTS if name in declared}
    flags = {name: Flag(flag) if isinstance(flag, str) else flag for name, flag in stated.items()}
    made = Knob(label, enters, flags=flags, **declared)
    return dataclasses.field(default=default, metadata={"knob": made})


def knobs_of(cls: type) -> dict[str, Knob]:
    """The knobs that a dataclass declares, by name, in the order of its fields."""
    return {field.name: _completed(field) for field in dataclasses.fields(cls)}


def _completed(field: dataclasses.Field[Any]) -> Knob:
    declared: Knob = field.metadata["knob"]
    # Annotations are text: ``int | None``.
    kinds = str(field.type).split(" | ")
    return dataclasses.replace(
        declared,
        name=field.name,
        default=field.default,
        kind={"int": int, "bool": bool, "str": str}[kinds[0]],
        optional="None" in kinds,
    )
