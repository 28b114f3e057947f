"""Configurations of released models, counted by benchmarks/transformers_parameters.py with
Transformers 5.24."""

import json
from pathlib import Path
from typing import Any

from trainscout.conf.config_json import model_fields
from trainscout.simulators.predictor.io.values import typed_value
from trainscout.simulators.predictor.question.model import Model

RELEASED = json.loads((Path(__file__).parent / "configurations.json").read_text())
TYPES = json.loads((Path(__file__).parent / "types.json").read_text())


def imported(config: dict[str, Any], name: str = "imported") -> Model:
    model = typed_value(Model, "model", model_fields(config, name))
    model.check()
    return model


def config_of(name: str, **changes: object) -> dict[str, Any]:
    return RELEASED[name]["config"] | changes
