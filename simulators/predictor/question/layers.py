"""Layers: what mixes the tokens of each, and what MLP stands behind it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from .diffusion import TEXTS
from .errors import MOST, InputError, require_choice, require_positive

ATTENTION, DENSE, MOE, NONE = "attention", "dense", "moe", "none"
MLPS = (DENSE, MOE, NONE)
# Ten times the deepest published transformer (DeepNet, arXiv 2203.00555).
MOST_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: the kind of its mixer and of its MLP, by name."""

    mixer: str
    mlp: str
    ffn_hidden_size: int | None = None
    """Inner width of its dense MLP (None: the model's)."""
    bf16: bool = False
    """Its linear layers compute in 16 bits where others compute in fewer."""


DENSE_LAYER, EXPERT_LAYER = Layer(ATTENTION, DENSE), Layer(ATTENTION, MOE)


def plain_layer(is_moe: bool) -> Layer:
    """The layer of a model without a pattern: attention, then a dense MLP or experts."""
    return EXPERT_LAYER if is_moe else DENSE_LAYER


@dataclass(frozen=True)
class Index:
    """The indexer of sparse attention (DeepSeek-V3.2; of blocks of keys, MiniMax-M3): a small
    attention of its own scores all keys, and queries attend to those that score best."""

    heads: int
    """Its heads, which share one key (0, of no width: the keys are those that an earlier layer
    chose, GLM-5)."""
    dim: int
    """Width of a head."""
    top_k: int
    """Keys a query attends to."""

    def weights(self, inputs: int, hidden: int) -> int:
        """Of queries from ``inputs`` channels, one key, and a factor for each head."""
        if not self.heads:
            return 0
        return inputs * self.heads * self.dim + hidden * (self.dim + self.heads)


@dataclass(frozen=True)
class AttentionMixer:
    """Causal attention with the model's heads (or its latent attention), or heads of its own."""

    window: int | None = None
    """Tokens a query attends to, itself included, half of them behind it where it is not causal
    (sliding window; None: all before it)."""
    chunk: int | None = None
    """Tokens attend within chunks of so many (Llama 4; None: whole sequences)."""
    sinks: bool = False
    """Each head has a learned logit that takes part of the softmax (GPT-OSS)."""
    gated: bool = False
    """Its output is multiplied by a gate, which the query projection makes (Qwen3-Next)."""
    index: Index | None = None
    """Chooses the keys of each query, None where all are attended to."""
    causal: bool = True
    """Queries attend to tokens before them alone."""
    text: str | None = None
    """Where a diffusion transformer's text is: in the same attention with weights of its ``own``
    (Flux's double blocks), or ``joint`` with the other tokens, the MLP in parallel (its single
    blocks)."""
    heads: int | None = None
    """Query heads (None: the model's)."""
    kv_heads: int | None = None
    """Key and value heads (None: the model's)."""
    head_dim: int | None = None
    """Width of a head (None: the model's)."""
    head_gates: bool = False
    """The output of each head is multiplied by one gate, which the query projection makes
    (Laguna)."""
    keys_are_values: bool = False
    """One projection makes keys and values (Gemma 4)."""
    reuses_kv: bool = False
    """Keys and values are those of an earlier layer: it projects queries alone (the last layers
    of Gemma 3n and of Gemma 4's small models)."""

    def projected_widths(
        self, heads: int, kv_heads: int, head_dim: int, value_dim: int
    ) -> tuple[int, ...]:
        """Columns of the projections of queries (with their gates), keys and values, as far as it
        has them, with so many heads of such widths."""
        queries = heads * ((2 if self.gated else 1) * head_dim + self.head_gates)
        if self.reuses_kv:
            return (queries,)
        keys = queries, kv_heads * head_dim
        return keys if self.keys_are_values else (*keys, kv_heads * value_dim)

    def latent_gates(self, heads: int, value_dim: int) -> int:
        """Columns of the gates' own projection beside latent queries."""
        return heads * (value_dim if self.gated else int(self.head_gates))

    @property
    def has_own_heads(self) -> bool:
        """Whether any size of its heads is not the model's."""
        return any(each is not None for each in (self.heads, self.kv_heads, self.head_dim))

    @property
    def is_whole(self) -> bool:
        """Whether queries attend to all tokens before them, and to no others."""
        limits = (self.window, self.chunk, self.index)
        return self.causal and all(limit is None for limit in limits)


