"""Clusters, frameworks and switch fabrics that ``conf`` declares, read as data."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from simulators.errors import InputError, require_choice
from simulators.framework import Framework
from simulators.job import Cluster
from simulators.network.topology import SwitchFabric

# A checkout and an installation both keep ``conf`` beside ``simulators``.
_CONF = Path(__file__).parents[2] / "conf"

T = TypeVar("T", Cluster, Framework, SwitchFabric)


def declared(option: str, group: str, name: str, cls: type[T]) -> T:
    """The declaration ``conf/<group>/<name>.yaml``, checked.

    Raises:
        InputError: when there is none, or it cannot be used.
    """
    import yaml

    folder = _CONF / group
    require_choice(option, name, [path.stem for path in folder.glob("*.yaml")])
    content: dict[str, Any] = yaml.safe_load((folder / f"{name}.yaml").read_text("utf-8"))
    content.pop("defaults", None)
    known = {each.name for each in fields(cls)}
    unknown = sorted(set(content) - known)
    if unknown:
        raise InputError(option, name, f"declares unknown fields: {', '.join(unknown)}", known)
    # YAML 1.1 reads 80e-6 as text.
    types = get_type_hints(cls)
    for field, value in content.items():
        if types[field] is float and isinstance(value, str):
            content[field] = float(value)
    made = cls(**content)
    made.check()
    return made
