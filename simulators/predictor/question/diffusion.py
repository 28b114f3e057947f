"""A diffusion transformer's surroundings: latent patches, a text beside them, conditions."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InputError, require_choice, require_positive

# Where a layer's text is, unless it is looked at across (Wan): in the same attention with weights
# of its own (Flux's double blocks), or among the other tokens, attention and MLP being in parallel
# (its single blocks).
TEXTS = OWN, JOINT = "own", "joint"
MODULATIONS = ("shared", "layers")
_MOST = 10**6


@dataclass(frozen=True)
class Diffusion:
    """What stands in for words: noisy patches of a latent go in, what they should be comes out.

    Latents and the text's encoding come with the data: neither the autoencoder nor the text
    encoder runs in a step.
    """

    patch_size: int
    """Values of one latent patch: channels times pixels (times frames)."""
    text_tokens: int
    """Tokens of the encoded text."""
    text_widths: tuple[int, ...]
    """Widths from the text's encoding to the model's, both included."""
    conditions: tuple[int, ...] = (256,)
    """Widths of the vectors that layers are conditioned on, each through two linear layers: the
    time step's, a guidance's, a pooled text's."""
    modulation: str = "layers"
    """Scales, shifts and gates of a layer: from a linear layer of its own (``layers``, adaLN), or
    from one that all share and a table of its own (``shared``, adaLN-single)."""

    def check(self) -> None:
        """Refuse impossible sizes."""
        where = "model.diffusion"
        sizes: dict[str, tuple[int, ...]]
        sizes = {"patch_size": (self.patch_size,), "text_tokens": (self.text_tokens,)}
        sizes |= {"text_widths": self.text_widths, "conditions": self.conditions}
        for name, values in sizes.items():
            for value in values:
                require_positive(f"{where}.{name}", value, most=_MOST)
        require_choice(f"{where}.modulation", self.modulation, MODULATIONS)

    def check_for(self, hidden_size: int) -> None:
        """Refuse a text that does not end in the model's width."""
        if len(self.text_widths) < 2 or self.text_widths[-1] != hidden_size:
            widths = ", ".join(map(str, self.text_widths))
            problem = "does not lead to the model's width"
            allowed = f"two widths or more, the last {hidden_size}"
            raise InputError("model.diffusion.text_widths", f"[{widths}]", problem, allowed)
