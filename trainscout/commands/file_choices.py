"""Choices given as a file or by another name, for Hydra, which knows the names of choices only."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from trainscout.conf.hub_names import hub_choice
from trainscout.conf.named_files import config_file
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, read_yaml
from trainscout.simulators.predictor.question.errors import InputError

GROUPS = frozenset(folder.name for folder in DECLARATIONS.iterdir() if any(folder.glob("*.yaml")))
"""What has choices."""


def with_files(arguments: Sequence[str]) -> list[str]:
    """The arguments with each file that stands where a choice does made a choice of this process,
    called after it: a YAML file of any group (``cluster=ours.yaml``), the ``config.json`` of a
    model or its directory. A model's name on the Hugging Face Hub becomes that of what ships.

    Raises:
        InputError: for a file that is not there, or declares nothing.
    """
    return [_argument(each) for each in arguments]


def _argument(argument: str) -> str:
    name, equals, value = argument.partition("=")
    group = name.lstrip("+").partition("@")[0]
    if group not in GROUPS or not equals:
        return argument
    return f"{name}={','.join(_choice(group, each) for each in value.split(','))}"


def _choice(group: str, value: str) -> str:
    plain = value.strip("'\"")
    if plain.endswith((".yaml", ".yml")):
        return _stored(group, Path(plain).stem, _declaration(group, Path(plain)))
    if group != "model":
        return value
    file = config_file(plain)
    if file is None:
        return hub_choice("model", plain) or value
    # Few models are read so.
    from trainscout.conf.config_json import read_config

    fields: dict[str, Any] = read_config(file)
    kinds = {name: dataclasses.asdict(kind) for name, kind in fields.get("kinds", {}).items()}
    towers = [dataclasses.asdict(tower) for tower in fields.get("towers", ())]
    return _stored(group, fields["name"], {**fields, "kinds": kinds, "towers": towers})


def _declaration(group: str, file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise InputError(group, str(file), "is no file", "a YAML file, or a name that ships")
    content = read_yaml(file, group)
    if not isinstance(content, dict):
        raise InputError(group, str(file), "holds no fields", "names with values, in YAML")
    return content


def _stored(group: str, name: str, fields: dict[str, Any]) -> str:
    choice = re.sub(r"\W+", "_", name) or group
    # Under the name of one that ships, Hydra would take that.
    if (DECLARATIONS / group / f"{choice}.yaml").is_file():
        choice = f"own_{choice}"
    ConfigStore.instance().store(choice, fields, group=group)
    return choice
