"""Tools around Transformers' Trainer, and files of its arguments, of Accelerate's and DeepSpeed's.

``fine_tuners.yaml`` says what TRL, LLaMA-Factory, axolotl and ms-swift call Transformers'
arguments and take where nothing is said. Keys of DeepSpeed's JSON are arguments
``--ds.section.key``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from trainscout.reports.dialects.options import KEY, Options, words_of_table
from trainscout.simulators.predictor.io.yaml_files import read_yaml

_TOOLS = Path(__file__).parent / "fine_tuners.yaml"
# Accelerate's names of degrees that are not those of the tools around it.
_DEGREES = {"tp_size": "tensor_parallel_size", "cp_size": "context_parallel_size"}
# What Accelerate says of DeepSpeed beside a file of DeepSpeed's own.
_OF_DEEPSPEED = {
    "zero_stage": f"{KEY}zero_optimization.stage",
    "gradient_accumulation_steps": f"{KEY}gradient_accumulation_steps",
    "offload_optimizer_device": f"{KEY}zero_optimization.offload_optimizer.device",
    "offload_param_device": f"{KEY}zero_optimization.offload_param.device",
}
# What PEFT's file of an adapter calls what is an argument elsewhere.
_OF_ADAPTER = {
    "base_model_name_or_path": "model_name_or_path",
    "r": "lora_r",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "modules_to_save": "modules_to_save",
    "use_dora": "use_dora",
}
_PRESET = re.compile(r"zero([0-3])(_offload)?")
AXOLOTL, FACTORY, SWIFT, TRL = "axolotl", "LLaMA-Factory", "ms-swift", "TRL"
TORCHTUNE, AUTOMODEL, OPENRLHF = "torchtune", "NeMo AutoModel", "OpenRLHF"
MEGATRON_SWIFT = "ms-swift with Megatron"


@dataclass(frozen=True)
class Tool:
    """What a tool calls Transformers' arguments, and takes where none is said."""

    title: str
    marks: tuple[str, ...] = ()
    """Arguments that no other has."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Its names, with what Transformers calls them."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    least_batch: int = 1
    """Sequences of a step where no accumulation is said: as many at least."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Its models that ship under another name."""
    software: str = "huggingface"
    """The declared framework that it is, without DeepSpeed."""


@cache
def _tools() -> dict[str, Tool]:
    tools = {}
    for title, table in read_yaml(_TOOLS).items():
        names = {f"--{own}": f"--{name}" for own, name in table["names"].items()}
        defaults = {f"--{name}": str(value).lower() for name, value in table["defaults"].items()}
        marks = tuple(f"--{mark}" for mark in table["marks"])
        rest = {key: table[key] for key in ("least_batch", "models", "software") if key in table}
        tools[title] = Tool(title, marks, names, defaults, **rest)
    return tools


def tool_of(names: Iterable[str], started: str | None = None) -> Tool | None:
    """The tool of that name, else the one that has arguments of these ``names`` to itself."""
    if started is not None:
        return _tools()[started]
    options = {f"--{name.lstrip('-').replace('-', '_')}" for name in names}
    return next((tool for tool in _tools().values() if options.intersection(tool.marks)), None)


def deepspeed_preset(name: str) -> dict[str, Any] | None:
    """What ms-swift and TRL call ``zero3_offload`` and the like; None: no such name."""
    match = _PRESET.fullmatch(name)
    if match is None:
        return None
    settings: dict[str, Any] = {"stage": int(match[1])}
    if match[2]:
        settings["offload_optimizer"] = {"device": "cpu"}
        settings |= {"offload_param": {"device": "cpu"}} if match[1] == "3" else {}
    return {"zero_optimization": settings}


def words_of_deepspeed(table: Mapping[str, Any]) -> list[str]:
    """DeepSpeed's JSON as arguments: ``{"bf16": {"enabled": true}}`` as ``--ds.bf16.enabled``."""
    return words_of_table(table, KEY)


def words_of_arguments(table: Mapping[str, Any]) -> list[str]:
    """A file of arguments, as these tools and TRL take them; FSDP's may stand in a table."""
    words = []
    for name, value in table.items():
        if name == "fsdp_config" and isinstance(value, Mapping):
            settings = {str(key).removeprefix("fsdp_"): each for key, each in value.items()}
            words += [f"--fsdp_{key}={each!s}" for key, each in settings.items()]
        elif name == "deepspeed" and isinstance(value, Mapping):
            words += words_of_deepspeed(value)
        elif isinstance(value, Mapping):
            words += words_of_table(value, f"--{name}.")
        elif value is not None:
            values = value if isinstance(value, list) else [value]
            texts = [str(each).lower() if isinstance(each, bool) else str(each) for each in values]
            words += [f"--{name}={texts[0]}", *texts[1:]] if texts else []
    return words


def words_of_launcher(launcher: Options) -> list[str]:
    """What ``accelerate launch`` is told itself: settings of a configuration file."""
    known = {"mixed_precision", "deepspeed_config_file", *_OF_DEEPSPEED}
    names = sorted(name[2:] for name in launcher.names)
    read = [name for name in names if name in known or name.startswith("fsdp_")]
    told = {name: text for name in read if (text := launcher.text(f"--{name}"))}
    kinds = {"--use_deepspeed": "DEEPSPEED", "--use_fsdp": "FSDP"}
    kind = next((each for name, each in kinds.items() if launcher.on(name)), "")
    fsdp = {name: value for name, value in told.items() if name.startswith("fsdp_")}
    own = {"distributed_type": kind, "deepspeed_config": told, "fsdp_config": fsdp}
    return words_of_accelerate(told | own)


def words_of_adapter(table: Mapping[str, Any]) -> list[str]:
    """PEFT's ``adapter_config.json`` as arguments: what is adapted of which model, and how else
    than plainly."""
    said = {name: table.get(key) for key, name in _OF_ADAPTER.items()}
    said["peft_type"] = str(table["peft_type"]).lower()
    return words_of_arguments({name: value for name, value in said.items() if value})


def words_of_accelerate(table: Mapping[str, Any]) -> list[str]:
    """Accelerate's configuration file as arguments; its own defaults: ZeRO 2, whole shards."""
    words, kind = [], str(table.get("distributed_type", "")).upper()
    if str(table.get("mixed_precision", "no")) != "no":
        words.append(f"--mixed_precision={table['mixed_precision']}")
    fsdp = table.get("fsdp_config")
    if kind == "FSDP" and isinstance(fsdp, Mapping):
        words += words_of_arguments({"fsdp_version": 1, "fsdp_config": fsdp})
    degrees = table.get("parallelism_config")
    for key, value in degrees.items() if isinstance(degrees, Mapping) else ():
        name = str(key).removeprefix("parallelism_config_")
        words.append(f"--{_DEGREES.get(name, name)}={value}")
    deepspeed = table.get("deepspeed_config")
    if kind == "DEEPSPEED" and isinstance(deepspeed, Mapping):
        if "deepspeed_config_file" in deepspeed:
            return [*words, f"--deepspeed={deepspeed['deepspeed_config_file']}"]
        stated = {"zero_stage": 2, **deepspeed}
        words += [
            f"{argument}={stated[name]}"
            for name, argument in _OF_DEEPSPEED.items()
            if stated.get(name) not in (None, "none")
        ]
    return words
