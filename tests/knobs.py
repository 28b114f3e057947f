"""Values of every knob, for tests that vary all of them."""

from __future__ import annotations

from typing import Any

from trainscout.simulators.predictor.question.knob import Knob
from trainscout.simulators.predictor.question.knobs.recomputation import (
    OFFLOAD_MODULES,
    RECOMPUTE_MODULES,
)
from trainscout.simulators.predictor.question.layout import BALANCED


def values_of(knob: Knob) -> list[Any]:
    """Several values of a knob, its default first."""
    if knob.name == "recompute_modules":
        values = [*RECOMPUTE_MODULES, "core_attn+mlp", "mlp+core_attn"]
    elif knob.name == "offload_modules":
        values = [*OFFLOAD_MODULES, "core_attn+attn_proj", "moe_act+expert_fc1"]
    elif knob.name == "framework":
        values = ["one", "other"]
    elif knob.name == "pipeline_layout":
        # Of twelve layers: over two stages, over four, over two of two chunks.
        values = [BALANCED, "Et*5|t*7L", "Et*2|(t*4|)*2ttL", "Ett|(t*4|)*2ttL", "E|t*6|t*6|L"]
    elif knob.kind is int and knob.choices is None:
        values = [*range(knob.least, 5), 8]
    else:
        values = list(knob.choices or (False, True))
    return list(dict.fromkeys([knob.default, *values]))


def impossible_value(knob: Knob) -> Any:
    """A value of the knob's type that it cannot have."""
    if knob.choices is None:
        return knob.least - 1 if knob.kind is int else "?"
    return "?" if knob.kind is str else max(knob.choices) + 1
