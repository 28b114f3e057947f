"""A Hugging Face ``config.json`` as a declared model.

What a ``model_type`` fixes beside its fields (norms of queries and keys, biases, sinks, gates) is
in ``families``, with what Transformers takes for fields that are left out; the layers come from
``layer_types`` and ``mlp_layer_types`` (Transformers 5) or from the older fields that said the
same. What cannot be said as a model is refused by its field.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainscout.conf.config_fields import Config
from trainscout.conf.encoder_config import (
    SECONDS,
    compared_fields,
    encoder_fields,
    image_fields,
    number_of_classes,
    sound_fields,
    tower_fields,
    tower_kind,
)
from trainscout.conf.encoders import TOWERS, WITH_IMAGES
from trainscout.conf.families import Family, families
from trainscout.conf.hub_names import FILE, SCRIPTED
from trainscout.conf.layer_lists import layer_kinds
from trainscout.conf.sampled_sound import SAMPLED, sampled_fields
from trainscout.simulators.predictor.question.errors import InputError, read_text
from trainscout.simulators.predictor.question.layer_pattern import format_layers
from trainscout.simulators.predictor.question.layers import (
    DENSE,
    MOE,
    Layer,
    Mixer,
    plain_layer,
)
from trainscout.simulators.predictor.question.pooled import ALL
from trainscout.simulators.predictor.question.tower import Tower

MOST_BYTES = 2**20
"""Of a file: the largest published ones have a few kilobytes."""
# A model is declared at the length it is trained at, which the file does not say: the longest that
# it can take is often many times that.
_USUAL_LENGTH = 8192


# How classes of Transformers that predict words are called, which is what is read here.
_HEADS = re.compile(
    "(For(CausalLM|MaskedLM|PreTraining|ConditionalGeneration)|LMHeadModel|ChatModel|ChatGLMModel|MTModel)$"
)
# How classes of Transformers that tell sequences, or their tokens, apart are called.
_OF_SEQUENCES = "ForSequenceClassification"
_OF_TOKENS = ("ForTokenClassification", "ForQuestionAnswering")
# Of a model, what a family says or names the field of.
_FLAGS = ("gated_mlp", "qkv_bias", "linear_bias", "post_norms")
_TOWER = "the fields of its tower, {} for Transformers' own, or text_config in a file of its own"
_TEXT, _VISION, _SOUND, _THINKER = "text_config", "vision_config", "audio_config", "thinker_config"


def model_fields(content: Mapping[str, Any], name: str, *, inside: bool = False) -> dict[str, Any]:
    """The fields of a declared model that a configuration says.

    Args:
        content: what a ``config.json`` holds.
        name: what to call the model.
        inside: it is a part of another.

    Raises:
        InputError: naming the configuration's field, for one that is missing, mistyped, or that no
            declared model can express.
    """
    kind = _kind(content)
    if kind is None and "_class_name" in content:
        problem = "is no language model: of diffusion transformers those that ship are predicted"
        allowed = "model=flux1_dev, wan2_1_14b and others of `trainscout list models`"
        raise InputError(f"{FILE}: _class_name", content["_class_name"], problem, allowed)
    if isinstance(content.get(_THINKER), Mapping):
        inner = f"{kind}_thinker" if f"{kind}_thinker" in WITH_IMAGES else kind
        fields = model_fields({"model_type": inner} | dict(content[_THINKER]), name)
        aside = "what speaks behind the thinker, and is trained apart, is left out"
        return fields | {"simplified": (*fields["simplified"], aside)}
    if kind in WITH_IMAGES and (kind not in families() or _TEXT in content):
        return _with_images(_nested(content), name, kind)
    if isinstance(text := content.get(_TEXT), Mapping):
        alone = f"its {_TEXT} in a file of its own, trained alone"
        allowed = alone if text.get("model_type") in families() else SCRIPTED
        raise InputError(f"{FILE}: model_type", kind, "is not read whole", allowed)
    if kind is None and (base := content.get("base_model_name_or_path")):
        problem = "is missing: this is an adapter's configuration"
        allowed = f"model={base} training=lora, or given= of trainscout explain"
        raise InputError(f"{FILE}: model_type", kind, problem, allowed)
    if kind is None:
        problem = f"is missing: this is no {FILE} of a model"
        raise InputError(f"{FILE}: model_type", kind, problem, "as the model's directory has it")
    if kind in TOWERS and TOWERS[kind].ahead is not None:
        return image_fields(kind, Config(content, kind), name)
    if kind in SAMPLED:
        of_clips = _tells_apart(content)
        return sampled_fields(kind, Config(content, kind), name, of_clips=of_clips)
    if kind not in families():
        problem, read = "is no model that is read", list(families())
        near = difflib.get_close_matches(str(kind), read, 1, cutoff=0.75)
        raise InputError(f"{FILE}: model_type", kind, problem, read if near else SCRIPTED)
    family = families()[kind]
    if family.inside and not inside:
        raise InputError(f"{FILE}: model_type", kind, "is read as a part alone", SCRIPTED)
    config = Config(content, kind)
    for field in family.refused:
        value = config.fields.get(field)
        # A list of each layer's own number says that it is alone.
        if value and value != [*range(len(value) if isinstance(value, list) else 0)]:
            raise InputError(f"{FILE}: {field}", value, f"is not read for {kind}", "left out")
    for field, stated in family.fixed.items():
        value, must = config.fields.get(field), config.fields.get(stated, stated)
        if value not in (None, must):
            raise InputError(f"{FILE}: {field}", value, f"is not read for {kind}", f"{must}")
    hidden = config.whole("hidden_size")
    mixers, layers = layer_kinds(config, kind, family)
    mlps = {each.mlp for each in layers}
    experts = _experts(config, family) if MOE in mlps else None
    latent = _latent(config) if config.has("kv_lora_rank") else None
    heads = config.whole("num_attention_heads", 1)
    norm = family.qk_norm
    if family.qk_norm_field is not None and not config.has(family.qk_norm_field):
        norm = None
    length = config.whole("max_position_embeddings", 512 if family.encoder else _USUAL_LENGTH)
    fields = {
        "name": name,
        "source": f"{FILE} of {name} (model_type {kind}), which takes up to {length:,} tokens",
        "simplified": _simplified(content, family) + _taken(config),
        "num_layers": len(layers),
        "hidden_size": hidden,
        "num_heads": heads,
        "ffn_hidden_size": _dense_width(config, family, hidden, DENSE in mlps),
        "vocab_size": config.whole("vocab_size"),
        "sequence_length": length if family.position == "learned" else min(length, _USUAL_LENGTH),
        **{name: _flag(config, getattr(family, name)) for name in _FLAGS},
        **{
            name: getattr(family, name) for name in ("inner_norms", "masked_head", "mixes_streams")
        },
        "normalization": "layernorm" if family.layernorm else "rmsnorm",
        "position": _position(config, family),
        "rotary_fraction": _rotary_fraction(config),
        "residual_streams": config.whole("residual_streams", 1),
        "laurel_rank": config.whole("laurel_rank") if config.has("laurel_rank") else None,
        "clamped_mlp": config.has("swiglu_limit"),
        "scaled_rope": latent is None and _is_scaled(config),
        "qk_norm": norm == "head",
        "qk_norm_whole": norm == "whole",
        "dropout": config.has("resid_pdrop") or config.has("hidden_dropout_prob"),
        "tied_embeddings": _flag(config, family.ties),
        "moe": experts,
        "mla": latent,
    }
    if config.has("hidden_size_per_layer_input"):
        fields["per_layer_input"] = {
            "vocab_size": config.whole("vocab_size_per_layer_input", fields["vocab_size"]),
            "hidden_size": config.whole("hidden_size_per_layer_input"),
        }
    if latent is None:
        groups = config.whole("num_key_value_heads", heads)
        if "multi_query" in config.fields and not config.has("new_decoder_architecture"):
            groups = 1 if config.has("multi_query") else heads
        width = config.whole("head_dim", 0)
        fields["num_query_groups"] = None if groups == heads else groups
        fields["head_dim"] = None if width * heads in (0, hidden) else width
        values = config.whole("v_head_dim", width)
        fields["value_head_dim"] = None if values == width else values
    if family.encoder:
        encoder, heard = encoder_fields(config, family.encoder, fields)
        fields["simplified"] += (f"inputs are {heard} each",)
        fields["towers"] = (Tower(**encoder),)
    elif _tells_apart(content):
        fields |= _classified(config, family, fields, _classes(content)[0].endswith(_OF_TOKENS))
    return fields | _declared_layers(layers, mixers, experts)


def _classified(
    config: Config, family: Family, fields: Mapping[str, Any], of_tokens: bool
) -> dict[str, Any]:
    """What of a model's fields is another where classes are told apart, and no words predicted."""
    behind = family.token_head if of_tokens else family.bidirectional or family.masked_head
    number, what = number_of_classes(config), "tokens" if of_tokens else "sequences"
    widths = (*(fields["hidden_size"],) * (1 + behind), number)
    return {
        "simplified": (*fields["simplified"], f"{what} are told apart: {number} classes"),
        "pooled": {"widths": widths, "every_token": of_tokens},
        "masked_head": False,
        "tied_embeddings": False,
    }