WHOLE = AttentionMixer()


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, section 2.1); all sizes in elements."""

    kv_lora_rank: int
    """Width that keys and values are compressed to."""
    qk_nope_head_dim: int
    """Width of a query or key head without positions."""
    qk_rope_head_dim: int
    """Width of a query or key head with rotary positions (0: there are none)."""
    v_head_dim: int
    """Width of a value head."""
    q_lora_rank: int | None = None
    """Width that queries are compressed to; None means they are projected directly."""

    def down_weights(self, hidden: int) -> int:
        """Of what compresses."""
        return hidden * (self.kv_lora_rank + self.qk_rope_head_dim + (self.q_lora_rank or 0))

    def up_weights(self, hidden: int, heads: int) -> int:
        """Of what makes queries, keys and values of so many heads."""
        queries = self.qk_nope_head_dim + self.qk_rope_head_dim
        pairs = self.kv_lora_rank * (self.qk_nope_head_dim + self.v_head_dim)
        return heads * ((self.q_lora_rank or hidden) * queries + pairs)

    def check(self) -> None:
        for name in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim"):
            require_positive(f"model.mla.{name}", getattr(self, name))
        require_positive("model.mla.qk_rope_head_dim", self.qk_rope_head_dim, allow_zero=True)
        if self.q_lora_rank is not None:
            require_positive("model.mla.q_lora_rank", self.q_lora_rank)


@dataclass(frozen=True)
class CompressedAttention:
    """Attention to a window and to compressed keys (DeepSeek-V4), with the model's heads: one key
    is every head's and the value, too."""

    q_rank: int
    """Width that queries are compressed to."""
    window: int
    """Tokens that a query sees as they are, itself included."""
    out_groups: int
    """Groups of heads whose outputs are projected apart."""
    out_rank: int
    """Width that a group's output is compressed to."""
    rate: int = 1
    """Tokens that become one compressed key (1: there are none)."""
    series: int = 1
    """2: compressed keys reach over the tokens of the one before, too."""
    index: Index | None = None
    """Chooses the compressed keys of each query, None where all are attended to."""

    def compressed_widths(self, head_dim: int) -> tuple[int, ...]:
        """Widths of compressed keys, and of those that an indexer scores."""
        if self.rate == 1:
            return ()
        return (head_dim,) if self.index is None else (head_dim, self.index.dim)

    def in_weights(self, hidden: int, head_dim: int) -> int:
        """Of what makes narrow queries and the key, compressed keys with their gates, and the
        indexer's queries with a factor for each head."""
        index, made = self.index, 2 * self.series * sum(self.compressed_widths(head_dim))
        count = hidden * (self.q_rank + head_dim + made)
        return count + (0 if index is None else (self.q_rank * index.dim + hidden) * index.heads)

    def out_weights(self, hidden: int, inner: int) -> int:
        """Of the output from ``inner`` channels, projected twice."""
        return self.out_rank * (inner + self.out_groups * hidden)

    def seen(self, sequence: int) -> float:
        """Keys that a query attends to on average (none of no tokens)."""
        window = min(self.window, sequence)
        near = window - window * (window - 1) / (2 * max(1, sequence))
        if self.rate == 1:
            return near
        far = sequence / (2 * self.rate)
        top = far if self.index is None else min(self.index.top_k, far)
        return near + top


