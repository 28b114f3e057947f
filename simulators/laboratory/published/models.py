"""From the shape columns of a row to a declared model."""

from __future__ import annotations

import dataclasses
import re

from trainscout.simulators.laboratory.published.families import (
    Family,
    family_of,
    other_architecture,
)
from trainscout.simulators.laboratory.published.outcome import CannotReplayError
from trainscout.simulators.laboratory.published.presets import moe_preset
from trainscout.simulators.laboratory.published.rows import Row, given
from trainscout.simulators.predictor.question.model import Mla, Model, Moe

_DEFAULT_VOCABULARY = 51200
# Expert kernels under mildly uneven routing against balanced ones of the same shape, median of
# 75 thousand pairs (ai-dynamo/aiconfigurator, power law 1.01).
_REAL_ROUTING = 1.2


def model_of(row: Row) -> tuple[Model, tuple[str, ...]]:
    """The model of a row and what was assumed about it.

    Raises:
        CannotReplayError: for an architecture that is not a decoder-only transformer, or a
            shape that was not published.
    """
    if reason := other_architecture(row.model):
        raise CannotReplayError(reason)
    assumed: list[str] = []
    layers = _required("num_layers", row.num_layers)
    hidden = _required("hidden", row.hidden)
    heads = _required("num_heads", row.num_heads)
    sequence = _required("seq_len", row.seq_len)
    gated = bool(row.gated_mlp)
    family, about_family = family_of(row.model, gated)
    assumed += about_family
    if row.gated_mlp is None:
        gated = family.normalization == "rmsnorm"
        assumed.append(f"MLP not published: {'gated' if gated else 'two projections'}")
    vocabulary = row.vocab
    if vocabulary is None:
        vocabulary = _DEFAULT_VOCABULARY
        assumed.append(f"vocabulary not published: {vocabulary}")
    moe = _moe(row, family, assumed)
    ffn = row.ffn_hidden
    if ffn is None:
        if moe is not None and not moe.num_dense_layers:
            ffn = moe.ffn_hidden_size
        else:
            ffn = 4 * hidden
            assumed.append(f"MLP width not published: {ffn}")
    if "parallel transformer block" in row.notes:
        assumed.append("the parallel transformer block is replayed as a sequential one")
    mla = _mla(row, family)
    tied = family.tied_embeddings
    if moe is None and mla is None:
        width = given(row.num_query_groups, heads) * (family.head_dim or hidden // heads)
        attention = 2 * hidden * (heads * (family.head_dim or hidden // heads) + width)
        blocks = layers * (attention + (3 if gated else 2) * hidden * ffn)
        tied = _tied(row, blocks, vocabulary * hidden, tied, assumed)
    model = Model(
        name=row.model or "unnamed",
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        ffn_hidden_size=ffn,
        vocab_size=vocabulary,
        sequence_length=sequence,
        source=row.source,
        num_query_groups=None if mla else row.num_query_groups,
        head_dim=None if mla else family.head_dim,
        gated_mlp=gated,
        normalization=family.normalization,
        position=family.position,
        linear_bias=family.linear_bias,
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        dropout=family.dropout,
        tied_embeddings=tied,
        num_mtp_layers=_mtp_layers(row, assumed),
        moe=moe,
        mla=mla,
    )
    return model, tuple(assumed)


def _tied(row: Row, blocks: int, table: int, usual: bool, assumed: list[str]) -> bool:
    """Whether the head uses the embedding's table, where the printed parameter count tells.

    ``blocks`` and ``table`` are parameters of all layers and of one vocabulary table. A count
    tells when it is within 0.5 % of one sum, and the table makes more difference than rounding.
    """
    if row.params_b is None or table < 0.05 * blocks:
        return usual
    printed = row.params_b * 1e9
    fits = {
        tied: abs(printed / (blocks + table * (2 - tied)) - 1) < 0.005 for tied in (True, False)
    }
    if fits[usual] or not fits[not usual]:
        return usual
    assumed.append(f"{'tied' if not usual else 'untied'} embeddings, by the parameter count")
    return not usual


def _required(column: str, value: int | None) -> int:
    if value is None:
        raise CannotReplayError(f"{column} is not published")
    return value


def _moe(row: Row, family: Family, assumed: list[str]) -> Moe | None:
    if given(row.num_experts, 0) <= 1:
        if given(row.ep, 1) > 1:
            raise CannotReplayError(f"ep={row.ep} of a model without experts (num_experts)")
        return None
    width = row.moe_ffn_hidden
    if width is None:
        # Megatron-LM's default of --moe-ffn-hidden-size.
        width = _required("moe_ffn_hidden", row.ffn_hidden)
        assumed.append(f"expert width not published: {width}, that of the dense MLP")
    shared = family.shared_experts * width
    if match := re.search(r"shared expert (?:ffn )?(\d+)", row.notes):
        shared = int(match[1])
    preset = moe_preset(row)
    assumed += preset.assumed
    dense, period = given(row.num_dense_layers, 0), 1
    if family.interleaved_experts and dense:
        # The column counts all dense layers, here every other one.
        dense, period = 0, 2
    return Moe(
        num_experts=_required("num_experts", row.num_experts),
        top_k=_required("topk", row.topk),
        ffn_hidden_size=width,
        shared_ffn_hidden_size=shared,
        num_dense_layers=dense,
        layer_period=period,
        dispatcher="deepep" if preset.deepep else "alltoall",
        capacity_factor=_capacity_factor(row, assumed),
        load_imbalance=_load_imbalance(row, assumed),
    )


def _mtp_layers(row: Row, assumed: list[str]) -> int:
    """Multi-token-prediction modules, where the row's notes tell of them."""
    notes = row.notes.lower()
    if "mtp layer disabled" in notes or "mtp" not in notes:
        return 0
    if "mtp layer probably counted" in notes:
        assumed.append("one multi-token-prediction module, by the FLOPs per token")
        return 1
    if "mtp on" in notes or "1 mtp layer" in notes:
        return 1
    assumed.append("multi-token prediction not published: none")
    return 0


def _capacity_factor(row: Row, assumed: list[str]) -> float | None:
    notes = row.notes.lower()
    if match := re.search(r"capacity factor (\d+(?:\.\d+)?)", notes):
        return float(match[1])
    if "token-drop" in notes or "token drop" in notes:
        assumed.append("capacity factor not published: 1")
        return 1.0
    return None


def _load_imbalance(row: Row, assumed: list[str]) -> float:
    """How much more than the mean the busiest GPU has to do."""
    notes = row.notes.lower()
    if "real router" not in notes and "real aux-loss router" not in notes:
        return 1.0
    assumed.append(f"busiest experts loaded {_REAL_ROUTING:g} times the mean")
    return _REAL_ROUTING


def _mla(row: Row, family: Family) -> Mla | None:
    ranks = re.search(r"q_lora (\d+),? kv_lora (\d+)", row.notes)
    if ranks is None or family.mla is None:
        return family.mla
    return dataclasses.replace(family.mla, q_lora_rank=int(ranks[1]), kv_lora_rank=int(ranks[2]))
