"""What of a model's shape launch files do not say, in words."""

from __future__ import annotations

from trainscout.simulators.predictor.question.model import Model


def untold(model: Model, *, clamped: bool = False, turned_in_part: bool = False) -> list[str]:
    """What sets a model apart, beside its layers and parts, that no file of a framework says; it
    has arguments for a ``clamped`` MLP or heads ``turned_in_part``, or has not."""
    found = ["a clamped MLP"] * (model.clamped_mlp and not clamped)
    in_part = model.position == "rope" and model.mla is None and model.rotary_fraction < 1
    found += ["rotary positions of a part of a head"] * (in_part and not turned_in_part)
    still = model.mla is not None and not model.mla.qk_rope_head_dim
    found += ["latent attention without positions"] * still
    # Frameworks give queries, keys and values the biases of all others, or some of their own.
    found += ["biases of all but queries, keys and values"] * (
        model.linear_bias and not model.qkv_bias
    )
    biased = (model.linear_bias or model.qkv_bias) and not model.key_bias
    return [*found, *["keys without biases"] * biased]


def unscaled(model: Model) -> list[str]:
    """What of rotary positions no field of a model says, and no file therefore."""
    return ["positions with a temperature (YaRN)"] * model.scaled_rope
