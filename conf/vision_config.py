"""The vision tower of a Hugging Face configuration of text and images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainscout.simulators.predictor.question.errors import InputError

if TYPE_CHECKING:
    from trainscout.conf.config_json import Config

FILE = "config.json"
# Qwen3-VL takes images of any size: of 512 x 512 pixels there are so many patches.
_USUAL_PATCHES = 1024


def tower_fields(
    kind: str, vision: Config, given: Mapping[str, Any], width: int
) -> dict[str, Any]:
    """The tower that ``vision_config`` says, one image a sequence.

    Args:
        kind: the ``model_type`` of the whole.
        vision: its ``vision_config``.
        given: the whole.
        width: of the language model.

    Raises:
        InputError: naming the field, for what cannot be expressed.
    """
    hidden = vision.whole("hidden_size")
    fields = {
        "name": "vision",
        "hidden_size": hidden,
        "ffn_hidden_size": vision.whole("intermediate_size"),
    }
    if kind in ("qwen3_vl", "qwen3_vl_moe"):
        merged = vision.whole("spatial_merge_size", 2) ** 2
        listed = vision.fields.get("deepstack_visual_indexes")
        values = vision.whole("in_channels", 3) * vision.whole("patch_size") ** 2
        return fields | {
            "num_layers": vision.whole("depth"),
            "num_heads": vision.whole("num_heads"),
            "patch_size": values * vision.whole("temporal_patch_size", 2),
            "patches": _USUAL_PATCHES,
            "positions": vision.whole("num_position_embeddings"),
            "merged": merged,
            "projector": (merged * hidden, merged * hidden, vision.whole("out_hidden_size")),
            "projectors": 1 + len(listed if isinstance(listed, list) else ()),
        }
    patch = vision.whole("patch_size")
    side = vision.whole("image_size") // patch
    fields |= {
        "num_layers": vision.whole("num_hidden_layers"),
        "num_heads": vision.whole("num_attention_heads"),
        "patch_size": vision.whole("num_channels", 3) * patch**2,
        "patches": side**2,
    }
    if kind == "gemma3":
        if vision.fields.get("vision_use_head", False):
            raise InputError(f"{FILE}: vision_use_head", True, "is not read for gemma3", "false")
        tokens = given.get("mm_tokens_per_image", 256)
        return fields | {
            "positions": side**2,
            "merged": max(1, side**2 // tokens),
            "projector": (hidden, width),
        }
    merged = given.get("spatial_merge_size", 2) ** 2
    return fields | {
        "gated_mlp": True,
        "linear_bias": False,
        "normalization": "rmsnorm",
        "merged": merged,
        "projector": (merged * hidden, hidden, width, width),
    }
