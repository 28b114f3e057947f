"""What a ``model_type`` of Transformers fixes beside the fields of its configuration."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


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
    gated_mlp: bool = True
    """Two input projections."""
    layernorm: bool = False
    """Norms have a shift."""
    position: str = "rope"
    """How positions enter."""
    sparse: bool = False
    """Layers have experts but where a field says otherwise."""
    first_dense: int = 0
    """So many first layers have none where no field says how many."""
    expert_width: str = "moe_intermediate_size"
    """The field that says an expert's width."""
    shared_width: str | None = None
    """The field that says a shared expert's width where that is not an expert's."""
    dense_width: str = "intermediate_size"
    """The field that says a dense MLP's width."""
    sinks: bool = False
    """Attention has sinks."""
    gated: bool = False
    """Attention has an output gate as wide as its heads."""
    windowed: bool = False
    """A ``sliding_window`` is every layer's where no field lists layers."""
    period: int = 0
    """Every so many-th layer attends to everything, others to ``sliding_window``, where no field
    says otherwise (0: no such rule)."""
    recurrent: str | None = None
    """What a linear layer is: ``delta``, ``kda``, or ``mamba2`` by one of three namings of its
    sizes (``mamba2_half``: Nemotron-H's, ``mamba2_prefixed``: Bamba's)."""
    refused: tuple[str, ...] = ()
    """Fields that must be left out, null, 0 or false: what they say, a model cannot."""
    aside: str = ""
    """What is predicted in another way than it runs, said beside the source."""


_PARALLEL = "; attention and MLP, which run in parallel, are predicted one after the other"
_LLAMA = Family(qkv_bias="attention_bias", linear_bias="mlp_bias")
_PLAIN = Family(qkv_bias="attention_bias")
_LATENT = Family(qkv_bias="attention_bias", refused=("mlp_bias",))
_LATENT_EXPERTS = Family(qkv_bias="attention_bias", sparse=True, refused=("mlp_bias",))
_LATENT_AFTER_ONE = replace(_LATENT_EXPERTS, first_dense=1)
_GEMMA = Family(qkv_bias="attention_bias", post_norms=True, period=2)
_QWEN3 = Family(qkv_bias="attention_bias", qk_norm="head")
_QWEN3_MOE = replace(_QWEN3, sparse=True)
_QWEN3_5 = Family(qkv_bias="attention_bias", qk_norm="head", gated=True, recurrent="delta")
_QWEN3_5_MOE = replace(_QWEN3_5, sparse=True)
_OLMO = Family(qkv_bias="attention_bias", qk_norm="whole")
_OLMOE = replace(_OLMO, sparse=True, expert_width="intermediate_size")
_GRANITE_MOE = Family(qkv_bias="attention_bias", sparse=True, expert_width="intermediate_size")
_GPT2 = Family(
    qkv_bias=True,
    linear_bias=True,
    gated_mlp=False,
    layernorm=True,
    position="learned",
    refused=("add_cross_attention",),
)

