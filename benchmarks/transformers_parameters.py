"""Hold what is read from a ``config.json`` to what Transformers builds, on ``meta``.

``python -m benchmarks.transformers_parameters released`` writes beside each configuration of the
tests how many parameters its model has; ``defaults`` writes what Transformers takes for fields
that a file leaves out; ``types`` counts the default configuration of every ``model_type`` with a
causal, masked, image-text or sequence-to-sequence model, with us and with Transformers, and
``flops`` the products of a forward pass of those of text. Needs ``transformers`` (5 or newer) and
no network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoConfig
from transformers.models.auto import modeling_auto as auto

from trainscout.commands.listing import parameters
from trainscout.conf import config_json
from trainscout.conf.encoders import SOUNDS, TOWERS
from trainscout.conf.encoders import WITH_IMAGES as READ_WITH_IMAGES
from trainscout.conf.families import families
from trainscout.conf.sampled_sound import SAMPLED
from trainscout.simulators.predictor.io.values import typed_value
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.model import Model

OTHER_HEADS = {
    "ForSequenceClassification": auto.AutoModelForSequenceClassification,
    "ForTokenClassification": auto.AutoModelForTokenClassification,
    "ForQuestionAnswering": auto.AutoModelForQuestionAnswering,
}
CAUSAL = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
WITH_IMAGES = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
MASKED = auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
OF_TWO = auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
OF_SOUND = auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
OF_CLASSES = auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
COMPARED = {kind for kind, each in READ_WITH_IMAGES.items() if each.compares is not None}
IMAGES = {kind for kind, each in TOWERS.items() if each.ahead is not None}
BUILT = {*CAUSAL, *WITH_IMAGES, *OF_TWO, *OF_SOUND, *MASKED, *COMPARED, *IMAGES, *SAMPLED}
RELEASED = Path("tests/conf/configurations.json")
TOKENS = 64
"""Of a sequence whose products are counted: no window is shorter."""
TYPES = Path("tests/conf/types.json")
CONF = Path(config_json.__file__).parent
DEFAULTS = CONF / "transformers_defaults.json"
# Published configurations name code of their own for what Transformers has under another name.
_SAME = {"kimi_k2": "deepseek_v3", "minimax_m1": "minimax", "minimax_text_01": "minimax"}
_SAME |= {
    "youtu_llm": "youtu",
    "minimax_m3": "minimax_m3_vl_text",
    "intern_vit_6b": "internvl_vision",
}
# Types whose default configuration Transformers cannot build: what a published one says.
_NEEDED: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "deit": {"architectures": ["DeiTForImageClassification"]},
    "esm": {"vocab_size": 33, "position_embedding_type": "rotary"},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
    "glm4v_moe": {"text_config": {"head_dim": 128}},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 16},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "qwen3_omni_moe_thinker": {"text_config": {"num_attention_heads": 32, "head_dim": 128}},
}


def build(configuration: dict[str, Any], **options: Any) -> Any:
    """The model that a configuration describes, on ``meta``, as Transformers builds it."""
    fields = dict(configuration)
    kind = str(fields.pop("model_type"))
    config = AutoConfig.for_model(_SAME.get(kind, kind), **fields)
    is_text = kind not in WITH_IMAGES or (kind in CAUSAL and "vision_config" not in configuration)
    builder: Any = auto.AutoModelForCausalLM if is_text else auto.AutoModelForImageTextToText
    if kind in OF_TWO or kind in OF_SOUND:
        builder = auto.AutoModelForSeq2SeqLM if kind in OF_TWO else auto.AutoModelForSpeechSeq2Seq
    elif kind in COMPARED or kind in IMAGES:
        told = kind in IMAGES and kind in OF_CLASSES
        builder = auto.AutoModelForImageClassification if told else auto.AutoModel
    elif kind in SAMPLED:
        clips = str(configuration.get("architectures")).endswith("ForSequenceClassification']")
        builder = auto.AutoModelForAudioClassification if clips else auto.AutoModelForCTC
    elif kind in MASKED and kind not in CAUSAL:
        builder = auto.AutoModelForMaskedLM
    for head, built in OTHER_HEADS.items():
        told = str(configuration.get("architectures")).endswith(head + "']")
        if told and kind not in SAMPLED:
            builder = built
    # Each token's experts as one product, which is what can be counted.
    config._experts_implementation = "batched_mm"
    with torch.device("meta"):
        return builder.from_config(config, **options)


def count(configuration: dict[str, Any]) -> int:
    """Parameters of the model that a configuration describes, tied ones once."""
    model = build(configuration)
    config, total = model.config, sum(each.numel() for each in model.parameters())
    # LongCat's experts that compute nothing have rows there that nothing reads.
    if unread := getattr(config, "zero_expert_num", 0):
        rows = 2 * unread * config.num_layers * config.expert_ffn_hidden_size
        total -= rows * config.hidden_size
    if configuration["model_type"] in IMAGES - {*OF_CLASSES}:
        joined = TOWERS[configuration["model_type"]].joined
        total += (joined * config.hidden_size + 1) * config.num_labels
    return int(total)


def forward_flops(configuration: dict[str, Any]) -> int:
    """FLOPs of the products in a forward pass of one sequence of ``TOKENS``, on ``meta``."""
    model = build(configuration, attn_implementation="eager").eval()
    ids = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    # Whether masks and positions are plain is asked of values that are not there: they are.
    with (
        patch.object(torch.Tensor, "item", lambda _: True),
        patch.object(torch.Tensor, "__bool__", lambda _: True),
        FlopCounterMode(display=False) as counted,
        torch.no_grad(),
    ):
        model(input_ids=ids)
    return int(counted.get_total_flops())


def flops() -> None:
    """Write beside the types of text what a forward pass takes."""
    table = json.loads(TYPES.read_text())
    for kind, row in table.items():
        if kind in families() and kind in {*CAUSAL, *MASKED} - {*WITH_IMAGES, *OF_TWO, *OF_SOUND}:
            with contextlib.suppress(Exception):  # what cannot run on meta
                row["flops"] = forward_flops(row["config"])
            print(f"{kind:30} {row.get('flops', 0):>22,}", flush=True)
    _write(TYPES, table)


def _write(file: Path, table: dict[str, Any]) -> None:
    lines = (f" {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def released() -> None:
    """Write the counts of the configurations that tests hold."""
    table = json.loads(RELEASED.read_text())
    for name, row in table.items():
        row["parameters"] = count(row["config"])
        print(f"{name:60} {row['parameters']:>18,}")
    _write(RELEASED, table)
    print(f"{len(table)} models, transformers {transformers.__version__}")


def defaults() -> None:
    """Write what Transformers takes for left-out fields that the reader looks at."""
    read = "".join(file.read_text() for file in CONF.glob("*.py"))
    declared = ((CONF / f"{name}.yaml").read_text() for name in ("families", "towers"))
    stated = set(re.findall(r"\w+", "".join(declared)))
    table = {}
    for kind in sorted({*families(), *TOWERS, *SOUNDS, *READ_WITH_IMAGES, *SAMPLED}):
        known = {}
        same = _SAME.get(kind, kind)
        # Ling's two have code of their own that Transformers has not.
        for field in dataclasses.fields(CONFIG_MAPPING[same]) if same in CONFIG_MAPPING else ():
            factory = field.default_factory
            value = field.default if factory is dataclasses.MISSING else factory()
            names = {
                field.name,
                field.name.removeprefix("linear_"),
                field.name.removeprefix("mamba_"),
            }
            sizes = value if isinstance(value, (list, tuple)) else [value]
            if (field.name in stated or any(f'"{name}"' in read for name in names)) and all(
                isinstance(size, (int, float)) for size in sizes
            ):
                known[field.name] = value
        table[kind] = known
    _write(DEFAULTS, table)
    print(f"{len(table)} types, transformers {transformers.__version__}")


def compare(configuration: dict[str, Any]) -> tuple[str, str]:
    """``equal``, ``refused``, ``wrong`` or ``not built`` (by Transformers), and its detail."""
    try:
        theirs = count(configuration)
    except Exception as error:  # Transformers refuses in many ways
        return "not built", f"{type(error).__name__}: {str(error)[:80]}"
    try:
        model = typed_value(Model, "model", config_json.model_fields(configuration, "read"))
        model.check()
    except InputError as error:
        return "refused", error.field
    ours = parameters(replace(model, vocab_multiple=1))
    off = ours / theirs - 1
    return ("equal" if abs(off) <= 1e-4 else "wrong"), f"{ours:,} of {theirs:,} ({off:+.3%})"


def written(kind: str) -> dict[str, Any]:
    """The configuration of a type as Transformers writes it."""
    config = AutoConfig.for_model(kind, **_NEEDED.get(kind, {}))
    text = config.to_json_string(use_diff=False)
    return json.loads(text, object_hook=_infinity) | {"model_type": kind}


def _infinity(value: dict[str, Any]) -> Any:
    return float("inf") if set(value) == {"__float__"} else value


def _parts(kind: str) -> dict[str, Any]:
    """Of a type with images: all by default, but what no released file has."""
    whole = READ_WITH_IMAGES[kind]
    parts: dict[str, Any] = {"text_config": {}}
    if whole.compares is not None:
        parts["vision_config"] = {}
    elif whole.tower is not None:
        parts["vision_config"] = dict.fromkeys(TOWERS[whole.tower].refused, False)
    return parts | ({"audio_config": {"model_type": whole.sound}} if whole.sound else {})


def types() -> None:
    """Write how many parameters every type has by default, and print what we make of it."""
    found: Counter[str] = Counter()
    table = {}
    for kind in sys.argv[2:] or sorted(BUILT):
        configuration = {"model_type": kind} | _NEEDED.get(kind, {})
        configuration = (_parts(kind) if kind in READ_WITH_IMAGES else {}) | configuration
        result, detail = compare(configuration)
        if result == "refused":  # lists of layers are in what Transformers writes
            with contextlib.suppress(Exception):
                result, detail = compare(written(kind))
        found[result] += 1
        print(f"{kind:30} {result:10} {detail}", flush=True)
        if result != "not built":
            table[kind] = {"config": configuration, "parameters": count(configuration)}
    _write(TYPES, table)
    print(dict(found), f"transformers {transformers.__version__}")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        known = {each.__name__: each for each in (released, defaults, types, flops)}
        known.get("".join(sys.argv[1:2]), lambda: sys.exit(__doc__))()
