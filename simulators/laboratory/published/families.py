"""Published architecture facts of model families, which a row's columns do not carry."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainscout.simulators.predictor.question.layers import Mla


@dataclass(frozen=True)
class Family:
    """What every model of a family has in common; fields as in ``question.job.Model``.

    ``shared_experts`` counts experts that see every token, each as wide as a routed one.
    ``interleaved_experts``: dense and expert layers alternate. ``departs`` says in words what of
    the architecture a job cannot express.
    """

    normalization: str = "rmsnorm"
    position: str = "rope"
    linear_bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    clamped_mlp: bool = False
    scaled_rope: bool = False
    dropout: bool = False
    tied_embeddings: bool = False
    head_dim: int | None = None
    mla: Mla | None = None
    shared_experts: int = 0
    interleaved_experts: bool = False
    departs: str = ""


LLAMA_LIKE = Family()
GPT_LIKE = Family(
    normalization="layernorm",
    position="learned",
    linear_bias=True,
    qkv_bias=True,
    dropout=True,
    tied_embeddings=True,
)
_MLA = Mla(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
_MLA_Q = Mla(512, 128, 64, 128, q_lora_rank=1536)

# First match decides. Sources: the models' technical reports and released configurations.
_FAMILIES = (
    (r"deepseek-?v2-?lite|moonlight", Family(mla=_MLA, shared_experts=2)),
    (r"deepseek-?(v2|236b)", Family(mla=_MLA_Q, shared_experts=2)),
    (r"deepseek-?v3|deepseek-?r1|kimi", Family(mla=_MLA_Q, shared_experts=1)),
    (r"\bmla\b", Family(mla=_MLA_Q)),
    (
        r"gpt-?oss",
        Family(
            linear_bias=True,
            qkv_bias=True,
            clamped_mlp=True,
            scaled_rope=True,
            head_dim=64,
            departs="sliding-window attention of every other layer replayed as full attention",
        ),
    ),
    (r"qwen-?3", Family(qk_norm=True, head_dim=128)),
    (r"qwen2-57b", Family(qkv_bias=True, shared_experts=8)),
    (r"qwen", Family(qkv_bias=True)),
    (
        r"llama-?4",
        Family(shared_experts=1, interleaved_experts=True),
    ),
    (r"grok", Family(tied_embeddings=True)),
    (r"nemotron", Family(normalization="layernorm")),
    (r"\bmpt", Family(normalization="layernorm", position="learned", tied_embeddings=True)),
    (r"llama|mixtral|mistral|intern|gemma|baichuan|yi-", LLAMA_LIKE),
    (r"gpt|bloom|megatron|turing|mt-nlg|opt-", GPT_LIKE),
)

# Models whose rows print no shape, but whose source publishes one, by their declaration.
_DECLARED = (
    (r"nemotron[-_ ]3[-_ ]nano", "nemotron3_nano_30b_a3b"),
    (r"nemotron[-_ ]3[-_ ]super", "nemotron3_super_120b_a12b"),
    (r"nemotron-?h-?56b", "nemotron_h_56b"),
)
_OTHER_ARCHITECTURES = (
    (r"bert|t5|vit|clip", "not a decoder-only transformer"),
    (
        r"mamba|hybrid|nemotron-?h\b|nemotron[-_ ]3[-_ ]|jamba|nano_?v|deepseek-?v4",
        "a hybrid model",
    ),
    (r"deepseek-?v3\.2", "sparse attention is not modelled"),
)


def family_of(model: str, gated_mlp: bool) -> tuple[Family, tuple[str, ...]]:
    """The family a model's name belongs to; by its MLP when the name says nothing."""
    plain = model.lower().replace("_", "-")
    for pattern, family in _FAMILIES:
        if re.search(pattern, plain):
            return family, (family.departs,) if family.departs else ()
    guess = LLAMA_LIKE if gated_mlp else GPT_LIKE
    kind = "Llama" if gated_mlp else "GPT"
    return guess, (f"architecture details not published: as in {kind} models",)


def declared_shape(model: str) -> str | None:
    """The declaration that has a hybrid's shape, None where there is none."""
    plain = model.lower()
    return next((name for pattern, name in _DECLARED if re.search(pattern, plain)), None)


def other_architecture(model: str) -> str | None:
    """Why a model is none that a job can describe, or None when it may be one."""
    plain = model.lower()
    for pattern, reason in _OTHER_ARCHITECTURES:
        if re.search(pattern, plain):
            return f"{model}: {reason}"
    return None


def family_label(model: str) -> str:
    """The name under which results of related models are summed up (``Llama``, ``GPT``)."""
    match = re.match(r"[A-Za-z]+", model)
    if match is None:
        return "unnamed"
    word = match[0].lower()
    return {"mt": "gpt", "turing": "gpt", "bloom": "gpt"}.get(word, word)
