"""The encoders of a Hugging Face configuration of text, images and sound."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, read_yaml
from trainscout.simulators.predictor.question.errors import InputError

if TYPE_CHECKING:
    from trainscout.conf.config_json import Config

FILE = "config.json"
# Towers without learned positions take images of any size: of 448 to 512 pixels a side there are
# about so many patches.
_USUAL_PATCHES = 1024
# Tokens of the language model that an image of any size is cut to (Gemma 4's processors).
_USUAL_TOKENS = 280


@dataclass(frozen=True)
class Sight:
    """What a tower's ``model_type`` says beside its fields."""

    gated_mlp: bool = False
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


@dataclass(frozen=True)
class Sighted:
    """What a ``model_type`` of several modalities says beside its fields."""

    text: str
    """Its language model where ``text_config`` says none."""
    tower: str | None = None
    """Its encoder of images where ``vision_config`` says none (null: it has none)."""
    widths: Sequence[str] = ()
    """On the way from patches to the language model: ``merged`` patches, the tower's ``hidden``
    width, the language model's (``text``), or a field's, halved (``field/2``) or times one."""
    side: str | None = None
    """The field that says how many patches a side become one token, or one over that."""
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
}
"""Towers' names of fields, and the usual ones."""


def tower_fields(
    kind: str, tower: str, vision: Config, given: Config, width: int
) -> dict[str, Any]:
    """The tower that ``vision_config`` says, one image a sequence.

    Args:
        kind: the ``model_type`` of the whole.
        tower: of the tower.
        vision: its ``vision_config``.
        given: the whole.
        width: of the language model.

    Raises:
        InputError: naming the field, for what cannot be expressed.
    """
    sight, whole = TOWERS[tower], WITH_IMAGES[kind]
    for name in sight.refused:
        if vision.has(name):
            raise InputError(f"{FILE}: {name}", True, f"is not read for {kind}", "false")
    if sight.bare:
        return _bare_fields(whole, vision, width)
    hidden, heads = vision.whole(sight.width), vision.whole("num_attention_heads")
    usual = hidden // max(1, heads)
    if vision.whole("head_dim", usual) != usual:
        problem = "is not what its width and heads say"
        raise InputError(f"{FILE}: head_dim", vision.whole("head_dim"), problem, f"{usual}")
    groups = vision.whole("num_key_value_heads", heads)
    patch = _side(vision, "patch_size")
    patches = _USUAL_PATCHES
    if vision.has("pooling_kernel_size"):
        # Of any size, cut to so many tokens of the language model.
        tokens = vision.whole("default_output_length", _USUAL_TOKENS)
        patches = tokens * vision.whole("pooling_kernel_size") ** 2
    elif not sight.any_size:
        patches = (_side(vision, "image_size") // patch) ** 2 * vision.whole("max_num_tiles", 1)
    values = vision.whole("num_channels", 3) * patch**2
    merged = _merged(whole, vision, given, patches)
    known = {"merged": merged * hidden, "hidden": hidden, "text": width}
    for name, must in whole.must.items():
        size = _width(must, known, vision, given)
        if vision.whole(name) != size:
            raise InputError(f"{FILE}: {name}", vision.whole(name), "is not read", f"{size}")
    listed = vision.fields.get("deepstack_visual_indexes")
    biases = sight.linear_bias
    return {
        "name": "vision",
        "num_layers": vision.whole("num_hidden_layers") + vision.whole("num_global_layers", 0),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_query_groups": None if groups == heads else groups,
        "ffn_hidden_size": vision.whole(sight.ffn, hidden * vision.whole("mlp_ratio", 4)),
        "patch_size": values * vision.whole("temporal_patch_size", 1),
        "patches": patches // merged * merged,
        "gated_mlp": sight.gated_mlp,
        "linear_bias": vision.has(biases) if isinstance(biases, str) else biases,
        "normalization": sight.normalization,
        "positions": _positions(vision, sight, patch, patches) if sight.positions else 0,
        "merged": merged,
        "projector": tuple(_width(word, known, vision, given) for word in whole.widths),
        "gated_projector": whole.gated,
        "projectors": 1 + len(listed if isinstance(listed, (list, tuple)) else ()),
    }


def _bare_fields(whole: Sighted, vision: Config, width: int) -> dict[str, Any]:
    """Gemma 4 without an encoder: squares of patches, projected to a width and to the language
    model's."""
    hidden = vision.whole("mm_embed_dim")
    side = vision.whole("patch_size") * vision.whole("pooling_kernel_size")
    made = vision.whole("output_proj_dims", hidden)
    if made != hidden:
        raise InputError(f"{FILE}: mm_embed_dim", hidden, "is not read", f"{made}")
    known = {"hidden": hidden, "text": width}
    return {
        "name": "vision",
        "num_layers": 0,
        "hidden_size": hidden,
        "num_heads": 1,
        "ffn_hidden_size": hidden,
        "patch_size": 3 * side**2,
        "patches": vision.whole("num_soft_tokens", _USUAL_TOKENS),
        "positions": 2 * vision.whole("mm_posemb_size"),
        "projector": tuple(known[word] for word in whole.widths),
    }


def _positions(vision: Config, sight: Sight, patch: int, patches: int) -> int:
    if vision.fields.get("use_absolute_position_embeddings") is False:
        return 0
    if vision.has("position_embedding_size"):
        return 2 * vision.whole("position_embedding_size")  # of rows and of columns
    if vision.has("max_num_tiles"):
        # Of an image that is cut into tiles: for each way to do so, of every patch, and twice of
        # the tiles themselves (Llama 3.2 Vision).
        tiles, stated = vision.whole("max_num_tiles"), vision.fields.get("supported_aspect_ratios")
        ways = 1 + (len(stated) if isinstance(stated, list) else 8)
        own = patches // tiles + 1
        return own + ways * tiles * (own + 2)
    names = ("pos_emb_height", "pos_emb_width")
    sides = [vision.whole(name) for name in names if vision.has(name)]
    if sides:
        return math.prod(sides)
    for name in ("num_position_embeddings", "num_patches"):
        if vision.has(name):
            return vision.whole(name)
    return (_side(vision, "image_size") // patch) ** 2 if sight.any_size else patches


def _merged(whole: Sighted, vision: Config, given: Config, patches: int) -> int:
    """Patches that become one token."""
    if whole.tokens is not None:
        return max(1, patches // given.whole(whole.tokens, 256))
    if whole.side is None:
        return 1
    stated = (vision if whole.side in vision.fields else given).fields.get(whole.side, 2)
    side = stated if isinstance(stated, (int, float)) and not isinstance(stated, bool) else 0.0
    if not 0 < side < math.inf:
        raise InputError(f"{FILE}: {whole.side}", stated, "is no number of patches", "2, or 0.5")
    return round(side if side >= 1 else 1 / side) ** 2


def _width(word: str, known: Mapping[str, int], vision: Config, given: Config) -> int:
    if word in known:
        return known[word]
    found = re.fullmatch(r"(?:(\w+)\*)?(\w+)(?:/(\d))?", word)
    assert found is not None
    times, name, parts = found.groups()
    holds = next((each for each in (vision, given) if each.fields.get(name) is not None), given)
    size = holds.whole(name, known["text"]) // int(parts or 1)
    return size if times is None else size * vision.whole(times)


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
    usual = WITH_IMAGES[kind].tower
    stated = vision.get("model_type") or usual
    stated = usual if stated == kind else stated  # as published before Transformers 5
    if not isinstance(stated, str) or stated not in TOWERS:
        raise InputError(
            f"{FILE}: vision_config.model_type", stated, f"is not read for {kind}", TOWERS
        )
    return str(stated)
