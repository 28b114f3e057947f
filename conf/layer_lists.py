"""The layers that a Hugging Face configuration lists, one by one or by a rule, as kinds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trainscout.conf.hub_names import FILE
from trainscout.conf.layer_heads import own_heads
from trainscout.conf.searched_layers import searched_layers
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.layers import (
    ATTENTION,
    CROSS_ATTENTION,
    DENSE,
    MOE,
    MOST_LAYERS,
    NONE,
    AttentionMixer,
    CompressedAttention,
    DeltaNet,
    Index,
    Layer,
    Mamba1,
    Mamba2,
    Mixer,
    ShortConv,
)

if TYPE_CHECKING:
    from trainscout.conf.config_fields import Config
    from trainscout.conf.families import Family

_PLAIN = Mixer(attention=AttentionMixer())
# Names of layers in Transformers, older ones among them, by what they are here.
_MIXERS = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "local": "window",
    "conv": "linear",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
    "indexed_attention": "index",
    "deepseek_sparse_attention": "index",
    "minimax_m3_sparse": "index",
    "compressed_sparse_attention": "sparse",
    "heavily_compressed_attention": "compressed",
    "linear_attention": "linear",
    "mamba": "linear",
    "mamba2": "linear",
}
# How often a layer attends to everything: a number, or letters of that many layers.
_PERIODS = (
    *("sliding_window_pattern", "global_attn_every_n_layers"),
    *("full_attention_interval", "attn_layer_period"),
)
# Nemotron-H's letters; a layer is a mixer or an MLP.
_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


def layer_kinds(config: Config, kind: str, family: Family) -> tuple[dict[str, Mixer], list[Layer]]:
    """The kinds of a configuration beside plain attention, by name, and its layers.

    Raises:
        InputError: naming the field that says something else.
    """
    # T5's decoder has as many as its encoder where none are said.
    encoder = family.encoder.get("num_layers", "")
    widths: Sequence[int | None] = ()
    if kind == "nemotron-nas":
        mixers, mlps, widths = searched_layers(config)
    elif kind == "nemotron_h":
        words = _single_layers(config)
        mixers = [_MIXERS.get(word, NONE) for word in words]
        mlps = [{"mlp": DENSE, "moe": MOE}.get(word, NONE) for word in words]
    else:
        number = config.whole("num_hidden_layers", config.fields.get(encoder))
        if not 0 < number <= MOST_LAYERS:
            allowed = f"1..{MOST_LAYERS}"
            raise InputError(f"{FILE}: num_hidden_layers", number, "is out of range", allowed)
        mixers, mlps = _mixers(config, kind, family, number), _mlps(config, kind, family, number)
        if kind == "longcat_flash":
            # Experts run beside the second half of two layers that are one there.
            mixers, mlps = number * ["full", "full", NONE], number * [DENSE, DENSE, MOE]
    special = _special(config, kind, family)
    found: dict[str, Mixer] = {}
    layers: list[Layer] = []
    reused = config.whole("num_kv_shared_layers", 0)
    if not 0 <= reused < len(mixers):
        allowed = f"0..{len(mixers) - 1}"
        raise InputError(f"{FILE}: num_kv_shared_layers", reused, "leaves no layer", allowed)
    shared = len(mixers) - reused
    chosen = _chosen_before(config, len(mixers))
    owns = own_heads(config, kind, mixers)
    widths = widths or len(mixers) * [None]
    for at, (mixer, mlp, own, width) in enumerate(zip(mixers, mlps, owns, widths, strict=True)):
        if mixer == NONE:
            layers.append(Layer(NONE, mlp, width))
            continue
        if mixer not in special:
            raise InputError(f"{FILE}: layer_types", mixer, f"has no sizes in a {kind}")
        declared = special[mixer]
        if declared.attention is not None and own:
            declared = replace(declared, attention=replace(declared.attention, **own))
        name = mixer
        if declared.attention is not None and declared.attention.index and chosen[at]:
            index = replace(declared.attention.index, heads=0, dim=0)
            declared, name = Mixer(attention=replace(declared.attention, index=index)), "chosen"
        if len(layers) >= shared and declared.attention is not None:
            declared = replace(declared, attention=replace(declared.attention, reuses_kv=True))
            name = f"reusing_{mixer}"
            if config.has("use_double_wide_mlp"):
                mlp, width = DENSE, 2 * config.whole("intermediate_size")
        layers.append(Layer(_name(name, declared, found), mlp, width))
    return found, layers


def _unsaid(name: str, stated: object, number: int, allowed: str | None = None) -> InputError:
    problem = f"does not say what each of {number} layers is"
    return InputError(f"{FILE}: {name}", stated, problem, allowed)


def _chosen_before(config: Config, number: int) -> list[bool]:
    """Which layers attend to the keys that an earlier layer chose (GLM-5), by a list of names, by
    letters or by how many layers share."""
    letters = config.fields.get("index_topk_pattern")
    words = config.names("indexer_types", number)
    if words is None and isinstance(letters, (str, list)):
        words = [{"F": "full", "S": "shared"}.get(each, each) for each in letters]
    if words is None:
        every = max(1, config.whole("index_topk_freq", 1))
        first = config.whole("index_skip_topk_offset", 2) - 1
        words = ["shared" if max(at - first, 0) % every else "full" for at in range(number)]
    if len(words) != number or not set(words) <= {"full", "shared"}:
        raise _unsaid("index_topk_pattern", letters, number, "a letter F or S each")
    return [word == "shared" for word in words]


def _name(word: str, mixer: Mixer, found: dict[str, Mixer]) -> str:
    """What a mixer's kind is called, and goes by among those that were found."""
    if mixer == _PLAIN:
        return ATTENTION
    names = itertools.chain([word], (f"{word}_{number}" for number in itertools.count(2)))
    name = next(each for each in names if found.get(each, mixer) == mixer)
    found[name] = mixer
    return name