def _with_images(content: Mapping[str, Any], name: str, kind: str) -> dict[str, Any]:
    """A model of text with the towers in front of it."""
    vision, whole, sighted = content.get(_VISION), Config(content, kind), WITH_IMAGES[kind]
    # A file of Qwen3.5's tower calls itself as the whole.
    alone = bool(sighted.alone) and vision is None and content.get(_SOUND) is None
    alone &= not {"hidden_size", "depth"} & {*content}
    if sighted.tower is not None and not isinstance(vision, Mapping) and not alone:
        raise InputError(f"{FILE}: {_VISION}", vision, "is missing", _TOWER)
    sound = content.get(_SOUND)
    if sound is None and sighted.hears:
        sound = {}
    if sound is not None and sighted.sound is None:
        problem = "is not read: towers of images are"
        raise InputError(f"{FILE}: {_SOUND}", "...", problem, "null")
    ties = "tie_word_embeddings"
    of_text = sighted.ties_either and content[_TEXT].get(ties)
    own = {ties: whole.fields.get(ties) or of_text}
    if alone and sighted.alone == "text":
        own = {}
    text = {"model_type": sighted.text, **sighted.usual, **content[_TEXT], **own}
    fields = model_fields(text, name, inside=True)
    towers, assumed = list[Tower](), list[str]()
    if sighted.tower is not None and isinstance(vision, Mapping):
        sight = tower_kind(kind, vision)
        read = tower_fields(sighted, sight, Config(vision, sight), whole, fields["hidden_size"])
        if sighted.compares is not None:
            read = compared_fields(sighted.compares, read)
        towers.append(Tower(**read))
        assumed.append(f"one image of {towers[0].patches:,} patches")
        if sighted.compares is not None:
            widths = fields["hidden_size"], towers[0].output_width
            made = Config(content[_TEXT], sighted.text).whole("projection_dim", widths[1])
            if not towers[0].projector and made != widths[1]:
                problem = "is not the width of images' vectors"
                raise InputError(f"{FILE}: projection_size", made, problem, f"{widths[1]}")
            pooled = {"widths": widths, "contrastive": ALL}
            fields |= {"pooled": pooled, "tied_embeddings": False}
            assumed.append("texts and images of all ranks are compared")
    if isinstance(sound, Mapping) and sighted.sound is not None:
        heard = sound_fields(sighted.sound, Config(sound, sighted.sound), fields["hidden_size"])
        towers.append(Tower(**heard))
        assumed.append(f"{SECONDS} seconds of sound")
    stated = f"a sequence has {' and '.join(assumed)}"
    if alone:
        stated = f"the language model alone, as a file without {_VISION} has it"
    simplified = (*fields["simplified"], stated)
    return fields | {"simplified": simplified, "towers": tuple(towers)}


