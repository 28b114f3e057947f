"""An encoder in front of a language model: what it makes of images or sound is its tokens."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InputError, require_choice, require_positive

_MOST = 10**7


@dataclass(frozen=True)
class Convolution:
    """A convolution of what an encoder takes."""

    inputs: int
    """Values that one of its outputs looks at."""
    channels: int
    """Channels that it makes."""
    places: int
    """Outputs a patch, or behind an encoder's layers a token of the language model."""

    @property
    def weights(self) -> int:
        return self.inputs * self.channels

    def check(self, field: str) -> None:
        """Refuse impossible sizes."""
        for name in ("inputs", "channels", "places"):
            require_positive(f"{field}.{name}", getattr(self, name))


@dataclass(frozen=True)
class Tower:
    """A transformer, on the first pipeline stage; its attention is not causal."""

    name: str
    """What messages call it."""
    num_layers: int
    """Layers, each attention and an MLP (0: patches are projected as they are)."""
    hidden_size: int
    """Width between layers."""
    num_heads: int
    """Heads."""
    ffn_hidden_size: int
    """Inner width of the MLP."""
    patch_size: int
    """Values of one patch: channels times pixels (times frames); 0: its width, as they are, or
    the vector of a word of the language model's table where it has layers."""
    patches: int
    """Patches of an image, or frames of a clip."""
    images: int = 1
    """Images or clips of a sequence."""
    gated_mlp: bool = False
    """Two input projections."""
    linear_bias: bool = True
    """Linear layers have biases."""
    normalization: str = "layernorm"
    """Of layers."""
    positions: int = 0
    """Learned positions (0: none, or rotary ones)."""
    rotary: bool = True
    """Positions are rotary where none are learned."""
    head_dim: int | None = None
    """Width of a head (null: hidden size over heads)."""
    num_query_groups: int | None = None
    """Key and value heads (null: as many as heads)."""
    merged: int = 1
    """Patches that become one token of the language model."""
    projector: tuple[int, ...] = ()
    """Widths from the merged patches to the language model, input and output included."""
    gated_projector: bool = False
    """Its last two products are a gated MLP, with two input projections."""
    projectors: int = 1
    """As many of them, for outputs of several layers (Qwen3-VL)."""
    stem: tuple[Convolution, ...] = ()
    """Convolutions in front of the patches."""
    behind: tuple[Convolution, ...] = ()
    """Convolutions, or products, that merge patches by steps ahead of the projector."""
    taps: int = 0
    """Of a gated convolution behind attention in each layer, which then has a second MLP, too, and
    a projection of relative positions (Conformer; 0: a transformer)."""
    pools: bool = False
    """One query attends to all patches behind the layers, and an MLP stands behind it: what comes
    out is one vector (SigLIP; ``merged`` is ``patches`` then)."""
    chunk: int | None = None
    """Patches attend within chunks of so many (null: to all)."""

    def check(self, field: str) -> None:
        """Refuse impossible sizes."""
        sizes = "num_layers hidden_size num_heads ffn_hidden_size patch_size patches images"
        for name in f"{sizes} merged projectors".split():
            value = getattr(self, name)
            may_be_zero = name in ("num_layers", "patch_size")
            require_positive(f"{field}.{name}", value, allow_zero=may_be_zero, most=_MOST)
        require_choice(f"{field}.normalization", self.normalization, ("layernorm", "rmsnorm"))
        for name in ("positions", "taps"):
            require_positive(f"{field}.{name}", getattr(self, name), allow_zero=True)
        for name in ("chunk", "head_dim", "num_query_groups"):
            if (value := getattr(self, name)) is not None:
                require_positive(f"{field}.{name}", value)
        for width in self.projector:
            require_positive(f"{field}.projector", width)
        for name in ("stem", "behind"):
            for number, each in enumerate(getattr(self, name)):
                each.check(f"{field}.{name}.{number}")
        if self.gated_projector and len(self.projector) < 3:
            problem = "is of two products or more"
            raise InputError(f"{field}.gated_projector", True, problem, f"{field}.projector")
        if self.head_dim is None and self.hidden_size % self.num_heads:
            problem = f"does not divide hidden_size {self.hidden_size}"
            raise InputError(f"{field}.num_heads", self.num_heads, problem, "a divisor of it")
        if self.num_heads % self.kv_heads:
            problem = f"does not divide the {self.num_heads} heads"
            raise InputError(f"{field}.num_query_groups", self.kv_heads, problem)
        if self.pools and self.merged != self.patches:
            problem, allowed = "is one vector of all patches", f"merged {self.patches}"
            raise InputError(f"{field}.pools", True, problem, allowed)
        if self.patches % self.merged:
            problem = f"does not divide the {self.patches} patches of an image"
            raise InputError(f"{field}.merged", self.merged, problem, "a divisor of patches")

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""
        return self.num_query_groups or self.num_heads

    @property
    def reads_words(self) -> bool:
        """Whether what goes in are words of the language model's table."""
        return self.num_layers > 0 and not self.patch_size

    @property
    def tokens(self) -> int:
        """Tokens that it makes of a sequence's images."""
        return self.images * self.patches // self.merged

    @property
    def output_width(self) -> int:
        """Width of what it makes."""
        return self.projector[-1] if self.projector else self.hidden_size

    @property
    def projector_weights(self) -> int:
        """Of the products behind the layers."""
        own = self.projectors * sum(one * other for one, other, _ in self.projections)
        return own + sum(each.weights for each in self.behind)

    @property
    def projector_products(self) -> int:
        """Multiplications of one merged patch on its way to the language model."""
        return self.projector_weights + sum(
            each.weights * (each.places - 1) for each in self.behind
        )

    @property
    def projections(self) -> list[tuple[int, int, bool]]:
        """Inputs and outputs of the projector's products in order, and whether one of a gated MLP
        stands beside it; that one follows it."""
        pairs = list(zip(self.projector, self.projector[1:], strict=False))
        gate = len(pairs) - 2 if self.gated_projector else None
        return [
            (*pair, number == gate)
            for number, pair in enumerate(pairs)
            for _ in range(2 if number == gate else 1)
        ]
