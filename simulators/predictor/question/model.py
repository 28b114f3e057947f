"""The model of a question: shapes of a decoder-only transformer, its experts, its attention."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field

from .diffusion import Diffusion
from .errors import InputError, nearest_name, require_choice, require_positive
from .experts import Moe
from .layer_pattern import parse_layers
from .layers import (
    ATTENTION,
    DENSE,
    MOE,
    MOST_LAYERS,
    NONE,
    WHOLE,
    Layer,
    Mixer,
    Mla,
    plain_layer,
)
from .pooled import Pooled
from .tower import Tower

MOST_TOKENS = 10**9
"""Of one sequence."""
# A workload lists its layers, and counts products of sizes in 64 bits: what nobody trains would
# only exhaust memory, or overflow.
_MOST = {
    "num_layers": MOST_LAYERS,
    "hidden_size": 10**6,
    "num_heads": 10**5,
    "ffn_hidden_size": 10**7,
    "vocab_size": 10**7,
    "sequence_length": MOST_TOKENS,
    "vocab_multiple": 10**6,
    "residual_streams": 64,
}
_ATTENTION = Mixer(attention=WHOLE)


@dataclass(frozen=True)
class PerLayerInput:
    """Per-layer embeddings (Gemma 3n, Gemma 4): a second table has a small vector of each token
    for every layer, a projection of the embedding is added to it, and at its end each layer adds a
    projection of it, gated by the hidden state, to the residual."""

    vocab_size: int
    """Rows of the table."""
    hidden_size: int
    """Width of a layer's vector."""

    def check(self) -> None:
        for name in ("vocab_size", "hidden_size"):
            field = f"model.per_layer_input.{name}"
            require_positive(field, getattr(self, name), most=_MOST[name])


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer, or what has other mixers in attention's place."""

    name: str
    """What results call it."""
    num_layers: int
    """Layers."""
    hidden_size: int
    """Width between layers."""
    num_heads: int
    """Query heads."""
    ffn_hidden_size: int
    """Inner width of the dense MLP."""
    vocab_size: int
    """Rows of the embedding before padding."""
    sequence_length: int
    """The length the model is usually trained at (tokens); ``training`` may override it."""
    source: str
    """Where the shape was published."""
    simplified: tuple[str, ...] = ()
    """What of it is predicted in another way than it runs, in words, which predictions say."""
    num_query_groups: int | None = None
    """Key and value heads (None: as many as query heads)."""
    head_dim: int | None = None
    """Width of a head (None: hidden size over heads)."""
    value_head_dim: int | None = None
    """Width of a value head (None: as a query's; MiMo-V2: 128 beside 192)."""
    gated_mlp: bool = False
    """Two input projections (SwiGLU)."""
    clamped_mlp: bool = False
    """Both halves of a gated MLP are clamped before they are multiplied (GPT-OSS)."""
    normalization: str = "layernorm"
    """Of layers."""
    position: str = "learned"
    """How positions enter."""
    rotary_fraction: float = 1.0
    """Share of a head that rotary positions turn (``partial_rotary_factor``, ``rotary_pct``)."""
    scaled_rope: bool = False
    """Rotary positions come with a temperature (YaRN), which no fused kernel applies."""
    linear_bias: bool = True
    """Linear layers have biases."""
    qkv_bias: bool = True
    """The query, key and value projection has one."""
    key_bias: bool = True
    """Keys have one where queries and values do (DINOv3: not)."""
    qk_norm: bool = False
    """Queries and keys are normalised head by head."""
    qk_norm_whole: bool = False
    """Queries and keys are normalised over all heads at once."""
    post_norms: bool = False
    """What attention and MLP add to the residual is normalised, too (Gemma)."""
    inner_norms: bool = False
    """What attention's output projection and a dense MLP's last product take is normalised
    (BitNet)."""
    dropout: bool = True
    """After embedding, attention and MLP."""
    tied_embeddings: bool = True
    """The output projection uses the embedding's weights."""
    masked_head: bool = False
    """Before the logits, which have biases, stands a linear layer with an activation and a norm:
    words that were masked are predicted (BERT)."""
    residual_streams: int = 1
    """Streams of the residual, which hyper-connections mix (DeepSeek-V4: 4), or of which layers
    work on one where there is a ``laurel_rank``."""
    mixes_streams: bool = True
    """Hyper-connections mix streams among each other where the output is added (Hy-V4: not)."""
    laurel_rank: int | None = None
    """Channels of a low-rank residual beside attention's (LAuReL), where streams are predicted and
    corrected in place of mixed (AltUp; both of Gemma 3n)."""
    vocab_multiple: int = 128
    """Megatron pads the vocabulary to a multiple of ``vocab_multiple * tp``."""
    num_mtp_layers: int = 0
    """Multi-token-prediction modules (DeepSeek-V3, section 2.2) after the last layer: each a
    projection of two hidden states to one, a transformer layer and the shared head."""
    num_layers_at_start_in_bf16: int = 0
    """First layers whose linear layers stay in 16 bits in 8- and 4-bit training."""
    num_layers_at_end_in_bf16: int = 0
    """Last layers that stay so."""
    moe: Moe | None = None
    """Its experts, None for a dense model."""
    mla: Mla | None = None
    """Latent attention, None for the usual one."""
    layers: str | None = None
    """What each layer is, as in ``12*(3*linear/moe, attention/moe)``: mixer and MLP (``dense``,
    ``moe``, ``none``). None: attention in all, experts as ``moe`` says."""
    kinds: dict[str, Mixer] = dataclass_field(default_factory=dict, hash=False)
    """Mixers by the names that ``layers`` uses; ``attention`` is the model's own and ``none`` no
    mixer."""
    per_layer_input: PerLayerInput | None = None
    """What every layer is given of each token beside the hidden state."""
    towers: tuple[Tower, ...] = ()
    """Encoders in front of it."""
    pooled: Pooled | None = None
    """Classes of whole sequences or images, or pairs of both; None for a language model. Of images
    ``sequence_length`` counts all tokens of one, and there is no vocabulary (``vocab_size`` 1)."""
    layer_scale: bool = False
    """What attention and MLP add to the residual is multiplied by a learned vector (DINOv2)."""
    diffusion: Diffusion | None = None
    """Latents and a text in place of words, None for a language model. ``sequence_length`` then
    counts all tokens that one attention sees, and there is no vocabulary (``vocab_size`` 1)."""

    def check(self) -> None:
        """Refuse impossible shapes."""
        for name, most in _MOST.items():
            require_positive(f"model.{name}", getattr(self, name), most=most)
        require_choice("model.normalization", self.normalization, ("layernorm", "rmsnorm"))
        require_choice("model.position", self.position, ("learned", "rope", "none"))
        if not 0 < self.rotary_fraction <= 1:
            problem = "is no share of a head"
            raise InputError("model.rotary_fraction", self.rotary_fraction, problem, "0 to 1")
        require_positive("model.num_mtp_layers", self.num_mtp_layers, allow_zero=True)
        for name in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"):
            field, count = f"model.{name}", getattr(self, name)
            require_positive(field, count, allow_zero=True, most=self.num_layers)
        optional = ("num_query_groups", "head_dim", "value_head_dim")
        for name in (*optional, "laurel_rank"):
            value = getattr(self, name)
            if value is not None:
                require_positive(f"model.{name}", value)
        if self.head_dim is None and self.mla is None and self.hidden_size % self.num_heads:
            raise InputError(
                "model.num_heads",
                self.num_heads,
                f"does not divide hidden_size {self.hidden_size}",
                "a divisor of hidden_size, or an explicit model.head_dim",
            )
        if self.num_heads % self.kv_heads:
            raise InputError(
                "model.num_query_groups",
                self.num_query_groups,
                f"does not divide num_heads {self.num_heads}",
                "a divisor of num_heads",
            )
        if self.mla is not None and self.value_head_dim is not None:
            problem = "is given beside latent attention"
            raise InputError("model.value_head_dim", self.value_head_dim, problem, "model.mla")
        if self.qk_norm and self.qk_norm_whole:
            problem = "is given beside norms of single heads"
            raise InputError("model.qk_norm_whole", True, problem, "qk_norm or qk_norm_whole")
        if self.clamped_mlp and not self.gated_mlp:
            problem = "is of the two halves of a gated MLP"
            raise InputError("model.clamped_mlp", True, problem, "model.gated_mlp=true")
        if self.laurel_rank is not None and (
            self.residual_streams < 2 or self.per_layer_input is None
        ):
            problem = "goes with streams that inputs of each layer's own are added to"
            allowed = "residual_streams of 2 or more, and per_layer_input"
            raise InputError("model.laurel_rank", self.laurel_rank, problem, allowed)
        if self.moe is not None:
            self.moe.check()
        if self.per_layer_input is not None:
            self.per_layer_input.check()
        self._check_layers()
        if self.moe is not None:
            layers = sum(map(self.is_moe_layer, range(self.num_layers)))
            counted = len(self.moe.measured_layers)
            if counted not in (0, 1, layers):
                problem = f"counts routings of {counted} layers"
                allowed = f"one histogram for all, or of the {layers} layers with experts"
                raise InputError("model.moe.histogram", self.moe.histogram, problem, allowed)
        if self.mla is not None:
            self.mla.check()
        for number, tower in enumerate(self.towers):
            tower.check(f"model.towers.{number}")
        across = [name for name, mixer in self.kinds.items() if mixer.cross]
        of_tower = self.diffusion is None
        if across and of_tower and (len(self.towers) != 1 or self.mla is not None):
            problem = "looks at one tower, with the model's heads"
            allowed = "one of model.towers, and no model.mla"
            raise InputError(f"model.kinds.{across[0]}.cross", True, problem, allowed)
        if self.diffusion is not None:
            self._check_diffusion(self.diffusion)
        if self.pooled is not None:
            self.pooled.check()
            self.pooled.check_for(self.hidden_size, self.towers)
            heads = (self.diffusion, self.num_mtp_layers, self.masked_head, self.tied_embeddings)
            if any(heads) or self.residual_streams > 1:
                problem = "is beside latents, a head of words or several residuals"
                raise InputError("model.pooled", "...", problem, "tied_embeddings: false")

    def _check_diffusion(self, diffusion: Diffusion) -> None:
        diffusion.check()
        diffusion.check_for(self.hidden_size)
        parts = (self.moe, self.mla, self.towers, self.num_mtp_layers, self.per_layer_input)
        if any(parts) or self.masked_head or self.residual_streams > 1 or self.vocab_size != 1:
            problem = "is beside experts, latent attention, towers or a vocabulary"
            raise InputError("model.diffusion", "...", problem, "a model without them")
        across = set()
        for layer in self.layer_kinds:
            mixer = self.mixer(layer)
            attention = None if mixer is None else mixer.attention
            looks = mixer is not None and mixer.cross
            of_text = attention is not None and looks != (attention.text is not None)
            if attention is None or not of_text or attention.causal or layer.mlp != DENSE:
                problem = "has layers that are not of a diffusion transformer"
                allowed = "kinds with attention that is not causal, cross or with attention.text"
                raise InputError(
                    "model.layers", self.layers, problem, f"{allowed}, and dense MLPs"
                )
            across.add(looks)
        if across != {diffusion.modulation == "shared"}:
            problem = "goes with layers that look across at the text, and they with it"
            raise InputError("model.diffusion.modulation", diffusion.modulation, problem)
        if across == {False} and diffusion.text_tokens >= self.sequence_length:
            problem = f"leaves no latents of {self.sequence_length} tokens"
            raise InputError("model.diffusion.text_tokens", diffusion.text_tokens, problem)

    def _check_layers(self) -> None:
        moe = self.moe
        for name, mixer in self.kinds.items():
            mixer.check(f"model.kinds.{name}")
        if NONE in self.kinds:
            raise InputError("model.kinds.none", "...", "is the name of no mixer", "another name")
        if self.layers is None:
            if self.kinds:
                problem = "is declared for no layer"
                raise InputError(f"model.kinds.{next(iter(self.kinds))}", "...", problem, "layers")
            if moe is not None and moe.num_dense_layers + moe.layer_period > self.num_layers:
                raise InputError(
                    "model.moe.num_dense_layers",
                    moe.num_dense_layers,
                    "leaves no expert layer",
                    f"0..{self.num_layers - moe.layer_period}",
                )
            return
        pattern = parse_layers(self.layers)
        if len(pattern) != self.num_layers:
            problem = f"adds up to {len(pattern)} layers, model.num_layers is {self.num_layers}"
            raise InputError("model.layers", self.layers, problem, f"{self.num_layers} layers")
        for layer in dict.fromkeys(pattern):
            self._check_layer(layer)
        unused = set(self.kinds) - {layer.mixer for layer in pattern}
        if unused:
            raise InputError(f"model.kinds.{min(unused)}", "...", "is the kind of no layer")
        with_experts = any(layer.mlp == MOE for layer in pattern)
        if with_experts != (moe is not None):
            problem = "has layers with experts" if with_experts else "has no layer with experts"
            allowed = "model.moe where layers are moe, and only there"
            raise InputError("model.layers", self.layers, problem, allowed)
        if moe is not None and (moe.num_dense_layers, moe.layer_period) != (0, 1):
            problem = "says beside model.layers which layers have experts"
            name = "num_dense_layers" if moe.num_dense_layers else "layer_period"
            raise InputError(f"model.moe.{name}", getattr(moe, name), problem, "model.layers")

    def _check_layer(self, layer: Layer) -> None:
        known = (*self.kinds, ATTENTION, NONE)
        if layer.mixer not in known:
            problem = f"has a mixer {layer.mixer!r} that is no kind of the model"
            nearest = nearest_name(layer.mixer, known)
            raise InputError("model.layers", self.layers, problem, ", ".join(known), nearest)
        if layer.mixer == layer.mlp == NONE:
            raise InputError("model.layers", self.layers, "has layers of nothing", "one or both")
        mixer = self.mixer(layer)
        attention = None if mixer is None else mixer.attention
        if attention is None:
            return
        field = f"model.kinds.{layer.mixer}.attention"
        if attention.text is not None and self.diffusion is None:
            problem = "is beside no latents"
            raise InputError(f"{field}.text", attention.text, problem, "model.diffusion")
        own_sizes = ("heads", "kv_heads", "head_dim")
        for name in ("keys_are_values", "reuses_kv", *own_sizes):
            if self.mla is not None and getattr(attention, name):
                value, problem = getattr(attention, name), "is not of latent attention"
                raise InputError(f"{field}.{name}", value, problem, "left out")
        own = self.for_layer(layer)
        if own.num_heads % own.kv_heads:
            value, problem = attention.kv_heads, f"does not divide {own.num_heads} heads"
            raise InputError(f"{field}.kv_heads", value, problem, "a divisor of them")

    @property
    def residual_width(self) -> int:
        """Width of all streams between layers."""
        return self.residual_streams * self.hidden_size

    @property
    def mixing_weights(self) -> int:
        """Numbers a token, of either half of a layer, that say how streams are read, written and
        mixed."""
        return self.residual_streams * (2 + self.residual_streams * self.mixes_streams)

    @property
    def kv_heads(self) -> int:
        return self.num_heads if self.num_query_groups is None else self.num_query_groups

    @property
    def query_inputs(self) -> int:
        """Channels that queries are projected from: latent ones where there are any."""
        return (None if self.mla is None else self.mla.q_lora_rank) or self.hidden_size

    @property
    def qk_head_dim(self) -> int:
        """Width of one query/key head, in elements."""
        if self.mla is not None:
            return self.mla.qk_nope_head_dim + self.mla.qk_rope_head_dim
        return self.head_dim or self.hidden_size // self.num_heads

    @property
    def v_head_dim(self) -> int:
        """Width of one value head, in elements."""
        if self.mla is not None:
            return self.mla.v_head_dim
        return self.value_head_dim or self.qk_head_dim

    @functools.cached_property
    def pattern(self) -> tuple[Layer, ...]:
        """Every layer in order."""
        end = self.num_layers - self.num_layers_at_end_in_bf16
        kept = range(self.num_layers_at_start_in_bf16, end)
        declared = (
            parse_layers(self.layers)
            if self.layers is not None
            else tuple(self._plain_layer(index) for index in range(self.num_layers))
        )
        if len(kept) == self.num_layers:
            return declared
        return tuple(
            layer if index in kept else replace(layer, bf16=True)
            for index, layer in enumerate(declared)
        )

    @functools.cached_property
    def layer_kinds(self) -> tuple[Layer, ...]:
        """Layers that differ, in the order that they first appear in."""
        return tuple(dict.fromkeys(self.pattern))

    def layer(self, index: int) -> Layer:
        """A layer; MTP modules count as further layers, under a pattern as its last, with
        attention where that has no mixer (Nemotron 3 Super: ``*E``)."""
        if self.layers is not None and index >= self.num_layers:
            last = self.pattern[-1]
            return replace(last, mixer=ATTENTION) if last.mixer == NONE else last
        if index < self.num_layers:
            return self.pattern[index]
        return self._plain_layer(index)

    def _plain_layer(self, index: int) -> Layer:
        moe = self.moe
        if moe is None:
            return plain_layer(False)
        after_dense = index - moe.num_dense_layers + 1
        return plain_layer(after_dense > 0 and after_dense % moe.layer_period == 0)

    def is_moe_layer(self, index: int) -> bool:
        """Whether a layer has experts."""
        return self.layer(index).mlp == MOE

    def layers_of_each(self, start: int, stop: int) -> tuple[int, ...]:
        """How many of layers ``start`` to ``stop`` (excluded) are of each of ``layer_kinds``."""
        before = self._layers_before
        return tuple(map(operator.sub, before[stop], before[start]))

    @functools.cached_property
    def _layers_before(self) -> tuple[tuple[int, ...], ...]:
        """How many of each of ``layer_kinds`` come before each layer, and in all."""
        own = ([kind == layer for layer in self.pattern] for kind in self.layer_kinds)
        return tuple(zip(*(itertools.accumulate(each, initial=0) for each in own), strict=True))

    def mixer(self, layer: Layer) -> Mixer | None:
        """How a layer mixes tokens; None: it does not."""
        return None if layer.mixer == NONE else self.kinds.get(layer.mixer, _ATTENTION)

    def for_layer(self, layer: Layer) -> Model:
        """The model with a layer's own heads and MLP in place of its usual ones."""
        mixer, model = self.mixer(layer), self
        if layer.ffn_hidden_size is not None:
            model = replace(model, ffn_hidden_size=layer.ffn_hidden_size)
        own = None if mixer is None else mixer.attention
        if own is None or not own.has_own_heads:
            return model
        return replace(
            model,
            num_heads=own.heads or self.num_heads,
            num_query_groups=own.kv_heads or self.kv_heads,
            head_dim=own.head_dim or self.qk_head_dim,
        )

    @property
    def looked_at(self) -> tuple[int, int]:
        """Tokens and width of what is looked at across, of one sequence; (0, 0): nothing is."""
        if self.diffusion is not None:
            return self.diffusion.text_tokens, self.hidden_size
        if not any(mixer.cross for mixer in self.kinds.values()):
            return 0, 0
        (tower,) = self.towers
        return tower.tokens, tower.output_width

    @functools.cached_property
    def head_counts(self) -> tuple[tuple[int, int], ...]:
        """How many heads queries, and keys and values, have in layers that differ."""
        each = map(self.for_layer, self.layer_kinds)
        return tuple(dict.fromkeys((model.num_heads, model.kv_heads) for model in each))

    @functools.cached_property
    def ffn_widths(self) -> tuple[int, ...]:
        """Inner widths of dense MLPs that differ."""
        each = (kind for kind in self.layer_kinds if kind.mlp == DENSE)
        return tuple(dict.fromkeys(kind.ffn_hidden_size or self.ffn_hidden_size for kind in each))

    @property
    def is_plain(self) -> bool:
        """Whether every layer is the model's own attention, then a dense MLP or experts."""
        return not self.special_layers

    @property
    def special_layers(self) -> tuple[str, ...]:
        """What sets layers apart from attention and an MLP or experts, in words."""
        found = [f"layers of kind {name}" for name in self.kinds]
        for half in ("mixer", "mlp"):
            if any(getattr(layer, half) == NONE for layer in self.layer_kinds):
                found.append(f"layers without {half}")
        found += ["experts in a width of their own"] * bool(self.moe and self.moe.latent_size)
        return (*found, *self.special_parts)

    @property
    def special_parts(self) -> tuple[str, ...]:
        """What sets a model apart that neither its layers' kinds nor its experts say, in words."""
        found = [f"a residual of {self.residual_streams} streams"] * (self.residual_streams > 1)
        found += ["dense MLPs of several widths"] * (len(self.ffn_widths) > 1)
        found += ["inputs of each layer's own"] * (self.per_layer_input is not None)
        found += [f"the {tower.name} tower" for tower in self.towers]
        found += ["latents in place of words"] * (self.diffusion is not None)
        found += ["a head for masked words"] * self.masked_head
        found += ["one vector a sequence in place of words"] * (self.pooled is not None)
        found += ["residuals scaled by layers"] * self.layer_scale
        found += ["values of another width than keys"] * (self.value_head_dim is not None)
        found += ["norms behind attention and MLP"] * self.post_norms
        found += ["norms inside attention and MLP"] * self.inner_norms
        return (*found, *["norms over all heads"] * self.qk_norm_whole)

    def padded_vocab_size(self, tp: int, padded: bool = True) -> int:
        """Vocabulary rows after Megatron's padding to ``vocab_multiple * tp``; those that ``tp``
        ranks share where it is not ``padded``."""
        multiple = (self.vocab_multiple if padded else 1) * tp
        return math.ceil(self.vocab_size / multiple) * multiple
