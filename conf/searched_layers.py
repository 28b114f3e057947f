"""Layers whose sizes a search chose one by one (Puzzle, arXiv 2411.19146: Llama-Nemotron Super and
Ultra)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainscout.conf.hub_names import FILE
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.layers import DENSE, NONE

if TYPE_CHECKING:
    from trainscout.conf.config_fields import Config

# What may stand in a half's place or limits it, and is not read.
_REFUSED = ("replace_with_linear", "sparsify", "window_length", "mamba", "moe", "llama4")
_MULTIPLE = 256
"""Of an MLP's width, which is rounded up."""


def searched_layers(config: Config) -> tuple[list[str], list[str], list[int | None]]:
    """What mixes tokens in each layer, its MLP, and that one's width where it is not the widest's,
    from ``block_configs``; puts the usual sizes, and each layer's own heads, among the fields.

    Raises:
        InputError: naming the block and its field, for what is not read.
    """
    blocks, number = config.fields.get("block_configs"), config.positive("num_hidden_layers")
    if not isinstance(blocks, list) or len(blocks) != number:
        problem = f"does not say what each of {number} layers is"
        raise InputError(f"{FILE}: block_configs", "...", problem, f"{number} blocks")
    heads, hidden = config.whole("num_attention_heads"), config.whole("hidden_size")
    groups: dict[str, dict[str, int]] = {}
    made: list[int] = []
    for at, block in enumerate(blocks):
        attention, mlp = (_half(block, at, name) for name in ("attention", "ffn"))
        if attention is not None:
            shared = _number(attention, at, "attention", "n_heads_in_group")
            if heads % shared:
                named, problem = "n_heads_in_group", f"does not divide {heads} heads"
                field = f"{FILE}: block_configs.{at}.attention.{named}"
                raise InputError(field, attention[named], problem, "a divisor of them")
            groups[str(at)] = {"num_key_value_heads": int(heads / shared)}
        factor = 0.0 if mlp is None else _number(mlp, at, "ffn", "ffn_mult")
        made.append(math.ceil(int(2 * factor * hidden / 3) / _MULTIPLE) * _MULTIPLE)
    most = max((each["num_key_value_heads"] for each in groups.values()), default=heads)
    config.fields |= {"num_key_value_heads": most, "intermediate_size": max(made)}
    config.fields["per_layer_config"] = groups
    mixers = ["full" if str(at) in groups else NONE for at in range(number)]
    widths = [None if each in (0, max(made)) else each for each in made]
    return mixers, [DENSE if each else NONE for each in made], widths


def _half(block: object, at: int, name: str) -> Mapping[str, Any] | None:
    """A block's attention or MLP, None where it has none."""
    half = block.get(name) if isinstance(block, Mapping) else None
    field = f"{FILE}: block_configs.{at}.{name}"
    if not isinstance(half, Mapping):
        raise InputError(field, half, "is no table", "as the model's directory has it")
    for stated in _REFUSED:
        if half.get(stated):
            raise InputError(f"{field}.{stated}", half[stated], "is not read", "left out")
    return None if half.get("no_op") else half


def _number(half: Mapping[str, Any], at: int, name: str, field: str) -> float:
    value = half.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1000:
        named = f"{FILE}: block_configs.{at}.{name}.{field}"
        raise InputError(named, value, "is out of range", "a number above 0")
    return float(value)
