"""The encoder of sound of a Hugging Face configuration of several modalities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.tower import Convolution

FILE = "config.json"

if TYPE_CHECKING:
    from trainscout.conf.config_json import Config

SECONDS = 30
"""Of a clip: what Whisper's encoder, which these were made from, always takes."""
_FRAMES_A_SECOND = 100
# Whisper's encoder in front of language models: whether its positions are weights, how many of its
# outputs become a token, and the widths from there to the language model: joined outputs
# (``merged``), the encoder's (``hidden``), the language model's (``text``), or a field's.
_WHISPERS: dict[str, tuple[bool, int, tuple[str, ...]]] = {
    "qwen2_5_omni_audio_encoder": (False, 2, ("hidden", "output_dim")),
    "qwen2_audio_encoder": (True, 2, ("hidden", "text")),
    "audioflamingo3_encoder": (True, 2, ("hidden", "text", "text")),
    "voxtral_encoder": (True, 4, ("merged", "text", "text")),
}
SOUNDS = (
    *_WHISPERS,
    *("gemma4_audio", "gemma4_unified_audio"),
    *("qwen3_omni_moe_audio_encoder", "qwen3_asr_encoder"),
)
"""Every ``model_type`` that is read."""
WHISPERED = {
    "d_model": "hidden_size",
    "encoder_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
}
"""Their older names of fields, and the usual ones."""


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
        return {
            "name": "audio",
            "num_layers": 0,
            "hidden_size": samples,
            "num_heads": 1,
            "ffn_hidden_size": samples,
            "patch_size": 0,
            "patches": SECONDS * 16_000 // samples,
            "linear_bias": False,
            "projector": (samples, width),
        }
    if kind == "gemma4_audio":
        return _conformer_fields(sound, width)
    hidden, bins = sound.whole("hidden_size"), sound.whole("num_mel_bins")
    own: dict[str, Any] = {
        "name": "audio",
        "num_layers": sound.whole("num_hidden_layers"),
        "hidden_size": hidden,
        "num_heads": sound.whole("num_attention_heads"),
        "ffn_hidden_size": sound.whole("intermediate_size"),
    }
    frames = SECONDS * _FRAMES_A_SECOND
    if kind in _WHISPERS:
        learned, merged, words = _WHISPERS[kind]
        known = {"merged": merged * hidden, "hidden": hidden, "text": width}
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
        return own | {
            "patch_size": 0,
            "patches": length,
            "positions": learned,
        }, f"{length:,} words"
    frames = config.whole("max_source_positions", SECONDS * _FRAMES_A_SECOND // 2)
    heard = _whispers(config.whole("num_mel_bins"), own["hidden_size"], frames)
    return own | heard | {
        "positions": frames
    }, f"{2 * frames // _FRAMES_A_SECOND} seconds of sound"


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
    return {
        "name": "audio",
        "num_layers": sound.whole("num_hidden_layers"),
        "hidden_size": hidden,
        "num_heads": sound.whole("num_attention_heads"),
        "ffn_hidden_size": 4 * hidden,
        "stem": (Convolution(9, one, 4 * left), Convolution(9 * one, two, left)),
        "patch_size": two * left,
        "patches": SECONDS * _FRAMES_A_SECOND // 4,
        "linear_bias": False,
        "normalization": "rmsnorm",
        "taps": sound.whole("conv_kernel_size"),
        "chunk": sound.whole("attention_chunk_size") + past,
        "projector": (hidden, sound.whole("output_proj_dims"), width),
    }
