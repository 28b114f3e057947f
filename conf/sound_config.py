"""The encoder of sound of a Hugging Face configuration of several modalities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainscout.simulators.predictor.question.tower import Convolution

if TYPE_CHECKING:
    from trainscout.conf.config_json import Config

SECONDS = 30
"""Of a clip: what Whisper's encoder, which these were made from, always takes."""
_FRAMES_A_SECOND = 100
SOUNDS = ("gemma4_unified_audio", "qwen2_5_omni_audio_encoder", "qwen3_omni_moe_audio_encoder")
"""Every ``model_type`` that is read."""


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
    hidden, bins = sound.whole("d_model"), sound.whole("num_mel_bins")
    own = {
        "name": "audio",
        "num_layers": sound.whole("encoder_layers"),
        "hidden_size": hidden,
        "num_heads": sound.whole("encoder_attention_heads"),
        "ffn_hidden_size": sound.whole("encoder_ffn_dim"),
    }
    frames, out = SECONDS * _FRAMES_A_SECOND, sound.whole("output_dim")
    if kind == "qwen2_5_omni_audio_encoder":
        # Whisper's: two convolutions of three frames, the second on every other one; pairs of what
        # comes out are averaged.
        return own | {
            "stem": (Convolution(3 * bins, hidden, 2),),
            "patch_size": 3 * hidden,
            "patches": frames // 2,
            "merged": 2,
            "projector": (hidden, out),
        }
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
        "projector": (hidden, hidden, out),
    }
