"""The vision tower of a Hugging Face configuration of text and images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, read_yaml
from trainscout.simulators.predictor.question.errors import InputError

if TYPE_CHECKING:
    from trainscout.conf.config_json import Config

FILE = "config.json"
# Towers without learned positions take images of any size: of 448 to 512 pixels a side there are
# about so many patches.
_USUAL_PATCHES = 1024


@dataclass(frozen=True)
class Sight:
    """What a tower's ``model_type`` says beside its fields."""

    gated_mlp: bool = False
    linear_bias: bool = True
    normalization: str = "layernorm"
    positions: bool = True
    """They are learned, not rotary."""
    any_size: bool = False
    """Images of any size: of usual ones there are ``_USUAL_PATCHES``."""
    refused: tuple[str, ...] = ()
    """Fields that must be false."""


_TABLES = read_yaml(DECLARATIONS / "towers.yaml")
TOWERS: dict[str, Sight] = {
    kind: Sight(**{**said, "refused": tuple(said.get("refused", ()))})
    for kind, said in _TABLES["towers"].items()
}
WITH_IMAGES: dict[str, tuple[str, str]] = {
    kind: (text, tower) for kind, (text, tower) in _TABLES["with_images"].items()
}
_HEADS, _LAYERS, _CHANNELS = (
    ("num_attention_heads", "num_heads"),
    ("num_hidden_layers", "depth"),
    ("num_channels", "in_channels"),
)


def tower_fields(
    kind: str, sight: Sight, vision: Config, given: Config, width: int
) -> dict[str, Any]:
    """The tower that ``vision_config`` says, one image a sequence.

    Args:
        kind: the ``model_type`` of the whole.
        sight: of the tower.
        vision: its ``vision_config``.
        given: the whole.
        width: of the language model.

    Raises:
        InputError: naming the field, for what cannot be expressed.
    """
    for field in sight.refused:
        if vision.has(field):
            raise InputError(f"{FILE}: {field}", True, f"is not read for {kind}", "false")
    hidden = vision.whole("embed_dim" if kind == "qwen2_vl" else "hidden_size")
    patch = _side(vision, "patch_size")
    patches = _USUAL_PATCHES
    if vision.has("pooling_kernel_size"):
        # Gemma 4: of any size, cut to so many tokens of the language model.
        tokens = vision.whole("default_output_length", 280)
        patches = tokens * vision.whole("pooling_kernel_size") ** 2
    elif not sight.any_size:
        patches = (_side(vision, "image_size") // patch) ** 2
    values = _either(vision, _CHANNELS, 3) * patch**2
    merged, projector = _projector(kind, vision, given, hidden, width, patches)
    listed = vision.fields.get("deepstack_visual_indexes")
    return {
        "name": "vision",
        "num_layers": _either(vision, _LAYERS),
        "hidden_size": hidden,
        "num_heads": _either(vision, _HEADS),
        "ffn_hidden_size": vision.whole(
            "intermediate_size", hidden * vision.whole("mlp_ratio", 4)
        ),
        "patch_size": values * vision.whole("temporal_patch_size", 1),
        "patches": patches // merged * merged,
        "gated_mlp": sight.gated_mlp,
        "linear_bias": sight.linear_bias,
        "normalization": sight.normalization,
        "positions": _positions(vision, patches) if sight.positions else 0,
        "merged": merged,
        "projector": projector,
        "projectors": 1 + len(listed if isinstance(listed, list) else ()),
    }


def _positions(vision: Config, patches: int) -> int:
    if vision.fields.get("use_absolute_position_embeddings") is False:
        return 0
    if vision.has("position_embedding_size"):
        return 2 * vision.whole("position_embedding_size")  # of rows and of columns
    names = ("pos_emb_height", "pos_emb_width")
    sides = [vision.whole(name) for name in names if vision.has(name)]
    return math.prod(sides) if sides else vision.whole("num_position_embeddings", patches)


def _projector(
    kind: str, vision: Config, given: Config, hidden: int, width: int, patches: int
) -> tuple[int, tuple[int, ...]]:
    """Patches that become one token, and widths on their way to the language model."""
    if kind == "gemma4":
        return vision.whole("pooling_kernel_size") ** 2, (hidden, width)
    if kind == "gemma3":
        return max(1, patches // given.whole("mm_tokens_per_image", 256)), (hidden, width)
    if kind == "paligemma":
        return 1, (hidden, given.whole("projection_dim", width))
    if kind in ("idefics3", "smolvlm"):
        merged = given.whole("scale_factor", 2) ** 2
        return merged, (merged * hidden, width)
    if kind == "internvl":
        ratio = given.fields.get("downsample_ratio", 0.5)
        merged = round(1 / float(ratio)) ** 2
        return merged, (merged * hidden, width, width)
    if kind == "llama4":
        merged = round(1 / float(vision.fields.get("pixel_shuffle_ratio", 0.5))) ** 2
        made = vision.whole("projector_output_dim")
        # As released: the sizes that each part of the projector is given are those it gets.
        for field, size in (("intermediate_size", merged * hidden), ("vision_output_dim", made)):
            if vision.whole(field) != size:
                raise InputError(f"{FILE}: {field}", vision.whole(field), "is not read", f"{size}")
        return merged, (merged * hidden, vision.whole("projector_input_dim"), made, width)
    if kind.startswith("llava"):
        return 1, (hidden, width, width)
    if kind == "mistral3":
        merged = given.whole("spatial_merge_size", 2) ** 2
        return merged, (merged * hidden, hidden, width, width)
    merged = vision.whole("spatial_merge_size", 2) ** 2
    out = {"qwen2_vl": "hidden_size", "kimi_k25": ""}.get(kind, "out_hidden_size")
    return merged, (merged * hidden, merged * hidden, vision.whole(out) if out else width)


def _either(vision: Config, names: tuple[str, ...], default: int | None = None) -> int:
    """The size by the first of several names that it goes by."""
    name = next((each for each in names if each in vision.fields), names[0])
    return vision.whole(name, default)


def _side(vision: Config, name: str) -> int:
    """A side in pixels, of one number or of two equal ones.

    Raises:
        InputError: for two that differ.
    """
    value = vision.fields.get(name)
    if isinstance(value, list) and value and value == value[:1] * len(value):
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{FILE}: {name}", value, "is no number of pixels", "a whole number")
    return value


def tower_kind(kind: str, vision: Mapping[str, Any]) -> str:
    """The ``model_type`` of a configuration's tower.

    Raises:
        InputError: for one that is not read.
    """
    said = vision.get("model_type", WITH_IMAGES[kind][1])
    said = WITH_IMAGES[kind][1] if said == kind else said  # as published before Transformers 5
    if said not in TOWERS:
        raise InputError(
            f"{FILE}: vision_config.model_type", said, f"is not read for {kind}", TOWERS
        )
    return str(said)
