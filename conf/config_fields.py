"""The fields of a Hugging Face ``config.json`` by their newest names, with what Transformers takes
for those that are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainscout.conf.encoders import OLDER, SOUNDS, TOWERS, WHISPERED
from trainscout.conf.families import families, transformers_defaults
from trainscout.conf.hub_names import FILE
from trainscout.simulators.predictor.question.errors import InputError

_OLDER = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "model_max_length": "max_position_embeddings",
    "interleave_moe_layer_step": "decoder_sparse_step",
    "moe_k": "num_experts_per_tok",
    "moe_layer_interval": "decoder_sparse_step",
    "moe_layer_start_index": "first_k_dense_replace",
    "moe_num_experts": "num_experts",
    "moe_num_shared_experts": "n_shared_experts",
    "moe_topk": "num_experts_per_tok",
    "num_local_experts": "num_experts",
    "n_routed_experts": "num_experts",
    "num_dense_layers": "first_k_dense_replace",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
# Tables of fields that newer files have one by one, and what their names begin with then.
_TABLES = {"linear_attn_config": "linear_", "sparse_attention_config": ""}
_TABLES |= {"img_token_compression_config": ""}


class Config:
    """The fields of a ``config.json``, older names as newer ones.

    ``left_out`` names the sizes that are Transformers' own where the file says none.
    ``text(name)``, ``whole(name)`` and so on refuse a missing or mistyped field by its name.
    """

    def __init__(self, fields: Mapping[str, Any], kind: object = None) -> None:
        """``kind``: the ``model_type`` whose defaults stand for fields that are left out."""
        family = families().get(str(kind))
        own = (WHISPERED if kind in SOUNDS else {}) if family is None else family.names
        own = OLDER if kind in TOWERS else own
        usual = {**transformers_defaults().get(str(kind), {}), **(family.usual if family else {})}
        if family is not None and family.encoder:
            # Beside a decoder's own names, usual ones say the encoder's sizes.
            ours = {new for old, new in own.items() if old in fields}
            fields = {name: value for name, value in fields.items() if name not in ours}
        usual, fields = _newer(usual, own), _newer(fields, own)
        self.fields = usual | fields
        self.left_out = tuple(name for name in _SIZES if name in usual and name not in fields)

    def has(self, name: str) -> bool:
        """Whether a field says something: not left out, null, 0, false or empty."""
        return bool(self.fields.get(name))

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number, or equal ones of a list; ``default`` where it is left out or null.

        Raises:
            InputError: for a missing field without default, and for anything else.
        """
        value = self.fields.get(name)
        value = default if value is None else value
        if isinstance(value, list) and value and value == value[:1] * len(value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int):
            problem = "is missing" if value is None else "is no whole number"
            given = f'"{value}"' if isinstance(value, str) else value
            raise InputError(f"{FILE}: {name}", given, problem, "a whole number")
        return value

    def positive(self, name: str, default: int | None = None) -> int:
        """A whole number that something is divided by.

        Raises:
            InputError: as ``whole``, and for one below 1.
        """
        value = self.whole(name, default)
        if value < 1:
            raise InputError(f"{FILE}: {name}", value, "is no number of parts", "1 or more")
        return value

    def numbers(self, name: str) -> list[int]:
        """A list of whole numbers, empty where it is left out or null.

        Raises:
            InputError: for anything else.
        """
        value = self.fields.get(name) or []
        if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
            raise InputError(f"{FILE}: {name}", value, "is no list of whole numbers")
        return value

    def names(self, name: str, length: int) -> list[str] | None:
        """A list of one name a layer, None where it is left out.

        Raises:
            InputError: for anything else.
        """
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise InputError(f"{FILE}: {name}", value, "is no list of names")
        # Some list the modules for further tokens, too.
        further = self.fields.get("num_nextn_predict_layers") or 0
        if isinstance(further, int) and len(value) == length + further:
            return value[:length]
        if len(value) != length:
            problem = f"has {len(value)} entries, num_hidden_layers is {length}"
            raise InputError(f"{FILE}: {name}", value, problem, f"{length} entries")
        return value


def _newer(fields: Mapping[str, Any], own: Mapping[str, str]) -> dict[str, Any]:
    """The same fields by their newer names; ``own`` are those of a family."""
    for table, prefix in _TABLES.items():
        if isinstance(inner := fields.get(table), Mapping):
            fields = {**fields, **{f"{prefix}{name}": value for name, value in inner.items()}}
    older = {**_OLDER, **own}
    renamed = {older.get(name, name): value for name, value in fields.items()}
    return renamed | {name: value for name, value in fields.items() if name not in older}