FAMILIES: dict[str, Family] = {
    "afmoe": Family(
        qkv_bias="attention_bias",
        qk_norm="head",
        post_norms=True,
        gated=True,
        sparse=True,
        period=4,
    ),
    "apertus": Family(qkv_bias="attention_bias", qk_norm="head", gated_mlp=False),
    "arcee": Family(qkv_bias="attention_bias", linear_bias="mlp_bias", gated_mlp=False),
    "axk1": _LATENT_AFTER_ONE,
    "bamba": Family(
        qkv_bias="attention_bias",
        linear_bias="mlp_bias",
        recurrent="mamba2_prefixed",
        refused=("mamba_proj_bias",),
    ),
    "cohere": Family(
        qkv_bias="attention_bias", qk_norm="whole", qk_norm_field="use_qk_norm", aside=_PARALLEL
    ),
    "cohere2": Family(qkv_bias="attention_bias", period=4, aside=_PARALLEL),
    "cwm": _LLAMA,
    "deepseek_v2": _LATENT_EXPERTS,
    "deepseek_v3": _LATENT_EXPERTS,
    "deepseek_v32": _LATENT_EXPERTS,
    "dots1": _QWEN3_MOE,
    "ernie4_5": Family(qkv_bias="use_bias", linear_bias="use_bias"),
    "ernie4_5_moe": Family(sparse=True, refused=("use_bias",)),
    "exaone4": Family(qk_norm="head", period=4),
    "exaone_moe": Family(qk_norm="head", period=4, sparse=True),
    "falcon_h1": Family(
        qkv_bias="attention_bias",
        linear_bias="mlp_bias",
        recurrent="mamba2_prefixed",
        refused=("projectors_bias", "mamba_proj_bias"),
    ),
    "flex_olmo": _OLMOE,
    "flint": replace(_QWEN3_MOE, first_dense=2, sinks=True),
    "gemma": _PLAIN,
    "gemma2": _GEMMA,
    "gemma3_text": Family(qkv_bias="attention_bias", qk_norm="head", post_norms=True, period=6),
    "glm": _PLAIN,
    "glm4": Family(qkv_bias="attention_bias", post_norms=True),
    "glm4_moe": Family(
        qkv_bias="attention_bias", qk_norm="head", qk_norm_field="use_qk_norm", sparse=True
    ),
    "glm4_moe_lite": _LATENT_AFTER_ONE,
    "glm_moe_dsa": _LATENT_EXPERTS,
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neox": Family(
        qkv_bias="attention_bias",
        linear_bias=True,
        gated_mlp=False,
        layernorm=True,
        aside=_PARALLEL,
    ),
    "gpt_oss": Family(
        qkv_bias="attention_bias",
        linear_bias=True,
        sparse=True,
        expert_width="intermediate_size",
        sinks=True,
    ),
    "granite": _LLAMA,
    "granite_swa": Family(qkv_bias="attention_bias", linear_bias="mlp_bias", sinks=True),
    "granitemoe": _GRANITE_MOE,
    "granitemoeshared": _GRANITE_MOE,
    "granitemoehybrid": Family(
        qkv_bias="attention_bias",
        expert_width="intermediate_size",
        dense_width="shared_intermediate_size",
        recurrent="mamba2_prefixed",
        refused=("mamba_proj_bias",),
    ),
    "helium": _LLAMA,
    "hunyuan_v1_dense": Family(qkv_bias="attention_bias", qk_norm="head"),
    "hunyuan_v1_moe": Family(
        qkv_bias="attention_bias",
        qk_norm="head",
        sparse=True,
        expert_width="intermediate_size",
        shared_width="intermediate_size",
    ),
    "hy_v3": replace(_QWEN3_MOE, first_dense=1, refused=("mlp_bias",)),
    "hyperclovax": Family(
        qkv_bias="attention_bias", linear_bias="mlp_bias", post_norms="use_post_norm"
    ),
    "internlm3": Family(qkv_bias="qkv_bias", linear_bias="bias"),
    "iquestcoder": _LLAMA,
    "jais2": Family(
        qkv_bias="attention_bias", linear_bias="mlp_bias", gated_mlp=False, layernorm=True
    ),
    "kimi_k2": _LATENT_EXPERTS,
    "kimi_linear": Family(
        qkv_bias="attention_bias",
        sparse=True,
        first_dense=1,
        recurrent="kda",
        refused=("mlp_bias", "tie_word_embeddings"),
    ),
    "kolibri1": Family(qk_norm="head", post_norms=True, sparse=True),
    "llama": _LLAMA,
    "llama4_text": Family(
        qkv_bias="attention_bias",
        sparse=True,
        expert_width="intermediate_size",
        shared_width="intermediate_size",
        dense_width="intermediate_size_mlp",
    ),
    "mamba2": Family(position="none", recurrent="mamba2", refused=("use_bias",)),
    "mellum": _QWEN3_MOE,
    "minicpm3": _LATENT,
    "minimax_m2": Family(
        qk_norm="whole",
        sparse=True,
        expert_width="intermediate_size",
        refused=("shared_intermediate_size",),
    ),
    "ministral": Family(windowed=True),
    "ministral3": Family(windowed=True),
    "mistral": Family(windowed=True),
    "mistral4": _LATENT_EXPERTS,
    "mixtral": Family(sparse=True, expert_width="intermediate_size", windowed=True),
    "nanochat": Family(qkv_bias="attention_bias", gated_mlp=False),
    "nemotron": Family(
        qkv_bias="attention_bias", linear_bias="mlp_bias", gated_mlp=False, layernorm=True
    ),
    "nemotron_h": Family(
        position="none",
        qkv_bias="attention_bias",
        linear_bias="mlp_bias",
        gated_mlp=False,
        recurrent="mamba2_half",
        refused=("use_bias", "mamba_proj_bias", "tie_word_embeddings", "num_nextn_predict_layers"),
    ),
    "olmo": _PLAIN,
    "olmo2": _OLMO,
    "olmo3": _OLMO,
    "olmo_hybrid": Family(qkv_bias="attention_bias", qk_norm="whole", recurrent="delta"),
    "olmoe": _OLMOE,
    "phi": Family(
        qkv_bias=True,
        linear_bias=True,
        gated_mlp=False,
        layernorm=True,
        refused=("qk_layernorm",),
        aside=_PARALLEL,
    ),
    "phi3": Family(windowed=True),
    "phimoe": Family(
        qkv_bias="attention_bias",
        layernorm=True,
        sparse=True,
        expert_width="intermediate_size",
        windowed=True,
    ),
    "qwen2": Family(qkv_bias=True),
    "qwen2_moe": Family(qkv_bias="qkv_bias", sparse=True),
    "qwen2_vl_text": Family(qkv_bias=True),
    "qwen2_5_vl_text": Family(qkv_bias=True),
    "qwen3": _QWEN3,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_next": _QWEN3_5_MOE,
    "qwen3_vl_text": _QWEN3,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "seed_oss": _LLAMA,
    "smollm3": _LLAMA,
    "solar_open": Family(qkv_bias="attention_bias", sparse=True),
    "stablelm": Family(
        qkv_bias="use_qkv_bias",
        layernorm=True,
        refused=("qk_layernorm", "use_parallel_residual"),
    ),
    "starcoder2": Family(
        qkv_bias="use_bias",
        linear_bias="use_bias",
        gated_mlp=False,
        layernorm=True,
        windowed=True,
    ),
    "vaultgemma": Family(qkv_bias="attention_bias", period=2),
    "youtu": _LATENT,
}


@functools.cache
def transformers_defaults() -> dict[str, dict[str, Any]]:
    """What Transformers takes for fields that a file leaves out, by ``model_type``: numbers,
    switches and names that the reader looks at (``benchmarks/transformers_parameters.py`` wrote
    them)."""
    file = Path(__file__).parent / "transformers_defaults.json"
    table: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return table
