"""The encoders of a Hugging Face configuration of text, images and sound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainscout.conf.config_fields import Config
from trainscout.conf.encoders import TOWERS, WHISPERS, WITH_IMAGES, Sight, Sighted
from trainscout.conf.hub_names import FILE
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.layers import AttentionMixer, Mixer
from trainscout.simulators.predictor.question.tower import Convolution

# Towers without learned positions take images of any size: of 448 to 512 pixels a side there are
# about so many patches.
_USUAL_PATCHES = 1024
# Tokens of the language model that an image of any size is cut to (Gemma 4's processors).
_USUAL_TOKENS = 280


def tower_fields(
    whole: Sighted, tower: str, vision: Config, outer: Config, width: int
) -> dict[str, Any]:
    """The tower that ``vision_config`` says, one image a sequence.

    Args:
        whole: what the ``model_type`` of the whole says.
        tower: the ``model_type`` of the tower.
        vision: its ``vision_config``.
        outer: the whole.
        width: of the language model.

    Raises:
        InputError: naming the field, for what cannot be expressed.
    """
    sight = TOWERS[tower]
    # What a tower in front of words must not have makes the one vector that is compared.
    needed = {*sight.fixed, *(() if whole.compares is None else sight.refused)}
    for name in (*sight.refused, *sight.fixed):
        if vision.has(name) != (name in needed):
            allowed = str(name in needed).lower()
            raise InputError(f"{FILE}: {name}", vision.has(name), f"not read of {tower}", allowed)
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
    elif sight.spectrogram:
        stride = [vision.positive(name) for name in ("frequency_stride", "time_stride")]
        sides = [vision.whole(name) for name in ("num_mel_bins", "max_length")]
        patches = math.prod(
            (each - patch) // by + 1 for each, by in zip(sides, stride, strict=True)
        )
    elif not sight.any_size:
        patches = (_side(vision, "image_size") // patch) ** 2 * vision.whole("max_num_tiles", 1)
    values = (1 if sight.spectrogram else vision.whole("num_channels", 3)) * patch**2
    if sight.video:
        frames = vision.positive("tubelet_size")
        patches, values = patches * (vision.whole("num_frames") // frames), values * frames
    merged = _merged(whole, vision, outer, patches)
    known = {"merged": merged * hidden, "hidden": hidden, "text": width, "parts": merged}
    if "shared" in whole.widths:
        known["shared"] = outer.whole("projection_dim")
    for name, must in whole.must.items():
        size = _width(must, known, vision, outer)
        if (stated := vision.whole(name, size)) != size:
            raise InputError(f"{FILE}: {name}", stated, "is not read", f"{size}")
    listed = vision.fields.get("deepstack_visual_indexes")
    biases = sight.linear_bias
    layers = vision.whole("num_hidden_layers") + vision.whole("num_global_layers", 0)
    ratio = vision.fields.get("mlp_ratio", 4)
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)):
        raise InputError(f"{FILE}: mlp_ratio", ratio, "is no number", "4.0")
    made = int(hidden * ratio)
    gated = sight.gated_mlp
    ffn = made if sight.ffn == "mlp_ratio" else vision.whole(sight.ffn, made)
    if isinstance(gated, str):
        gated = vision.has(gated)
        if gated and sight.ffn not in vision.fields:  # DINOv2's: two thirds, in eights
            ffn = -(-int(ffn * 2 / 3) // 8) * 8
    return _sizes("vision", layers, hidden, heads, ffn) | {
        "num_query_groups": None if groups == heads else groups,
        "patch_size": values * vision.whole("temporal_patch_size", 1),
        "patches": patches // merged * merged,
        "gated_mlp": gated,
        "linear_bias": vision.has(biases) if isinstance(biases, str) else biases,
        "normalization": sight.normalization,
        "positions": _positions(vision, sight, patch, patches) if sight.positions else 0,
        "merged": merged,
        "projector": tuple(_width(word, known, vision, outer) for word in whole.widths),
        "behind": tuple(
            Convolution(*(_width(word, known, vision, outer) for word in each))
            for each in whole.behind
        ),
        "gated_projector": whole.gated,
        "projectors": 1 + len(listed if isinstance(listed, (list, tuple)) else ()),
    }


def number_of_classes(config: Config) -> int:
    """Classes that a head tells apart, two where no field says so."""
    labels = config.fields.get("id2label")
    return len(labels) if isinstance(labels, Mapping) else config.whole("num_labels", 2)


def image_fields(kind: str, config: Config, name: str) -> dict[str, Any]:
    """The model of an encoder that tells images' classes apart.

    Raises:
        InputError: naming the field, for what cannot be expressed.
    """
    sight, hidden = TOWERS[kind], config.whole("hidden_size")
    tower = tower_fields(Sighted(text=""), kind, config, config, hidden)
    ahead = (sight.ahead or 0) + config.whole("num_register_tokens", 0)
    classes = number_of_classes(config)
    sizes = "num_layers hidden_size num_heads ffn_hidden_size num_query_groups"
    alike = f"{sizes} gated_mlp linear_bias normalization".split()
    own = {field: tower[field] for field in alike}
    return own | {
        "name": name,
        "source": f"{FILE} of {name} (model_type {kind})",
        "simplified": (f"images of {tower['patches']:,} patches, of {classes} classes",),
        "vocab_size": 1,
        "sequence_length": tower["patches"] + ahead,
        "position": "learned" if tower["positions"] else "none" if sight.video else "rope",
        "qkv_bias": tower["linear_bias"],
        "key_bias": sight.key_bias,
        "dropout": config.has("hidden_dropout_prob"),
        "tied_embeddings": False,
        "layer_scale": sight.scaled,
        "layers": f"{tower['num_layers']}*whole/dense",
        "kinds": {"whole": Mixer(attention=AttentionMixer(causal=False))},
        "pooled": {"widths": (sight.joined * hidden, classes), "patch_size": tower["patch_size"]},
    }


def compared_fields(ahead: int, tower: dict[str, Any]) -> dict[str, Any]:
    """A tower's fields where one vector of an image is compared, ``ahead`` tokens in front; the
    vector of one without is pooled."""
    tokens = tower["patches"] + ahead
    positions = tower["positions"] + ahead
    own = {"patches": tokens, "merged": tokens, "positions": positions}
    return tower | own | {"pools": not ahead}


def _bare_fields(whole: Sighted, vision: Config, width: int) -> dict[str, Any]:
    """Gemma 4 without an encoder: squares of patches, projected to a width and to the language
    model's."""
    hidden = vision.whole("mm_embed_dim")
    side = vision.whole("patch_size") * vision.whole("pooling_kernel_size")
    made = vision.whole("output_proj_dims", hidden)
    if made != hidden:
        raise InputError(f"{FILE}: mm_embed_dim", hidden, "is not read", f"{made}")
    known = {"hidden": hidden, "text": width}
    return _sizes("vision", 0, hidden, 1, hidden) | {
        "patch_size": 3 * side**2,
        "patches": vision.whole("num_soft_tokens", _USUAL_TOKENS),
        "positions": 2 * vision.whole("mm_posemb_size"),
        "projector": tuple(known[word] for word in whole.widths),
    }


