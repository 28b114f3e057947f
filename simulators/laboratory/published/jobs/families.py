"""Published architecture facts of model families, which a row's columns do not carry."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trainscout.simulators.predictor.io.values import typed_value
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.layers import Mla


@dataclass(frozen=True)
class Family:
    """What every model of a family has in common; fields as in ``question.job.Model``.

    ``shared_experts`` counts experts that see every token, each as wide as a routed one.
    ``interleaved_experts``: dense and expert layers alternate. ``gelu_kernel``: its GeLU is one
    kernel in Transformers. ``departs`` says in words what of the architecture a job cannot
    express.
    """

    normalization: str = "rmsnorm"
    position: str = "rope"
    linear_bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    clamped_mlp: bool = False
    scaled_rope: bool = False
    dropout: bool = False
    tied_embeddings: bool = False
    head_dim: int | None = None
    mla: Mla | None = None
    shared_experts: int = 0
    interleaved_experts: bool = False
    gelu_kernel: bool = False
    departs: str = ""


_TABLES = read_yaml(Path(__file__).with_name("families.yaml"))
_FAMILIES = [
    (pattern, typed_value(Family, "family", fields)) for pattern, fields in _TABLES["families"]
]
# The last two are as good as any guess.
LLAMA_LIKE, GPT_LIKE = (family for _, family in _FAMILIES[-2:])


def family_of(model: str, gated_mlp: bool) -> tuple[Family, tuple[str, ...]]:
    """The family a model's name belongs to; by its MLP when the name says nothing."""
    plain = _plain(model)
    for pattern, family in _FAMILIES:
        if re.search(pattern, plain):
            return family, (family.departs,) if family.departs else ()
    guess = LLAMA_LIKE if gated_mlp else GPT_LIKE
    kind = "Llama" if gated_mlp else "GPT"
    return guess, (f"architecture details not published: as in {kind} models",)


def declared_shape(model: str) -> str | None:
    """The declaration that has a hybrid's shape, None where there is none."""
    plain = _plain(model)
    return next((name for pattern, name in _TABLES["declared"] if re.search(pattern, plain)), None)


def other_architecture(model: str) -> str | None:
    """Why a model is none that a job can describe, or None when it may be one."""
    plain = _plain(model)
    for pattern, reason in _TABLES["other"]:
        if re.search(pattern, plain):
            return f"{model}: {reason}"
    return None


def _plain(model: str) -> str:
    """A model's name as patterns are written: words that people join in three ways by hyphens."""
    return re.sub(r"[\s_]+", "-", model.lower())
