"""An encoder in front of a language model: what it makes of images stands in for tokens."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)

_MOST = 10**7


@dataclass(frozen=True)
class Tower:
    """A vision transformer, on the first pipeline stage; its attention is not causal."""

    name: str
    """What messages call it."""
    num_layers: int
    """Layers, each attention and an MLP."""
    hidden_size: int
    """Width between layers."""
    num_heads: int
    """Heads."""
    ffn_hidden_size: int
    """Inner width of the MLP."""
    patch_size: int
    """Values of one patch: channels times pixels (times frames)."""
    patches: int
    """Patches of an image."""
    images: int = 1
    """Images of a sequence."""
    gated_mlp: bool = False
    """Two input projections."""
    linear_bias: bool = True
    """Linear layers have biases."""
    normalization: str = "layernorm"
    """Of layers."""
    positions: int = 0
    """Learned positions (0: rotary)."""
    merged: int = 1
    """Patches that become one token of the language model."""
    projector: tuple[int, ...] = ()
    """Widths from the merged patches to the language model, input and output included."""
    projectors: int = 1
    """As many of them, for outputs of several layers (Qwen3-VL)."""

    def check(self, field: str) -> None:
        """Refuse impossible sizes.

        Raises:
            InputError: naming the field, which begins with ``field``.
        """
        sizes = "num_layers hidden_size num_heads ffn_hidden_size patch_size patches images"
        for name in f"{sizes} merged projectors".split():
            value = getattr(self, name)
            require_positive(f"{field}.{name}", value)
            if value > _MOST:
                raise InputError(f"{field}.{name}", value, "is out of range", f"1..{_MOST}")
        require_choice(f"{field}.normalization", self.normalization, ("layernorm", "rmsnorm"))
        require_positive(f"{field}.positions", self.positions, allow_zero=True)
        for width in self.projector:
            require_positive(f"{field}.projector", width)
        if self.hidden_size % self.num_heads:
            problem = f"does not divide hidden_size {self.hidden_size}"
            raise InputError(f"{field}.num_heads", self.num_heads, problem, "a divisor of it")
        if self.patches % self.merged:
            problem = f"does not divide the {self.patches} patches of an image"
            raise InputError(f"{field}.merged", self.merged, problem, "a divisor of patches")

    @property
    def projector_weights(self) -> int:
        """Multiplications of one merged patch on its way to the language model."""
        pairs = zip(self.projector, self.projector[1:], strict=False)
        return self.projectors * sum(one * other for one, other in pairs)