def _special(config: Config, kind: str, family: Family) -> dict[str, Mixer]:
    """Every kind that the configuration has sizes of."""
    usual = AttentionMixer(
        causal=not family.bidirectional,
        sinks=family.sinks is True,
        gated=family.gated is True,
        head_gates=family.gated == "heads",
    )
    found = {"full": Mixer(attention=usual, cross=bool(family.encoder)), "cross": CROSS_ATTENTION}
    if config.has("sliding_window"):
        window = config.whole("sliding_window")
        looks = replace(usual, window=window, sinks=bool(family.sinks))
        found["window"] = Mixer(attention=looks)
    if config.has("attention_chunk_size"):
        chunk = config.whole("attention_chunk_size")
        found["chunk"] = Mixer(attention=AttentionMixer(chunk=chunk))
    if config.has("index_topk_blocks"):
        found["index"] = Mixer(attention=AttentionMixer(index=_blocks(config)))
    if config.has("index_topk"):
        index = Index(*map(config.whole, ("index_n_heads", "index_head_dim", "index_topk")))
        found["index"] = found["full"] = Mixer(attention=replace(usual, index=index))
    if kind == "deepseek_v4":
        return _compressed(config)
    if kind == "falcon_h1":
        ssm = _mamba(config, norm=config.has("mamba_rms_norm"))
        found["full"] = Mixer(attention=AttentionMixer(), mamba2=ssm)
    elif family.recurrent is not None:
        found["linear"] = _recurrent(config, family.recurrent)
    return found


def _recurrent(config: Config, word: str) -> Mixer:
    """What a linear layer is, by a family's word."""
    if word == "delta":
        return Mixer(delta=_delta(config))
    if word in ("kda", "kda_full"):
        return Mixer(delta=_kimi_delta(config, "vector" if word == "kda" else "full"))
    if word == "short_conv":
        taps = config.whole("conv_L_cache")
        return Mixer(short_conv=ShortConv(config.whole("hidden_size"), taps))
    if word in ("mamba1", "mamba1_normed"):
        return Mixer(mamba1=_selective(config, norms=word != "mamba1"))
    return Mixer(mamba2=_lightning(config) if word == "lightning" else _mamba(config, norm=True))


# DeepSeek-V4: tokens that one compressed key stands for, by the name of the layers, and as its own
# files have it; a list of such numbers stands there for names of layers.
_RATES = {"sparse": ("compressed_sparse_attention", "compress_rate_csa", 4)}
_RATES["compressed"] = ("heavily_compressed_attention", "compress_rate_hca", 128)
_BY_RATE = {0: "window", 4: "sparse", 128: "compressed"}


def _compressed(config: Config) -> dict[str, Mixer]:
    """DeepSeek-V4's three kinds of layers."""
    near = CompressedAttention(
        q_rank=config.whole("q_lora_rank"),
        window=config.whole("sliding_window"),
        out_groups=config.whole("o_groups"),
        out_rank=config.whole("o_lora_rank"),
    )
    index = Index(*map(config.whole, ("index_n_heads", "index_head_dim", "index_topk")))
    rates = config.fields.get("compress_rates") or {}
    found = {}
    for word, (name, older, usual) in _RATES.items():
        rate = rates.get(name) if isinstance(rates, Mapping) else None
        found[word] = replace(near, rate=rate or config.whole(older, usual))
    sparse = replace(found["sparse"], series=2, index=index)
    return {
        word: Mixer(compressed=mixer)
        for word, mixer in (found | {"window": near, "sparse": sparse}).items()
    }