def _kind(content: Mapping[str, Any]) -> str | None:
    """The ``model_type``; by the name of its class where that is missing or code of its own."""
    kind, known = content.get("model_type"), {*WITH_IMAGES}
    if kind is not None and not isinstance(kind, str):
        raise InputError(f"{FILE}: model_type", kind, "is no name", "as Transformers writes it")
    if not isinstance(content.get(_TEXT), Mapping):
        known |= {*families()}
    if kind in known or isinstance(content.get(_THINKER), Mapping):
        return kind
    first = next(iter(_classes(content)), "")
    plain = {each.replace("_", "").replace("-", "").lower(): each for each in known}
    return plain.get(_HEADS.sub("", first).replace("_", "").lower(), kind)


def _classes(content: Mapping[str, Any]) -> list[str]:
    stated = content.get("architectures")
    return [each for each in stated if isinstance(each, str)] if isinstance(stated, list) else []


def _tells_apart(content: Mapping[str, Any]) -> bool:
    return any(each.endswith((_OF_SEQUENCES, *_OF_TOKENS)) for each in _classes(content)[:1])


def _nested(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """A file of text and images with the language model's fields in a table of their own, which
    older ones have beside the others (Qwen2-VL) or by another name (InternVL)."""
    if isinstance(content.get(_TEXT), Mapping):
        return content
    if isinstance(inner := content.get("llm_config"), Mapping):
        return {**content, _TEXT: inner}
    parts = ("model_type", "architectures", _VISION, _SOUND)
    return {**content, _TEXT: {name: each for name, each in content.items() if name not in parts}}


def _simplified(content: Mapping[str, Any], family: Family) -> tuple[str, ...]:
    """What is predicted in another way than it runs."""
    masked = "masked words are predicted, with the logits of all tokens"
    told_apart = _tells_apart(content)
    stated = [masked] * (family.bidirectional and not family.inside and not told_apart)
    stated += [family.aside] * bool(family.aside)
    if isinstance(further := content.get("num_nextn_predict_layers"), int) and further > 0:
        stated.append(
            "modules for further tokens are not read: model.num_mtp_layers says how many"
        )
    if isinstance(stored := content.get("quantization_config"), Mapping):
        kind = stored.get("quant_method", "quantization_config")
        stated.append(f"weights train in training.precision, not as they are stored ({kind})")
    known = () if told_apart and not family.encoder else _classes(content)
    heads = (each for each in known if not _HEADS.search(each))
    stated += [f"the head is one of words, not that of {each}" for each in heads]
    return tuple(stated)


def _taken(config: Config) -> tuple[str, ...]:
    """Sizes that the file leaves out, as Transformers takes them then."""
    sizes = ", ".join(f"{name} {config.fields[name]}" for name in config.left_out)
    return (f"its {FILE} says no {sizes}: Transformers' own",) if sizes else ()


def _declared_layers(
    layers: Sequence[Layer], mixers: dict[str, Mixer], experts: dict[str, Any] | None
) -> dict[str, Any]:
    """The pattern of layers, or what says it without one."""
    if mixers or any(layer != plain_layer(layer.mlp == MOE) for layer in layers):
        return {"layers": format_layers(layers), "kinds": mixers}
    dense = next((at for at, layer in enumerate(layers) if layer.mlp == MOE), 0)
    if experts is None or all(layer.mlp == MOE for layer in layers[dense:]):
        if experts is not None:
            experts["num_dense_layers"] = dense
        return {}
    return {"layers": format_layers(layers)}


def _position(config: Config, family: Family) -> str:
    if family.relative and config.has("relative_attention"):
        _check_distances(config)
    elif family.relative and config.fields.get("position_biased_input") is False:
        return "none"
    nope = config.fields.get("position_embedding_type") == "nope" or config.has("alibi")
    return "none" if nope else family.position


def _check_distances(config: Config) -> None:
    """Refuse terms by distance but those of one table of as many rows as there are positions,
    through each layer's own projections of queries and keys (DeBERTa-v3)."""
    length = config.whole("max_position_embeddings")
    buckets = config.whole("position_buckets", -1)
    spans = (buckets, config.whole("max_relative_positions", -1), length)
    rows = 2 * next(each for each in spans if each > 0)
    must = {"share_att_key": True, "position_biased_input": False}
    for name, value in must.items():
        # Without a word Transformers takes the other.
        if config.fields.get(name, not value) != value:
            problem = "is not read beside relative_attention"
            raise InputError(
                f"{FILE}: {name}", config.fields.get(name), problem, str(value).lower()
            )
    if rows != length:
        problem = f"makes a table of {rows} rows"
        raise InputError(f"{FILE}: position_buckets", buckets, problem, f"{length // 2}")


def _rotary_fraction(config: Config) -> float:
    """Share of a head that is turned, where a file says so by itself or in a table."""
    table, names = config.fields.get("rope_parameters"), ("partial_rotary_factor", "rotary_pct")
    tables = (config.fields, *([table] if isinstance(table, Mapping) else []))
    stated = [each.get(name) for each in tables for name in names]
    return float(next((one for one in stated if isinstance(one, float) and 0 < one <= 1), 1))


def _is_scaled(config: Config) -> bool:
    """Whether rotary positions are stretched with a temperature, as YaRN's are by default."""
    scaling = config.fields.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, Mapping) else None
    return kind == "yarn"