def _sizes(name: str, layers: int, hidden: int, heads: int, ffn: int) -> dict[str, Any]:
    """What every tower has; one without layers has sizes all the same."""
    return {
        "name": name,
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "ffn_hidden_size": ffn,
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


def _merged(whole: Sighted, vision: Config, outer: Config, patches: int) -> int:
    """Patches that become one token."""
    if whole.tokens is not None:
        return max(1, patches // outer.positive(whole.tokens, 256))
    if whole.side is None:
        return 1
    if whole.side.isdigit():
        return int(whole.side) ** 2
    stated = (vision if whole.side in vision.fields else outer).fields.get(whole.side, 2)
    side = stated if isinstance(stated, (int, float)) and not isinstance(stated, bool) else 0.0
    if not 0 < side < math.inf:
        raise InputError(f"{FILE}: {whole.side}", stated, "is no number of patches", "2, or 0.5")
    return round(side if side >= 1 else 1 / side) ** 2


def _width(word: str, known: Mapping[str, int], vision: Config, outer: Config) -> int:
    size = 1
    for factor in word.split("*"):
        name, _, parts = factor.partition("/")
        holds = vision if vision.fields.get(name) is not None else outer
        own = int(name) if name.isdigit() else known.get(name)
        size *= (holds.whole(name, known["text"]) if own is None else own) // int(parts or 1)
    return size


def _side(vision: Config, name: str) -> int:
    """A side in pixels, of one number or of two equal ones.

    Raises:
        InputError: for two that differ.
    """
    value = vision.fields.get(name) and vision.whole(name)
    if value is None or value < 1:
        raise InputError(f"{FILE}: {name}", value, "is no number of pixels", "a whole number")
    return value


def tower_kind(kind: str, vision: Mapping[str, Any]) -> str:
    """The ``model_type`` of a configuration's tower.

    Raises:
        InputError: for one that is not read.
    """
    usual = WITH_IMAGES[kind].tower
    # Whatever a file calls a tower that is one model's own: MiniMax-M3 CLIP's, Step-3.7 another.
    own = str(usual).partition("_vision")[0]
    is_own = own in (kind, kind.removesuffix("_thinker"), WITH_IMAGES[kind].text)
    stated = vision.get("model_type") or usual
    if stated == kind or (is_own and isinstance(stated, str)):
        stated = usual
    if not isinstance(stated, str) or stated not in TOWERS:
        raise InputError(
            f"{FILE}: vision_config.model_type", stated, f"is not read for {kind}", TOWERS
        )
    return str(stated)


SECONDS = 30
"""Of a clip: what Whisper's encoder, which these were made from, always takes."""
_FRAMES_A_SECOND = 100


def sound_fields(kind: str, sound: Config, width: int) -> dict[str, Any]:
    """The tower that ``audio_config`` says, one clip a sequence.

    Args:
        kind: its ``model_type``.
        sound: its ``audio_config``.
        width: of the language model.

    Raises:
        InputError: naming the field, for what cannot be expressed.
    """
    if kind == "gemma4_unified_audio":
        # Samples as they come, so many a token, of 16,000 a second.
        samples = sound.whole("audio_embed_dim")
        return _sizes("audio", 0, samples, 1, samples) | {
            "patch_size": 0,
            "patches": SECONDS * 16_000 // samples,
            "linear_bias": False,
            "projector": (samples, width),
        }
    if kind == "gemma4_audio":
        return _conformer_fields(sound, width)
    hidden, bins = sound.whole("hidden_size"), sound.whole("num_mel_bins")
    layers, heads = sound.whole("num_hidden_layers"), sound.whole("num_attention_heads")
    own = _sizes("audio", layers, hidden, heads, sound.whole("intermediate_size"))
    frames = SECONDS * _FRAMES_A_SECOND
    if kind in WHISPERS:
        learned, merged, words = WHISPERS[kind]
        known = {"merged": merged * hidden, "hidden": hidden, "text": width, "twice": 2 * width}
        own |= _whispers(bins, hidden, frames // 2)
        own |= {"merged": merged, "positions": frames // 2 if learned else 0}
        return own | {"projector": tuple(known.get(word) or sound.whole(word) for word in words)}
    # Three convolutions of three by three, each on every other frame and bin.
    channels = sound.whole("downsample_hidden_size")
    sizes = [bins]
    for _ in range(3):
        sizes.append((sizes[-1] + 1) // 2)
    _, one, two, three = sizes
    return own | {
        "stem": (
            Convolution(9, channels, 4 * one),
            Convolution(9 * channels, channels, 2 * two),
            Convolution(9 * channels, channels, three),
        ),
        "patch_size": channels * three,
        "patches": frames // 8,
        "projector": (hidden, hidden, sound.whole("output_dim")),
    }


def _whispers(bins: int, hidden: int, made: int) -> dict[str, Any]:
    """Two convolutions of three frames, the second on every other one."""
    stem = (Convolution(3 * bins, hidden, 2),)
    return {"stem": stem, "patch_size": 3 * hidden, "patches": made}


def encoder_fields(
    config: Config, names: Mapping[str, str], decoder: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """The encoder of words or of sound that a decoder looks at, and what is assumed to go in.

    Args:
        config: of both.
        names: of its own sizes.
        decoder: the fields of the decoder's model, with which it has all else in common.

    Raises:
        InputError: naming the field, for one that is missing.
    """
    alike = ("hidden_size", "gated_mlp", "linear_bias", "normalization")
    own: dict[str, Any] = {ours: config.whole(theirs) for ours, theirs in names.items()}
    own |= {name: decoder[name] for name in alike}
    own |= {"name": "encoder", "rotary": False, "head_dim": decoder["head_dim"]}
    length = decoder["sequence_length"]
    if "num_mel_bins" not in config.fields:
        learned = length if decoder["position"] == "learned" else 0
        of_words = {"patch_size": 0, "patches": length, "positions": learned}
        return own | of_words, f"{length:,} words"
    frames = config.whole("max_source_positions", SECONDS * _FRAMES_A_SECOND // 2)
    own |= _whispers(config.whole("num_mel_bins"), own["hidden_size"], frames)
    return own | {"positions": frames}, f"{2 * frames // _FRAMES_A_SECOND} seconds of sound"


def _conformer_fields(sound: Config, width: int) -> dict[str, Any]:
    """Gemma 4's: two convolutions, each on every other frame and bin, then a Conformer."""
    hidden = sound.whole("hidden_size")
    channels = sound.fields.get("subsampling_conv_channels")
    if not isinstance(channels, list) or not all(isinstance(each, int) for each in channels):
        field = f"{FILE}: subsampling_conv_channels"
        raise InputError(field, channels, "is no list of two numbers", "[128, 32]")
    one, two = channels
    # Bins that are left, as the first of its numbers stands for them.
    left = one // 4
    past = sound.whole("attention_context_left") - 1
    layers, heads = sound.whole("num_hidden_layers"), sound.whole("num_attention_heads")
    return _sizes("audio", layers, hidden, heads, 4 * hidden) | {
        "stem": (Convolution(9, one, 4 * left), Convolution(9 * one, two, left)),
        "patch_size": two * left,
        "patches": SECONDS * _FRAMES_A_SECOND // 4,
        "linear_bias": False,
        "normalization": "rmsnorm",
        "taps": sound.whole("conv_kernel_size"),
        "chunk": sound.whole("attention_chunk_size") + past,
        "projector": (hidden, sound.whole("output_proj_dims"), width),
    }
