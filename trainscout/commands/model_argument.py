"""``model=`` as a path or a name of the Hugging Face Hub, for Hydra, which knows choices only."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore

from trainscout.conf.config_json import config_file, read_config
from trainscout.conf.hub_names import hub_choice


def with_models(arguments: Sequence[str]) -> list[str]:
    """The arguments with each ``model=`` that is no choice made one.

    A ``config.json``, or the directory of one, becomes a choice of this process, called after it.

    Raises:
        InputError: for a file that describes no model that can be declared.
    """
    return [_argument(each) for each in arguments]


def _argument(argument: str) -> str:
    name, equals, value = argument.partition("=")
    if name not in ("model", "+model", "model@model") or not equals:
        return argument
    return f"{name}={','.join(map(_choice, value.split(',')))}"


def _choice(value: str) -> str:
    plain = value.strip("'\"")
    file = config_file(plain)
    if file is None:
        return hub_choice("model", plain) or value
    fields: dict[str, Any] = read_config(file)
    choice = re.sub(r"\W+", "_", fields["name"]) or "model"
    kinds = {name: dataclasses.asdict(kind) for name, kind in fields.get("kinds", {}).items()}
    towers = [dataclasses.asdict(tower) for tower in fields.get("towers", ())]
    plain_fields = {**fields, "kinds": kinds, "towers": towers}
    ConfigStore.instance().store(choice, plain_fields, group="model")
    return choice
