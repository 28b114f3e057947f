"""From a composed configuration to the frozen values the simulators take."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainscout.conf.catalogue import Catalogue, load_catalogue, with_own_lengths
from trainscout.conf.input_errors import explain_omegaconf_error
from trainscout.conf.named_files import with_named_files
from trainscout.simulators.predictor.io.values import MISSING, typed_value
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training

T = TypeVar("T")


def build_question(cfg: DictConfig | Mapping[str, Any]) -> Question:
    """The checked declarations of a composed configuration.

    Args:
        cfg: a configuration with the groups ``model``, ``gpu``, ``cluster``,
            ``training`` and ``framework``;
            other keys are not looked at.

    Raises:
        InputError: for a missing, unknown, mistyped, non-finite or impossible field.
    """
    _require_gpu(cfg)
    question = Question(
        model=with_named_files(build_value(Model, "model", _group(cfg, "model"))),
        gpu=_with_own_price(build_value(Gpu, "gpu", _group(cfg, "gpu")), cfg),
        cluster=build_cluster(cfg),
        training=build_value(Training, "training", _group(cfg, "training")),
        framework=build_value(Framework, "framework", _group(cfg, "framework")),
    )
    training = with_own_lengths(question.training, question.model, _given(cfg, "training"))
    question = dataclasses.replace(question, training=training)
    question.check()
    return question


def build_cluster(cfg: DictConfig | Mapping[str, Any]) -> Cluster:
    """The cluster of a composed configuration, with what the files that it names hold.

    Raises:
        InputError: for a mistyped field, or a file that cannot be used.
    """
    return with_named_files(build_value(Cluster, "cluster", _group(cfg, "cluster")))


def _require_gpu(cfg: DictConfig | Mapping[str, Any]) -> None:
    """Refuse a cluster that does not say its GPU, where nothing else does."""
    gpu: Any = cfg.get("gpu", {})
    named = OmegaConf.to_container(gpu) if isinstance(gpu, DictConfig) else gpu
    if not isinstance(named, Mapping) or named.get("name", MISSING) != MISSING:
        return
    cluster: Any = _plain("cluster", _group(cfg, "cluster"))
    name = cluster.get("name") if isinstance(cluster, Mapping) else None
    problem = "does not say which GPU it has"
    raise InputError("cluster", name, problem, "gpu=h100 or another; gpu: h100 in its file")


def hydra_catalogue() -> Catalogue:
    """What the command that Hydra runs can name: what ships, and what its ``--config-dir`` has."""
    hydra = GlobalHydra.instance()
    path = hydra.config_loader().get_search_path().get_path() if hydra.is_initialized() else ()
    folders = [each.path for each in path if each.path and each.path.startswith("file://")]
    return load_catalogue(*(Path(folder.removeprefix("file://")) for folder in folders))


def _with_own_price(gpu: Gpu, cfg: DictConfig | Mapping[str, Any]) -> Gpu:
    """A price named on the command line is the user's, even one that equals the declared one."""
    if "price_usd_per_hour" not in _given(cfg, "gpu"):
        return gpu
    sources = gpu.sources | {"price_usd_per_hour": "the command line"}
    return dataclasses.replace(gpu, sources=sources)


def _given(cfg: DictConfig | Mapping[str, Any], group: str) -> set[str]:
    """The fields of a group that the command line says."""
    field = re.compile(rf"\+{{0,2}}{group}\.(\w+)=")
    return {found[1] for each in given_overrides(cfg) if (found := field.match(each))}


def given_overrides(cfg: DictConfig | Mapping[str, Any]) -> Sequence[str]:
    """What the command line changes of a configuration that Hydra composed."""
    if "hydra" in cfg:  # before the program is called
        overrides: Sequence[str] = cfg["hydra"].overrides.task
        return overrides
    return HydraConfig.get().overrides.task if HydraConfig.initialized() else ()


def build_recipe(recipe: DictConfig | Mapping[str, Any]) -> Recipe:
    """The recipe of a configuration's ``recipe`` group; fields left out keep their default.

    Whether it can be launched is ``simulators.why_invalid``'s to say.

    Raises:
        InputError: for an unknown or mistyped field.
    """
    return build_value(Recipe, "recipe", recipe)


def build_value(cls: type[T], field: str, value: object) -> T:
    """An instance of dataclass ``cls`` from a mapping, typed as its schema says; a GPU with the
    architecture that it names, a framework with its alternatives, a training with its teacher.

    Args:
        cls, field: see ``typed_value``.
        value: what the user declared, as a mapping or a ``DictConfig``, whose interpolations
            are resolved.

    Raises:
        InputError: for a missing, unknown, mistyped or non-finite field.
    """
    plain = _plain(field, value)
    if cls is Gpu:
        plain = hydra_catalogue().with_architecture(plain)
    if cls is Framework:
        plain = hydra_catalogue().with_alternatives(plain)
    if cls is Training:
        plain = hydra_catalogue().with_teacher(plain)
    return typed_value(cls, field, plain)


def _plain(field: str, value: object) -> object:
    """What was declared without OmegaConf's types, interpolations resolved."""
    if isinstance(value, DictConfig):
        try:
            value = OmegaConf.to_container(value, resolve=True)
        except OmegaConfBaseException as error:
            plain = OmegaConf.to_container(value)
            # OmegaConf names the key from the root of the tree it was working on.
            key = str(error.full_key or "").removeprefix(f"{field}.")
            raise explain_omegaconf_error(error, f"{field}.{key}", _at(plain, key)) from error
    return value


def _at(plain: object, key: str) -> object:
    for name in key.split("."):
        plain = plain.get(name) if isinstance(plain, Mapping) else None
    return plain


def _group(cfg: DictConfig | Mapping[str, Any], group: str) -> object:
    if group not in cfg:
        raise InputError(group, "???", "is missing", "a choice of the group")
    return cfg[group]