@dataclass(frozen=True)
class Mamba2:
    """A state-space mixer by state-space duality (Mamba-2, arXiv 2405.21060)."""

    heads: int
    """Heads."""
    head_dim: int
    """Channels of a head."""
    state: int
    """State of a channel."""
    groups: int = 1
    """Groups of heads that share their input and output projections of the state (B, C)."""
    conv: int = 4
    """Taps of the causal convolution before it."""
    chunk: int = 256
    """Tokens whose products are computed at once."""
    norm: bool = True
    """The gated output is normalised."""
    fixed_decay: bool = False
    """A constant of each head decays its state, and no convolution runs before it (lightning
    attention, arXiv 2501.08313: queries and keys are C and B of a group for each head)."""

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def steps(self) -> int:
        """Steps of a token, which inputs decide: one a head."""
        return 0 if self.fixed_decay else self.heads

    @property
    def convolved(self) -> int:
        """Channels that the convolution runs over: inputs, B and C."""
        return self.inner + 2 * self.groups * self.state

    def weights(self, hidden: int) -> int:
        """Of its projections in and out."""
        return hidden * (2 * self.inner + self.convolved + self.steps)


@dataclass(frozen=True)
class Mamba1:
    """A selective state-space mixer (Mamba, arXiv 2312.00752)."""

    inner: int
    """Channels."""
    state: int
    """State of a channel."""
    rank: int
    """Width that steps are projected from."""
    conv: int = 4
    """Taps of the causal convolution before it."""
    norms: bool = False
    """What steps are projected from, B and C are normalised (Jamba)."""

    def weights(self, hidden: int) -> int:
        """Of its projections in and out, and of those to B, C and the steps."""
        return self.inner * (3 * hidden + 2 * self.rank + 2 * self.state)


@dataclass(frozen=True)
class ShortConv:
    """A gated short convolution (LFM2, arXiv 2511.23404)."""

    channels: int
    """Channels."""
    conv: int = 3
    """Taps."""


@dataclass(frozen=True)
class DeltaNet:
    """A gated delta net (arXiv 2412.06464) or, with a gate for every channel, Kimi's delta
    attention (arXiv 2510.26692)."""

    k_heads: int
    """Query and key heads."""
    v_heads: int
    """Value heads."""
    k_dim: int
    """Width of a query or key head."""
    v_dim: int
    """Width of a value head."""
    conv: int = 4
    """Taps of the causal convolutions of queries, keys and values."""
    gate: str = "scalar"
    """How the state decays: ``scalar`` (one rate a head), ``vector`` (one a channel, which a
    low-rank product makes, as the output's gate) or ``full`` (one whole product makes each: Ling's
    hybrids)."""
    chunk: int = 64
    """Tokens whose products are computed at once."""

    @property
    def convolved(self) -> int:
        """Channels that the convolutions run over."""
        return 2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim

    @property
    def is_low_rank(self) -> bool:
        """Whether the decay and the output's gate are low-rank products, through one head's width
        (Kimi-Linear)."""
        return self.gate == "vector"

    @property
    def decays(self) -> int:
        """Decays of a token: one a head or one a channel."""
        return self.v_heads if self.gate == "scalar" else self.k_heads * self.k_dim

    @property
    def projected(self) -> int:
        """Columns of the projection in: what is convolved, steps, and the output's gate and the
        decays unless low-rank products make them."""
        gates = 0 if self.is_low_rank else self.v_heads * self.v_dim + self.decays
        return self.convolved + self.v_heads + gates

    def weights(self, hidden: int) -> int:
        """Of queries, keys, values, the output, its gate, decays and steps."""
        values = self.v_heads * self.v_dim
        low = self.v_dim * (2 * hidden + self.decays + values) if self.is_low_rank else 0
        return hidden * (self.projected + values) + low


