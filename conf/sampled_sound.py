"""Encoders of sound as it is sampled (wav2vec 2.0, arXiv 2006.11477, and its kin), from a Hugging
Face configuration: convolutions make frames, and the words' letters, or a clip's class, are told
apart."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trainscout.conf.encoder_config import SECONDS, number_of_classes
from trainscout.conf.hub_names import FILE
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.layers import AttentionMixer, Mixer
from trainscout.simulators.predictor.question.tower import Convolution

if TYPE_CHECKING:
    from trainscout.conf.config_fields import Config

SAMPLED = ("hubert", "unispeech", "unispeech-sat", "wav2vec2")
"""Every ``model_type`` that is read."""
_RATE = 16_000
_REFUSED = ("add_adapter", "adapter_attn_dim", "conv_pos_batch_norm", "use_weighted_layer_sum")


def sampled_fields(kind: str, config: Config, name: str, *, of_clips: bool) -> dict[str, Any]:
    """The model of an encoder of samples.

    Args:
        kind: its ``model_type``.
        config: its fields.
        name: what to call it.
        of_clips: a clip's class is told apart, not letters frame by frame.

    Raises:
        InputError: naming the field, for what cannot be expressed.
    """
    for field in _REFUSED:
        if config.has(field):
            raise InputError(f"{FILE}: {field}", config.fields[field], f"is not read for {kind}")
    lists = [config.numbers(each) for each in ("conv_dim", "conv_kernel", "conv_stride")]
    # One length, and not none.
    if len({*map(len, lists), 0}) != 2 or min(itertools.chain(*lists)) < 1:
        sizes = " and ".join(str(len(each)) for each in lists)
        raise InputError(f"{FILE}: conv_kernel", lists[1], "is not one of each convolution", sizes)
    channels, kernels, strides = lists
    hidden, stride = config.whole("hidden_size"), math.prod(strides)
    inputs = [taps * by for taps, by in zip(kernels, [1, *channels], strict=False)]
    places = [stride // each for each in itertools.accumulate(strides, lambda one, by: one * by)]
    stem = [Convolution(*each) for each in zip(inputs, channels, places, strict=True)]
    # Positions come from a convolution of groups of channels.
    groups = config.positive("num_conv_pos_embedding_groups")
    taps = config.whole("num_conv_pos_embeddings")
    stem.append(Convolution(hidden // groups * taps, hidden, 1))
    classes = number_of_classes(config) if of_clips else config.whole("vocab_size")
    between = (config.whole("classifier_proj_size"),) if of_clips else ()
    what = f"{classes} classes of clips" if of_clips else f"{classes} letters"
    layers = config.whole("num_hidden_layers")
    return {
        "name": name,
        "source": f"{FILE} of {name} (model_type {kind})",
        "simplified": (
            f"a clip of {SECONDS} seconds, of {what}, whose loss is one of classes",
            "norms between convolutions are not priced, and all layers run (layerdrop 0)",
        ),
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": config.whole("num_attention_heads"),
        "ffn_hidden_size": config.whole("intermediate_size"),
        "vocab_size": 1,
        "sequence_length": SECONDS * _RATE // stride,
        "position": "none",
        "dropout": config.has("hidden_dropout"),
        "tied_embeddings": False,
        "layers": f"{layers}*whole/dense",
        "kinds": {"whole": Mixer(attention=AttentionMixer(causal=False))},
        "pooled": {
            "widths": (hidden, *between, classes),
            "patch_size": channels[-1],
            "stem": [asdict(each) for each in stem],
            "every_token": not of_clips,
        },
    }
