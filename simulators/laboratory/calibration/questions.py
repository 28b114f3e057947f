"""Jobs of a user's own runs, by our names: ``model=our_30b cluster=h100_64 tp=8 ...``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainscout.api.questions import fields_of, part_of, question
from trainscout.conf.catalogue import command_defaults, load_catalogue
from trainscout.reports.launch_import.read import read_launch
from trainscout.simulators.predictor.io.values import typed_value
from trainscout.simulators.predictor.io.yaml_files import parse_yaml
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError, nearest_name
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.question.validity import why_invalid

# Where a name without a dot belongs: the first of these that has such a field.
_PARTS: dict[str, Any] = {
    "recipe": Recipe,
    "training": Training,
    "cluster": Cluster,
    "model": Model,
    "framework": Framework,
    "gpu": Gpu,
}
_CHOSEN = ("model", "cluster", "gpus", "gpu", "training", "framework")
SETTINGS = frozenset(_CHOSEN).union(*map(fields_of, _PARTS.values()))


def settings_of(words: Sequence[str], field: str) -> dict[str, str]:
    """Settings ``name=value`` of a command line.

    Raises:
        InputError: naming ``field``, for one without ``=``.
    """
    settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise InputError(field, word, "is no setting", "name=value, as cluster=h100_64")
        if name.lstrip("+") in settings:
            raise InputError(field, word, "is set twice", "each setting once")
        settings[name.lstrip("+")] = value
    return settings


def question_of(
    settings: Mapping[str, str], config_dir: Path | None = None
) -> tuple[Question, dict[str, Any]]:
    """The question of settings as on a command line, and the fields of its recipe.

    ``model``, ``cluster``, ``gpu``, ``training`` and ``framework`` choose by name or file,
    ``gpus`` by number (``64xH100``) instead of ``cluster``; other names are fields, with the part
    they belong to before a dot where they are of several.

    Raises:
        InputError: for a name that is none (with the nearest), or a value that cannot be meant.
    """
    chosen: dict[str, Any] = {name: settings[name] for name in _CHOSEN if name in settings}
    if "gpus" in settings and "cluster" in settings:
        raise InputError("gpus", settings["gpus"], "is given beside cluster=", "one of them")
    for name in ("model", "cluster"):
        if name not in chosen and not (name == "cluster" and "gpus" in chosen):
            raise _missing(name)
    fields: dict[str, Any] = {}
    for name, text in settings.items():
        if name not in _CHOSEN:
            fields[".".join(_part_of(name, text))] = _plain(name, text)
    recipe = {
        name.removeprefix("recipe."): fields.pop(name)
        for name in list(fields)
        if name.startswith("recipe.")
    }
    return question(**chosen, config_dir=config_dir, **fields), recipe


def job_of_settings(
    settings: Mapping[str, str], given: str | None = None, config_dir: Path | None = None
) -> Job:
    """The job of settings, with what a launch script or configuration says (``given``: its path,
    or arguments); settings count more. ``config_dir`` has declarations besides those that ship.

    Raises:
        InputError: for either, or a recipe that cannot be launched.
    """
    default = {} if given is None else {"model": command_defaults("simulate")[1]["model"]}
    catalogue = load_catalogue() if config_dir is None else load_catalogue(config_dir)
    asked, fields = question_of({**default, **settings}, config_dir)
    recipe = {}
    if given is not None:
        stated = {
            name if "." in name or name in _CHOSEN else ".".join(_part_of(name, ""))
            for name in settings
        }
        stated = {name for name in stated if name.partition(".")[0] != "recipe"}
        model_named = functools.partial(catalogue.models.chosen, "model")
        found = read_launch(given, asked, stated, model_named, catalogue.frameworks.__getitem__)
        if "model" not in settings and not found.names_model:
            raise _missing("model")
        asked, recipe = found.question, dataclasses.asdict(found.recipe)
        asked.check()
    job = asked.job(typed_value(Recipe, "recipe", {**recipe, **fields}))
    broken = why_invalid(job)
    if broken is not None:
        value = getattr(job.recipe, broken.field, None)
        raise InputError(f"recipe.{broken.field}", value, broken.reason)
    return job


def _missing(name: str) -> InputError:
    allowed = f"{name}=NAME or its file (of trainscout calibrate: --set {name}=NAME, or a column)"
    return InputError(name, None, "is missing", allowed)


def _part_of(name: str, value: str) -> tuple[str, str]:
    if name in _CHOSEN:
        return name, ""
    place = part_of(name, _PARTS)
    if place is None or place[1].partition(".")[0] not in fields_of(_PARTS[place[0]]):
        allowed = f"a setting as of trainscout simulate: {', '.join(_CHOSEN)}, recipe.tp, ..."
        raise InputError(name, value, "is not a known name", allowed, nearest_name(name, SETTINGS))
    return place


def _plain(name: str, text: str) -> Any:
    if name.endswith("optimizer") and text.lower().startswith("adamw"):
        return "adam"  # Decay that is taken from weights instead of gradients takes as long.
    return parse_yaml(text, name, text)