def _flag(config: Config, stated: bool | str) -> bool:
    """A switch, or the field that says it (T5's by a word that begins so)."""
    value = config.fields.get(stated) if isinstance(stated, str) else stated
    return value.startswith("gated") if isinstance(value, str) else bool(value)


def _dense_width(config: Config, family: Family, hidden: int, is_needed: bool) -> int:
    usual = None if family.gated_mlp and is_needed else 4 * hidden
    field, _, parts = family.dense_width.partition("/")
    width = config.whole(field, usual) // int(parts or 1)
    if not config.has("block_auto_adjust_ff_dim"):
        return width
    # LFM2: two thirds of the width that it says, rounded up.
    factor = config.fields.get("block_ffn_dim_multiplier") or 1
    multiple = config.positive("block_multiple_of")
    if isinstance(factor, bool) or not isinstance(factor, (int, float)):
        raise InputError(f"{FILE}: block_ffn_dim_multiplier", factor, "is no number", "1.0")
    width = int(factor * int(2 * width / 3))
    return -(-width // multiple) * multiple


def _experts(config: Config, family: Family) -> dict[str, Any]:
    width, number = config.whole(family.expert_width), config.whole("n_shared_experts", 0)
    names = (
        *("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"),
        *("shared_intermediate_size", family.shared_width or ""),
    )
    shared = next((config.whole(name) for name in names if config.has(name)), number * width)
    experts, chosen = config.whole("num_experts"), config.whole("num_experts_per_tok")
    if idle := config.whole("zero_expert_num", 0):
        # Of choices among others that compute nothing, so many are left (LongCat).
        chosen = max(1, round(chosen * experts / (experts + idle)))
    return {
        "num_experts": experts,
        "top_k": chosen,
        "ffn_hidden_size": width,
        "shared_ffn_hidden_size": shared,
        "latent_size": config.whole("moe_latent_size") if config.has("moe_latent_size") else None,
    }


def _latent(config: Config) -> dict[str, Any]:
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    rank = config.whole("q_lora_rank") if config.has("q_lora_rank") else None
    return {name: config.whole(name) for name in names} | {"q_lora_rank": rank}


def read_config(file: Path) -> dict[str, Any]:
    """The fields of the model that a ``config.json`` describes, called after its directory.

    Raises:
        InputError: for a file that cannot be read, is no JSON object, or is no model that can be
            declared, naming its field.
    """
    text = read_text("model", file, MOST_BYTES, f"a {FILE}, or a model's name")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError("model", file, f"cannot be read as JSON: {error}", FILE) from None
    if not isinstance(content, dict):
        raise InputError("model", file, "holds no fields", f"a Hugging Face {FILE}")
    folder = file.absolute().parent
    own = folder.name if file.name == FILE else file.stem
    if folder.parent.name == "snapshots":  # of the Hub's cache: models--owner--name/snapshots/hash
        own = folder.parents[1].name.rpartition("--")[2]
    try:
        return model_fields(content, own)
    except InputError as error:
        field = error.field.replace(FILE, str(file), 1)
        raise InputError(
            field, error.value, error.problem, error.allowed, error.nearest
        ) from error
