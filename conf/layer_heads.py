"""Heads of layers that are not those of a Hugging Face configuration's other layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainscout.conf.hub_names import FILE
from trainscout.simulators.predictor.question.errors import InputError

if TYPE_CHECKING:
    from trainscout.conf.config_fields import Config

_SIZES = {
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
}


def own_heads(config: Config, kind: str, mixers: Sequence[str]) -> list[dict[str, Any]]:
    """What of each layer's attention is not the model's, by the names of ``AttentionMixer``.

    Raises:
        InputError: naming the field, for what is no size of heads.
    """
    own = _listed(config, len(mixers))
    heads = config.fields.get("num_attention_heads_per_layer")
    if heads is not None:
        own = [{"heads": size} for size in _one_a_layer(heads, len(mixers))]
    if kind.startswith("gemma4"):
        _global_heads(config, mixers, own)
    other = config.fields.get("attention_other_setting")
    if kind == "step3p5" and isinstance(other, Mapping):
        own = [_sizes_in(other) if each == "window" else {} for each in mixers]
    if kind == "mimo_v2_flash":
        # What windows have twice is written in its code, and in no field.
        twice = 2 * config.whole("num_key_value_heads")
        own = [{"kv_heads": twice} if each == "window" else {} for each in mixers]
    usual = {ours: config.fields.get(theirs) for theirs, ours in _SIZES.items()}
    return [
        {name: size for name, size in sizes.items() if size != usual.get(name)} for sizes in own
    ]


def _sizes_in(table: Mapping[str, Any]) -> dict[str, Any]:
    """Step's heads of windows, from a table beside those of other layers."""
    older = {"num_attention_groups": "num_key_value_heads"}
    named = {older.get(name, name): size for name, size in table.items()}
    return {_SIZES[name]: size for name, size in named.items() if name in _SIZES}


def _listed(config: Config, number: int) -> list[dict[str, Any]]:
    """What ``per_layer_config`` says, by layers' numbers (Transformers 5)."""
    stated = config.fields.get("per_layer_config") or {}
    own: list[dict[str, Any]] = [{} for _ in range(number)]
    if not isinstance(stated, Mapping):
        raise InputError(f"{FILE}: per_layer_config", stated, "is no table of layers")
    for word, sizes in stated.items():
        if not str(word).isdigit() or int(word) >= number or not isinstance(sizes, Mapping):
            problem, allowed = "is the number of no layer", f"0..{number - 1}"
            raise InputError(f"{FILE}: per_layer_config", word, problem, allowed)
        for theirs, size in sizes.items():
            if theirs not in _SIZES or isinstance(size, bool) or not isinstance(size, int):
                field = f"{FILE}: per_layer_config.{word}.{theirs}"
                raise InputError(field, size, "is not read of single layers", _SIZES)
            own[int(word)][_SIZES[theirs]] = size
    return own


def _one_a_layer(stated: object, number: int) -> list[int]:
    sizes = stated if isinstance(stated, list) else []
    if len(sizes) != number or not all(isinstance(size, int) for size in sizes):
        field = f"{FILE}: num_attention_heads_per_layer"
        raise InputError(
            field, stated, f"does not say heads of {number} layers", f"{number} sizes"
        )
    return sizes


def _global_heads(config: Config, mixers: Sequence[str], own: list[dict[str, Any]]) -> None:
    """Gemma 4, whose layers without a window have heads of their own, and may have one
    projection for keys and values."""
    shared = config.has("attention_k_eq_v")
    for mixer, sizes in zip(mixers, own, strict=True):
        if mixer != "full":
            continue
        if "per_layer_config" not in config.fields:
            sizes["head_dim"] = config.whole("global_head_dim", 512)
            if shared and config.has("num_global_key_value_heads"):
                sizes["kv_heads"] = config.whole("num_global_key_value_heads")
        sizes["keys_are_values"] = shared
