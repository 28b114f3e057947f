"""Encoders of images and sound: what a ``model_type`` says beside a configuration's fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, read_yaml


@dataclass(frozen=True)
class Sight:
    """What a tower's ``model_type`` says beside its fields."""

    gated_mlp: bool | str = False
    """Two input projections, or the field that says so."""
    linear_bias: bool | str = True
    """Linear layers have biases, or the field that says so."""
    normalization: str = "layernorm"
    positions: bool = True
    """They are learned, not rotary."""
    any_size: bool = False
    """Images of any size: of usual ones there are ``_USUAL_PATCHES``."""
    bare: bool = False
    """It has no layers: patches are projected as they are."""
    width: str = "hidden_size"
    """The field that says its width."""
    ffn: str = "intermediate_size"
    """The field that says an MLP's width."""
    refused: Sequence[str] = ()
    """Fields that must be false."""
    fixed: Sequence[str] = ()
    """Fields that must be true."""
    ahead: int | None = None
    """Tokens in front of the patches, where it is trained alone (null: it is not)."""
    scaled: bool = False
    """What its layers add is scaled."""
    key_bias: bool = True
    """Keys have biases where queries and values do."""
    spectrogram: bool = False
    """Patches overlap, of one channel, bins by frames (Audio Spectrogram Transformer)."""
    video: bool = False
    """Patches hold several frames of many."""
    joined: int = 1
    """Vectors that go into the classifier as one."""


@dataclass(frozen=True)
class Sighted:
    """What a ``model_type`` of several modalities says beside its fields."""

    text: str
    """Its language model where ``text_config`` says none."""
    tower: str | None = None
    """Its encoder of images where ``vision_config`` says none (null: it has none)."""
    widths: Sequence[str] = ()
    """On the way from patches to the language model: ``merged`` patches, the tower's ``hidden``
    width, the language model's (``text``), ``parts`` of an image that become a token, a number or
    a field's, halved (``field/2``), or a product of some."""
    behind: Sequence[Sequence[str]] = ()
    """Products ahead of these that merge patches by steps: inputs, outputs, and how many a token,
    in the same words."""
    side: str | None = None
    """How many patches a side become one token, or the field that says it, or one over it."""
    tokens: str | None = None
    """The field that says how many tokens an image becomes."""
    gated: bool = False
    """The last two products are of a gated MLP."""
    must: Mapping[str, str] = field(default_factory=dict)
    """Fields of the tower that must say what another width is, as they do where released."""
    ties_either: bool = False
    """Embeddings are tied where either part of the file says so, not where the whole does."""
    sound: str | None = None
    """Its encoder of sound."""
    usual: Mapping[str, Any] = field(default_factory=dict)
    """What Transformers takes for fields that ``text_config`` leaves out, where that is not the
    language model's own default."""
    alone: str | None = None
    """Where ``vision_config`` is left out, it is its language model alone, whose embeddings are
    tied where the ``whole`` file says so, or its ``text`` (null: the tower is asked for)."""
    compares: int | None = None
    """Texts and images are compared, and so many tokens stand in front of an image's patches."""
    hears: bool = False
    """It has that where ``audio_config`` is left out, too."""


_TABLES = read_yaml(DECLARATIONS / "towers.yaml")
TOWERS: dict[str, Sight] = {kind: Sight(**stated) for kind, stated in _TABLES["towers"].items()}
WITH_IMAGES: dict[str, Sighted] = {
    kind: Sighted(**stated) for kind, stated in _TABLES["with_images"].items()
}
OLDER = {
    "num_heads": "num_attention_heads",
    "attention_heads": "num_attention_heads",
    "depth": "num_hidden_layers",
    "in_channels": "num_channels",
    "heads": "num_attention_heads",
    "max_image_size": "image_size",
    "patch_temporal": "temporal_patch_size",
    "vt_hidden_size": "hidden_size",
    "vt_intermediate_size": "intermediate_size",
    "vt_num_attention_heads": "num_attention_heads",
    "vt_num_hidden_layers": "num_hidden_layers",
    "init_pos_emb_height": "pos_emb_height",
    "init_pos_emb_width": "pos_emb_width",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
}
"""Towers' names of fields, and the usual ones."""
# Whisper's encoder in front of language models: whether its positions are weights, how many of its
# outputs become a token, and the widths from there to the language model: joined outputs
# (``merged``), the encoder's (``hidden``), the language model's (``text``) or ``twice`` that, or a
# field's.
WHISPERS: dict[str, tuple[bool, int, tuple[str, ...]]] = {
    "qwen2_5_omni_audio_encoder": (False, 2, ("hidden", "output_dim")),
    "qwen2_audio_encoder": (True, 2, ("hidden", "text")),
    "audioflamingo3_encoder": (True, 2, ("hidden", "text", "text")),
    "voxtral_encoder": (True, 4, ("merged", "text", "text")),
    "glmasr_encoder": (False, 4, ("merged", "twice", "text")),
}
CONVOLVED = ("qwen3_omni_moe_audio_encoder", "qwen3_asr_encoder")
SOUNDS = (*WHISPERS, "gemma4_audio", "gemma4_unified_audio", *CONVOLVED)
"""Every ``model_type`` that is read."""
WHISPERED = {
    "d_model": "hidden_size",
    "encoder_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
}
"""Their older names of fields, and the usual ones."""
