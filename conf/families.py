"""What a ``model_type`` of Transformers fixes beside the fields of its configuration."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, read_yaml


@dataclass(frozen=True)
class Family:
    """What a ``model_type`` says beside its fields."""

    qkv_bias: bool | str = False
    """Queries, keys and values have biases, or the field that says so."""
    linear_bias: bool | str = False
    """All linear layers have, or the field that says so."""
    qk_norm: str | None = None
    """``head`` or ``whole``, where queries and keys are normalised."""
    qk_norm_field: str | None = None
    """The field without which they are not."""
    post_norms: bool | str = False
    """Four norms a layer, or the field that says so."""
    inner_norms: bool = False
    """What the last product of attention and of an MLP takes is normalised."""
    gated_mlp: bool | str = True
    """Two input projections, or the field whose word begins with ``gated`` where there are."""
    ties: bool | str = "tie_word_embeddings"
    """The head is the embedding, or the field that says so."""
    layernorm: bool = False
    """Norms have a shift."""
    position: str = "rope"
    """How positions enter."""
    sparse: bool | str = False
    """Layers have experts unless a field says otherwise, or the field without which none has."""
    first_dense: int = 0
    """So many first layers have none where no field says how many."""
    expert_width: str = "moe_intermediate_size"
    """The field that says an expert's width."""
    shared_width: str | None = None
    """The field that says a shared expert's width where that is not an expert's."""
    dense_width: str = "intermediate_size"
    """The field that says a dense MLP's width, or (``field/2``) twice that."""
    sinks: bool | str = False
    """Attention has sinks; ``window``: within windows alone."""
    gated: bool | str = False
    """Attention has an output gate as wide as its heads; ``heads``: of one number a head."""
    windowed: bool = False
    """A ``sliding_window`` is every layer's where no field lists layers."""
    bidirectional: bool = False
    """Attention is to tokens behind a query, too."""
    inside: bool = False
    """It predicts no words, and is read as a part of another model alone."""
    masked_head: bool = False
    """The head is one for masked words."""
    token_head: bool = False
    """Its head's linear layer stands in front of classes of single tokens, too."""
    counted_from: int | None = None
    """The layer from which ``period`` counts (below 0: from the end); null: its own last one."""
    also_whole: int | None = None
    """Beside those of ``period`` another layer that attends to everything, counted so, too."""
    period: int = 0
    """Every so many-th layer attends to everything, others to ``sliding_window``, where no field
    says otherwise (0: no such rule)."""
    recurrent: str | None = None
    """What a linear layer is: ``delta``, ``kda`` (``kda_full``: its gates are whole products),
    ``lightning``, ``short_conv``, ``mamba2`` or ``mamba1`` (``mamba1_normed``: Jamba's)."""
    refused: Sequence[str] = ()
    """Fields that must be left out, null, 0 or false: what they say, a model cannot."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields that must be left out or say this (the name of a field: what that says): what else
    they may say, a model cannot."""
    mixes_streams: bool = True
    """Hyper-connections mix streams among each other."""
    relative: bool = False
    """Where ``relative_attention`` is said, scores have terms by distance, from a table that all
    layers share, in place of learned positions (DeBERTa)."""
    encoder: Mapping[str, str] = field(default_factory=dict)
    """Of an encoder whose output all layers look at: what its sizes are called."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Its own names of fields, and the usual ones."""
    usual: Mapping[str, Any] = field(default_factory=dict)
    """What code that Transformers has not takes for fields that a file leaves out."""
    aside: str = ""
    """What is predicted in another way than it runs, said beside the source."""


@functools.cache
def families() -> dict[str, Family]:
    """Every ``model_type`` that is read (``families.yaml``)."""
    table: dict[str, dict[str, Any]] = read_yaml(DECLARATIONS / "families.yaml")
    return {kind: Family(**stated) for kind, stated in table.items()}


@functools.cache
def transformers_defaults() -> dict[str, dict[str, Any]]:
    """What Transformers takes for fields that a file leaves out, by ``model_type``: numbers,
    switches and names that the reader looks at (``benchmarks/transformers_parameters.py`` wrote
    them)."""
    file = DECLARATIONS / "transformers_defaults.json"
    table: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return table
