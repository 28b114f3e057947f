"""Reading launch arguments in tests, from declarations that they must override."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from tests.samples import CLUSTER, GPU, MODEL, TRAINING
from trainscout.conf.build import build_value
from trainscout.conf.catalogue import load_catalogue
from trainscout.reports.launch_import.read import ImportedLaunch, read_launch
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.question import Question

CONF = Path(__file__).parents[3] / "conf"

BASE = Question(MODEL, GPU, CLUSTER, TRAINING)
SHAPE = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
SHAPE += "--max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 32 "


def model(name: str) -> Model:
    if not (CONF / "model" / f"{name}.yaml").is_file():
        raise InputError("model", name, "is not a known choice")
    path = CONF / "model" / f"{name}.yaml"
    return build_value(Model, "model", yaml.safe_load(path.read_text("utf-8")))


def framework(name: str) -> Framework:
    return load_catalogue().frameworks[name]


def read(given: str, stated: tuple[str, ...] = (), **declared: Any) -> ImportedLaunch:
    return read_launch(given, replace(BASE, **declared), stated, model, framework)


def written(folder: Path, content: Any, name: str = "run.sh") -> str:
    """A file of ``folder``: text as it is, settings as YAML or JSON by its name."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    dump = yaml.safe_dump if name.endswith((".yaml", ".yml")) else json.dumps
    path.write_text(content if isinstance(content, str) else dump(content))
    return str(path)


def read_written(folder: Path, content: Any, name: str = "run.sh") -> ImportedLaunch:
    """What is read of such a file."""
    return read(written(folder, content, name))


AXOLOTL = {
    "base_model": "llama3_8b",
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "sequence_len": 4096,
    "sample_packing": True,
    "optimizer": "adamw_torch_fused",
    "gradient_checkpointing": True,
    "bf16": "auto",
    "num_epochs": 3,
    "special_tokens": {"pad_token": "<pad>"},
    "datasets": [{"path": "a/b", "type": "alpaca"}],
}
FSDP2 = {"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True}}