def _compressed_layers(config: Config, number: int) -> list[str]:
    stated = config.fields.get("compress_ratios")
    if stated is None:
        by_turns = ("sparse" if at % 2 else "compressed" for at in range(max(0, number - 2)))
        return [*["compressed"] * min(2, number), *by_turns]
    if not isinstance(stated, list) or len(stated) < number or not set(stated) <= set(_BY_RATE):
        raise _unsaid("compress_ratios", stated, number, ", ".join(map(str, _BY_RATE)))
    return [_BY_RATE[rate] for rate in stated[:number]]


def _blocks(config: Config) -> Index:
    """MiniMax-M3's: so many blocks of so many keys."""
    keys = config.whole("index_block_size") * config.whole("index_topk_blocks")
    return Index(config.whole("index_n_heads"), config.whole("index_head_dim"), keys)


def _selective(config: Config, *, norms: bool) -> Mamba1:
    """``norms``: what steps are projected from, B and C are normalised, and a width that the
    configuration says is its MLP's (Jamba)."""
    hidden, stated = config.whole("hidden_size"), config.fields.get("time_step_rank")
    rank = -(-hidden // 16) if stated in (None, "auto") else config.whole("time_step_rank")
    inner = config.whole("expand") * hidden
    if not norms:
        inner = config.whole("intermediate_size", inner)
    return Mamba1(inner, config.whole("state_size"), rank, config.whole("conv_kernel"), norms)


def _mamba(config: Config, *, norm: bool) -> Mamba2:
    names = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel")
    heads, dim, state, groups, taps = map(config.whole, names)
    return Mamba2(heads, dim, state, groups, taps, config.whole("chunk_size"), norm)


def _delta(config: Config) -> DeltaNet:
    sizes = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    keys, values, k_dim, v_dim = (config.whole(f"linear_{each}") for each in sizes)
    return DeltaNet(keys, values, k_dim, v_dim, config.whole("linear_conv_kernel_dim", 4))


def _kimi_delta(config: Config, gate: str) -> DeltaNet:
    heads = config.whole("linear_num_heads", config.fields.get("num_attention_heads"))
    dim, taps = map(config.whole, ("linear_head_dim", "linear_conv_kernel_dim"))
    return DeltaNet(heads, heads, dim, dim, conv=taps, gate=gate)


def _lightning(config: Config) -> Mamba2:
    """MiniMax's: states of keys by values, one of the attention's heads each."""
    heads = config.positive("num_attention_heads")
    dim = config.whole("head_dim", config.whole("hidden_size") // heads)
    return Mamba2(heads, dim, dim, heads, chunk=config.whole("block_size"), fixed_decay=True)


def _single_layers(config: Config) -> list[str]:
    """Nemotron-H: each layer is one half, by name or by letter."""
    text = config.fields.get("hybrid_override_pattern")
    if isinstance(text, str):
        if not re.fullmatch(r"[M*E-]+", text):
            raise InputError(f"{FILE}: hybrid_override_pattern", text, "has letters beside M*E-")
        return [_LETTERS[letter] for letter in text]
    words = config.fields.get("layers_block_type", config.fields.get("layer_types"))
    if not isinstance(words, list) or not words:
        raise InputError(
            f"{FILE}: layers_block_type", words, "is missing", "a name for each layer"
        )
    known = (*_MIXERS, "mlp", "moe")
    return _read("layers_block_type", words, dict(zip(known, known, strict=True)))


def _read(field: str, words: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """Layers by what ``known`` calls them."""
    for word in words:
        if word not in known:
            raise InputError(f"{FILE}: {field}", word, "is no known layer", known)
    return [known[word] for word in words]


def _mixers(config: Config, kind: str, family: Family, number: int) -> list[str]:
    """What mixes tokens in each layer, as in ``_MIXERS``."""
    words = config.names("layer_types", number) or _repeated(config, number)
    if words is not None:
        return _read("layer_types", words, _MIXERS)
    if kind == "deepseek_v4":
        return _compressed_layers(config, number)
    if kind == "mllama_text_model":
        across = config.numbers("cross_attention_layers") or range(3, number, 5)
        return ["cross" if at in across else "full" for at in range(number)]
    other = "window" if family.recurrent is None else "linear"
    listed = None if other == "window" else _whole_layers(config, number)
    if listed is not None:
        return ["full" if at in listed else other for at in range(number)]
    if family.period and (other != "window" or config.has("sliding_window")):
        name = next((name for name in _PERIODS if config.has(name)), _PERIODS[0])
        stated = config.fields.get(name)
        period = len(stated) if isinstance(stated, str) else config.whole(name, family.period)
        origin, also = family.counted_from, family.also_whole
        first = max(0, period - 1) if origin is None else origin % number
        first = config.whole("attn_layer_offset", first)
        ends = number if also is None else also % number
        return [
            other if (at - first) % max(1, period) and at != ends else "full"
            for at in range(number)
        ]
    if kind in ("bamba", "mamba", "mamba2", "falcon_mamba"):
        return [other] * number
    if family.recurrent is not None:
        raise InputError(f"{FILE}: layer_types", None, "is missing", "a name for each layer")
    if kind == "llama4_text" and config.has("attention_chunk_size"):
        rotated = config.numbers("no_rope_layers") or [
            int((at + 1) % config.positive("no_rope_layer_interval", 4) != 0)
            for at in range(number)
        ]
        return ["chunk" if each else "full" for each in rotated[:number]]
    if config.has("index_topk"):
        return ["index"] * number
    if isinstance(chosen := config.fields.get("sparse_attention_freq"), list):
        if len(chosen) != number:
            raise _unsaid("sparse_attention_config", chosen, number, f"{number} of 0, 1")
        return ["index" if each else "full" for each in chosen]
    return _windows(config, family, number)


def _whole_layers(config: Config, number: int) -> Sequence[int] | None:
    """Which layers attend to everything among others that are recurrent, as older files list."""
    if isinstance(stated := config.fields.get("linear_full_attn_layers"), list):
        return [at - 1 for at in stated]
    for name in ("attn_type_list", "attn_layer_indices", "full_attn_idxs"):
        stated = config.fields.get(name)
        if isinstance(stated, list) and (name != "attn_type_list" or len(stated) == number):
            whole = [at for at, each in enumerate(stated) if each]
            return whole if name == "attn_type_list" else stated
        if stated is not None:
            raise _unsaid(name, stated, number)
    return None


def _repeated(config: Config, number: int) -> list[str] | None:
    """Names of layers and how often they come again, one after another (GPT-Neo)."""
    stated = config.fields.get("attention_types")
    if stated is None:
        return None
    try:
        words = [str(word) for names, times in stated for _ in range(times) for word in names]
    except (TypeError, ValueError):
        words = []
    if len(words) != number:
        raise _unsaid("attention_types", stated, number, '[[["global", "local"], 12]]')
    return words


def _windows(config: Config, family: Family, number: int) -> list[str]:
    """Layers of models that say one window for all, or from which layer on."""
    if not config.has("sliding_window") or config.fields.get("use_sliding_window") is False:
        return ["full"] * number
    if config.has("max_window_layers"):
        whole = config.whole("max_window_layers") if config.has("use_sliding_window") else number
        return ["full" if at < whole else "window" for at in range(number)]
    if family.windowed:
        return ["window"] * number
    raise InputError(f"{FILE}: layer_types", None, "is missing beside sliding_window")


def _mlps(config: Config, kind: str, family: Family, number: int) -> list[str]:
    words = config.names("mlp_layer_types", number)
    if words is not None:
        known = {"dense": DENSE, "sparse": MOE}
        if kind == "deepseek_v4":
            known = {"moe": MOE, "hash_moe": MOE}
        return _read("mlp_layer_types", words, known)
    if kind == "granitemoehybrid":
        return [MOE if config.has("num_experts") else DENSE] * number
    sparse = config.has(family.sparse) if isinstance(family.sparse, str) else family.sparse
    if not sparse:
        return [NONE if kind in ("mamba", "mamba2", "falcon_mamba") else DENSE] * number
    if kind == "jamba":
        period, first = config.positive("expert_layer_period"), config.whole("expert_layer_offset")
        has = config.whole("num_experts") > 1
        return [MOE if has and at % period == first else DENSE for at in range(number)]
    listed = config.fields.get("moe_layers")
    if isinstance(listed, str):
        listed = [int(each) for each in listed.split(",") if each.strip().isdecimal()]
    if isinstance(listed, list):
        return [MOE if at in listed else DENSE for at in range(number)]
    flags = config.fields.get("moe_layer_freq")
    if isinstance(flags, list) and len(flags) == number:
        return [MOE if each else DENSE for each in flags]
    period = config.whole("decoder_sparse_step", 1)
    if flags not in (None, 1):
        # Publishers' code and Transformers' read another number differently.
        raise _unsaid("moe_layer_freq", flags, number, "1, or a list")
    dense = config.numbers("mlp_only_layers")
    first = config.whole("first_k_dense_replace", 0 if dense else family.first_dense)
    end = config.whole("moe_layer_end_index", -1)
    experts = range(first, number if end == -1 else end + 1)
    return [
        DENSE if at not in experts or (at + 1) % max(1, period) or at in dense else MOE
        for at in range(number)
    ]
