"""Clusters and frameworks that ``conf`` declares, read as data: nothing here imports ``conf``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

from trainscout.simulators.predictor.question.declared import GPUS, load_gpu
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Cluster, Gpu

CONF = GPUS.parent
T = TypeVar("T")


def declared(option: str, folder: str, name: str) -> dict[str, Any]:
    """A declaration of ``conf/<folder>`` by name, or a YAML file anywhere by its path.

    Raises:
        InputError: naming the option, when there is none or it is not a mapping.
    """
    import yaml

    path = Path(name) if name.endswith(".yaml") else CONF / folder / f"{name}.yaml"
    if not path.is_file():
        known = [each.stem for each in sorted((CONF / folder).glob("*.yaml"))]
        raise InputError(option, name, "is not declared", known)
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(option, path, f"cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise InputError(option, path, "is not a declaration", "names and values")
    return content


def load_cluster(name: str, gpu: str | None = None) -> tuple[Cluster, Gpu]:
    """A cluster and its GPUs, or others in their place.

    Raises:
        InputError: for what is not declared, or not a cluster.
    """
    content = declared("--cluster", "cluster", name)
    defaults = content.pop("defaults", [])
    own = [
        str(value)
        for each in defaults
        if isinstance(each, dict)
        for key, value in each.items()
        if str(key).endswith("gpu@_global_.gpu")
    ]
    cluster = _build("--cluster", name, Cluster, content)
    cluster.check()
    chosen = gpu or (own[0] if own else None)
    if chosen is None:
        raise InputError("--cluster", name, "does not say which GPU it has", "--gpu NAME")
    declared("--gpu", "gpu", chosen)
    return cluster, load_gpu(CONF / "gpu" / f"{chosen}.yaml")


def load_framework(name: str) -> Framework:
    """A framework's declaration.

    Raises:
        InputError: for what is not declared, or not a framework.
    """
    framework = _build("--framework", name, Framework, declared("--framework", "framework", name))
    framework.check()
    return framework


def _build(option: str, name: str, cls: type[T], content: dict[str, Any]) -> T:
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(content) - set(fields))
    if unknown:
        raise InputError(f"{option} {name}", unknown[0], "is not a known field", fields)
    # YAML reads 400e9 as a number but 80.0e-6 as text.
    values = {
        key: float(value) if isinstance(value, str) and fields[key].type == "float" else value
        for key, value in content.items()
    }
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise InputError(option, name, f"is not complete ({error})") from error
