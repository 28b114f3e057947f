"""The declarations that ship in ``conf/``, as values, for commands that look names up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml

from trainscout.conf.build import build_value
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Gpu, Model

_DIRECTORY = Path(__file__).parent

T = TypeVar("T")


@dataclass(frozen=True)
class Catalogue:
    """Question GPUs, models and frameworks by the name of their file."""

    gpus: dict[str, Gpu]
    models: dict[str, Model]
    frameworks: dict[str, Framework]


def load_catalogue() -> Catalogue:
    """Every file of the groups ``gpu``, ``model`` and ``framework``, checked.

    Raises:
        InputError: for a declaration that cannot be used.
    """
    catalogue = Catalogue(
        gpus=_load("gpu", Gpu),
        models=_load("model", Model),
        frameworks=_load("framework", Framework),
    )
    for group in (catalogue.gpus, catalogue.models, catalogue.frameworks):
        for declared in group.values():
            declared.check()
    return catalogue


def _load(group: str, cls: type[T]) -> dict[str, T]:
    files = sorted((_DIRECTORY / group).glob("*.yaml"))
    return {
        file.stem: build_value(cls, group, yaml.safe_load(file.read_text(encoding="utf-8")))
        for file in files
    }