@dataclass(frozen=True)
class Mixer:
    """How a layer mixes tokens: one of these, or several in parallel whose outputs add up."""

    attention: AttentionMixer | None = None
    """Attention."""
    mamba2: Mamba2 | None = None
    """A state-space mixer."""
    delta: DeltaNet | None = None
    """A gated delta net."""
    mamba1: Mamba1 | None = None
    """A selective state-space mixer."""
    short_conv: ShortConv | None = None
    """A gated short convolution."""
    compressed: CompressedAttention | None = None
    """Attention to a window and to compressed keys."""
    cross: bool = False
    """Queries look at what the model's tower makes, or its text, which is then not among its
    tokens: behind the others, with a norm and a residual of its own (T5, Whisper, Wan), or alone
    (Llama 3.2 Vision)."""

    @property
    def parts(self) -> dict[str, Any]:
        """What mixes side by side, by name."""
        each = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: part for name, part in each.items() if part}

    @property
    def in_turn(self) -> tuple[Mixer, ...]:
        """What is one behind the other, each with a norm and a residual."""
        if not self.cross or self == CROSS_ATTENTION:
            return (self,)
        return replace(self, cross=False), CROSS_ATTENTION

    def check(self, field: str) -> None:
        """Refuse impossible sizes."""
        if not self.parts:
            raise InputError(field, "{}", "mixes nothing", (each.name for each in fields(self)))
        for name, part in self.parts.items():
            if name != "cross":
                _check_sizes(f"{field}.{name}", part)
        attention, ssm, delta = self.attention, self.mamba2, self.delta
        if attention is not None and attention.index is not None:
            _check_sizes(f"{field}.attention.index", attention.index)
        packed = self.compressed
        if packed is not None and packed.index is not None:
            _check_sizes(f"{field}.compressed.index", packed.index)
            if packed.rate == 1:
                problem = "chooses among compressed keys"
                raise InputError(f"{field}.compressed.index", "...", problem, "a rate above 1")
        narrow = ("window", "chunk", "index")
        if attention and sum(getattr(attention, name) is not None for name in narrow) > 1:
            problem = "is given beside another limit of the same attention"
            raise InputError(f"{field}.attention", "...", problem, "one of window, chunk, index")
        if attention and attention.gated and attention.head_gates:
            problem = "is given beside a gate for each channel"
            raise InputError(f"{field}.attention.head_gates", True, problem, "one of the two")
        if attention and attention.text is not None:
            require_choice(f"{field}.attention.text", attention.text, TEXTS)
            if attention.causal or attention.gated or attention.head_gates or attention.sinks:
                problem = "is of attention to all tokens, without gates or sinks"
                raise InputError(
                    f"{field}.attention.text", attention.text, problem, "causal: false"
                )
        of_text = attention and attention.text is not None and attention.window
        if attention and not attention.causal and (of_text or attention.index):
            problem = "is of causal attention alone"
            raise InputError(f"{field}.attention.causal", False, problem, "true")
        if ssm is not None and ssm.heads % ssm.groups:
            problem = f"does not divide the {ssm.heads} heads"
            raise InputError(f"{field}.mamba2.groups", ssm.groups, problem)
        if delta is not None:
            require_choice(f"{field}.delta.gate", delta.gate, ("scalar", "vector", "full"))
            if delta.v_heads % delta.k_heads:
                problem = f"does not divide the {delta.v_heads} value heads"
                raise InputError(f"{field}.delta.k_heads", delta.k_heads, problem)


CROSS_ATTENTION = Mixer(cross=True)
_MOST_SIZE = 10**6


def _check_sizes(field: str, part: object) -> None:
    for each in fields(part):  # type: ignore[arg-type]
        value = getattr(part, each.name)
        if isinstance(value, int) and not isinstance(value, bool):
            most = MOST if each.name in ("window", "chunk", "top_k") else _MOST_SIZE
            chosen = field.endswith("attention.index") and getattr(part, "heads", 1) == 0
            none = chosen and each.name != "top_k"
            require_positive(f"{field}.{each.name}", value, most=most, allow_zero=none)
