"""Turn what Hydra and OmegaConf raise into one clear sentence about the user's input."""

from __future__ import annotations

import dataclasses
import functools
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.types import Override
from hydra.errors import (
    HydraException,
    MissingConfigException,
    OverrideParseException,
    SearchPathException,
)
from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationToMissingValueError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

from trainscout.conf.counted_gpus import eight_of
from trainscout.conf.hub_names import FILE, other_model
from trainscout.simulators.predictor.io.values import (
    MISSING,
    expected,
    missing_fields,
    unknown_name,
)
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, read_yaml
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError, nearest_name
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import KNOBS, Recipe
from trainscout.simulators.predictor.question.training import Training

_MOST_FILLED = 3


def explain_hydra_error(error: BaseException) -> InputError | None:
    """What the user got wrong, or None when ``error`` is not about the user's input.

    Understands unknown choices of a group, unknown keys (on the command line and in YAML files),
    values of the wrong type, missing values, and overrides that cannot be parsed.
    """
    if isinstance(error, InputError):
        return error
    for link in _chain(error):
        if isinstance(link, InputError):  # of a file that Hydra was reading
            return link
    if isinstance(error, RecursionError):
        problem = "lists, by way of others, the file that it stands in, or nests too deep"
        return InputError(
            "configuration", "defaults", problem, "files that do not list each other"
        )
    if isinstance(error, OverrideParseException):
        return _unparsable(error)
    if isinstance(error, MissingConfigException):
        return _unknown_choice(error)
    if isinstance(error, SearchPathException):
        return InputError(
            "command line", "--config-dir", _first_sentence(error), "an existing folder"
        )
    override = _override_at_fault(error)
    for link in _chain(error):
        if isinstance(link, InterpolationToMissingValueError) and link.parent_node is not None:
            # Where results go is called after the model and the cluster.
            field = re.findall(r"value: (\S+)", str(link))[-1]
            group = field.partition(".")[0]
            root: Any = link.parent_node._get_root()
            missing = sorted(OmegaConf.missing_keys(root[group]) - {field})
            names = [each.removeprefix(f"{group}.") for each in (field, *missing)]
            return missing_fields(group, names, "text")
        if isinstance(link, OmegaConfBaseException) and link.full_key:
            field, value = str(link.full_key), _given(link, override)
            # OmegaConf names the first part that is not there, the user what is in it.
            if override is not None and _text_of(override)[0].startswith(f"{field}."):
                field = _text_of(override)[0]
            return explain_omegaconf_error(link, field, value)
    if override is not None:
        return _refused_override(error, override)
    if (group := re.match(r"Could not override '(\w+)'", str(error))) is not None:
        problem = "is not a group of this command"
        instead = _INSTEAD.get(group[1], "--help lists them")
        return InputError("command line", group[1], problem, instead)
    if isinstance(error, HydraException | OmegaConfBaseException) and str(error):
        return InputError("configuration", "?", _first_sentence(error), "see --help")
    return None


def as_input_error(error: Exception) -> Exception:
    """``explain_hydra_error`` where it says something, with ``error`` as its cause."""
    wrong = explain_hydra_error(error)
    if wrong is None or wrong is error:
        return error
    wrong.__cause__ = error
    return wrong


def explain_omegaconf_error(
    error: OmegaConfBaseException, field: str, value: object
) -> InputError:
    """What is wrong with ``value`` of the dotted name ``field``."""
    unknown = isinstance(error, ConfigKeyError | ConfigAttributeError)
    if unknown and isinstance(error.parent_node, DictConfig):
        if field.startswith("recipe.") and "recipe" not in error.parent_node._get_root():
            problem, knob = "a search chooses the recipe", field.partition(".")[2]
            instead = f"space.knobs.{knob}={value} to hold a knob; or trainscout simulate"
            return InputError(field, value, problem, instead)
        if field in _OF_EXPLAIN:
            instead = f"trainscout explain {field}={value}"
            return InputError(field, value, "is no setting of this command", instead)
        leaf, root = field.rpartition(".")[2], cast(DictConfig, error.parent_node._get_root())
        if (study := _of_a_study(field, root.get("sweep"))) is not None:
            return InputError(field, value, "is not a known name", f"{study}={value}", study)
        if leaf != field and leaf in root:
            return InputError(field, value, "is not a known name", f"{leaf}={value}", leaf)
        names = [str(key) for key in error.parent_node if key != "hydra"]
        meant = _elsewhere(field, names)
        setting, says, _ = (meant or "").partition("=")
        if meant is not None and not says and meant.rpartition(".")[0] == field.rpartition(".")[0]:
            nearest = meant.rpartition(".")[2]
            return InputError(field, value, "is not a known name", names, nearest)
        if meant is not None:
            instead = meant if says else f"{meant}={value}"
            return InputError(field, value, "is not a known name", instead, setting)
        return unknown_name(field, value, names)
    allowed = _expected(error.child_node, field)
    if isinstance(error, MissingMandatoryValue):
        return InputError(field, MISSING, "is missing", allowed)
    if isinstance(error, ValidationError) and field == "training.global_batch_size":
        allowed = f"{allowed} of sequences"
    if isinstance(error, ValidationError) and allowed is not None:
        return InputError(field, value, "has the wrong type", allowed, _number_meant(field, value))
    if str(error).startswith("Cannot merge"):
        form = "a list" if isinstance(error.parent_node, ListConfig) else "a mapping"
        return InputError(field, value, "has the wrong type", form)
    return InputError(field, value, _first_sentence(error), allowed or "a value that can be read")


def _number_meant(field: str, value: object) -> str | None:
    """The number in a price ($2.20), in a power of two as people say it (8k), or before the unit
    that the setting has anyway (400 Gb/s, 50 GB/s, 80 GB in bytes); None for a plain number."""
    found = re.fullmatch(r"\$?(\d+\.?\d*) ?([a-zA-Z/]*)", str(value).strip("'\" "))
    if found is None or found[1] == str(value):
        return None
    number, unit = found[1], found[2].lower()
    if unit == "k":
        return f"{float(number) * 1024:.0f}"
    if field.endswith("_bytes") and unit in _BYTES:
        return f"{float(number) * _BYTES[unit]:.0f}"
    in_its_unit = field.endswith("_gbps") and unit in ("gbps", "gb/s", "gbit/s")
    if in_its_unit and found[2] in ("GBps", "GB/s"):
        return f"{float(number) * 8:g}"
    return number if not unit or in_its_unit else None


_BYTES = {"gb": 1e9, "gib": 2**30, "tb": 1e12, "tib": 2**40}
_PARTS: dict[str, Any] = {
    "model": Model,
    "training": Training,
    "cluster": Cluster,
    "gpu": Gpu,
    "recipe": Recipe,
}


_OF_EXPLAIN = ("given", "against")

# What to say instead of a group that a command has not; a study compares several.
_INSTEAD = {
    "model": "sweep.models=[NAME, ...]",
    "cluster": "sweep.clusters=[NAME, ...]",
    "training": "sweep.training.NAME=VALUE",
    "tracking": "leave it out: this command records nothing",
}


def _of_a_study(field: str, sweep: DictConfig | None) -> str | None:
    """Where a study has what is called so; None: nowhere, or the command asks for none."""
    if sweep is None:
        return None
    leaf = field.rpartition(".")[2]
    if field.partition(".")[0] in sweep:
        return f"sweep.{field}"
    if leaf in sweep.get("targets", ()):
        return f"sweep.targets.{leaf}"
    if leaf == "price_usd_per_hour":
        return "sweep.prices_usd_per_hour.GPU"
    if leaf in sweep:
        return f"sweep.{leaf}"
    of_training = {each.name for each in dataclasses.fields(Training)}
    return f"sweep.training.{leaf}" if leaf in of_training else None


def _elsewhere(field: str, names: list[str]) -> str | None:
    """Where a field of this very name is, when it is not where it was looked for."""
    leaf = field.rpartition(".")[2]
    recipe = "recipe" if "recipe" in names or field.startswith("recipe.") else "space.knobs"
    for part, cls in _PARTS.items():
        for each in dataclasses.fields(cls):
            if each.name == leaf:
                return f"{recipe if part == 'recipe' else part}.{leaf}"
    if leaf in {each.name for each in dataclasses.fields(Moe)}:
        return f"model.moe.{leaf}"
    meant = meant_setting(field)
    if meant is not None and meant.startswith("recipe."):
        return meant.replace("recipe", recipe, 1)
    # A command without a search has no setting of one.
    group = re.split(r"[.=]", meant or "")[0]
    if meant is None or "." in field or group in (*names, "gpus", "hydra"):
        return meant
    return None


def _unparsable(error: OverrideParseException) -> InputError:
    name, equals, value = str(error.override).partition("=")
    if not equals:
        instead = "name=value, without spaces; --help shows settings"
        return InputError("command line", name, "is not of the form name=value", instead)
    odd = next((each for each in str(error.override) if not each.isascii()), None)
    reason = "cannot be read" if odd is None else f"cannot be read: {odd!r} is no plain character"
    return InputError(name, value, reason, "a value; quote it when it holds special characters")


def _unknown_choice(error: MissingConfigException) -> InputError | None:
    if error.missing_cfg_file is None:
        return None  # the primary config itself is missing: a broken installation
    if error.options is None:  # of a file's defaults
        return InputError(
            "configuration",
            error.missing_cfg_file,
            _first_sentence(error),
            "a file of --config-dir",
        )
    whole = error.missing_cfg_file
    group, _, name = whole.rpartition("/") if whole.startswith("hydra/") else whole.partition("/")
    if group == "model" and name and Path(name).is_dir():
        problem = "is a directory without the model's configuration"
        return InputError(group, name, problem, f"a directory with {FILE}, or a model's name")
    nearest = meant_choice(group, name)
    other = other_model(name, error.options) if group == "model" and nearest is None else None
    problem, allowed = other or ("is not a known choice", list(error.options))
    return InputError(group, name, problem, allowed, nearest)


def _refused_override(error: BaseException, override: Override) -> InputError:
    name, value = _text_of(override)
    if override.is_sweep_override():
        allowed = _form(name) or f"one value, a list as [{value}], or a sweep with -m"
        nearest = meant_choice(name, value)
        if (DECLARATIONS / name).is_dir():
            allowed = f"one; each in turn: -m {name}={value}"
            if name == "cluster":
                allowed += f"; beside each other: trainscout plan gpus={value} sweep.models=[NAME]"
        if name == "objective" and nearest is None:
            allowed = f"objective.names=[{value}], for their Pareto front"
        return InputError(name, value, "holds several values", allowed, nearest)
    if isinstance(error, AssertionError | AttributeError):
        # OmegaConf fails unexplained where a path runs into an optional group that is null.
        problem = "belongs to a group that the chosen declaration leaves null"
        return InputError(name, value, problem, _that_fill(name))
    if "must be a string" in str(error):  # true, null and numbers, of a group
        known = [file.stem for file in (DECLARATIONS / name).glob("*.yaml")]
        return InputError(name, value, "is not a known choice", known, meant_choice(name, value))
    return InputError(name, value, _first_sentence(error), "a setting that --help lists")


def _that_fill(name: str) -> str:
    """In words, the declarations in which the group that a dotted setting is of is not null."""
    group, _, inner = name.rpartition(".")[0].partition(".")
    own = inner.partition(".")[0]
    files = sorted((DECLARATIONS / group).glob("*.yaml"), key=lambda file: file.stem != own)
    filled = [f"{group}={file.stem}" for file in files if read_yaml(file).get(own)]
    return " or ".join([*filled[:_MOST_FILLED], "a YAML file that fills the group"])


def _override_at_fault(error: BaseException) -> Override | None:
    """The override Hydra was working on when it raised.

    Hydra carries it only in the text of some of its messages; the frames have it for all.
    """
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").startswith("hydra."):
            for value in frame.f_locals.values():
                if isinstance(value, Override):
                    found = value
    return found


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _given(error: OmegaConfBaseException, override: Override | None) -> object:
    if override is not None:
        return _text_of(override)[1]
    # An unknown key of a YAML file: OmegaConf keeps the key but not its value.
    return "…" if error.value is None else error.value


def _text_of(override: Override) -> tuple[str, str]:
    """Name and value as typed, without the operators ``+``, ``++`` and ``~``."""
    name, _, value = str(override.input_line).partition("=")
    return name.lstrip("+~"), value


def _expected(node: Node | None, field: str) -> str | None:
    """In words, the type a node accepts; None when it is not declared."""
    if node is None:
        return None
    if form := _form(field):
        return form
    kind: Any = node._metadata.ref_type
    return expected(kind | None if node._metadata.optional else kind, field)


def _form(field: str) -> str:
    """What a knob of text may say, in words; empty for other settings."""
    knob = KNOBS.get(field.removeprefix("recipe."))
    return knob.own_words if knob is not None and knob.choices is None else ""


def _first_sentence(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


@functools.cache
def _spoken() -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    """Settings, and choices of a group, by other words for them."""
    names = read_yaml(DECLARATIONS / "spoken_names.yaml")
    settings = {word: name for name, words in names["settings"].items() for word in words.split()}
    choices = {
        (group, word): name
        for group, chosen in names["choices"].items()
        for name, words in chosen.items()
        for word in words.split()
    }
    return settings, choices


def meant_setting(name: str) -> str | None:
    """The dotted setting that a word, or a dotted name ending in it, is another word for; where
    the word says its value, too, with that."""
    return _spoken()[0].get(_plain(name.rpartition(".")[2]))


def meant_choice(group: str, value: str) -> str | None:
    """The choice of a group that a value is another word for: of a cluster called as those that
    ship are, its GPUs by their number (``h200_64``: not those of another GPU); of a GPU without
    such a cluster eight."""
    clusters = [file.stem for file in (DECLARATIONS / "cluster").glob("*.yaml")]
    if group == "cluster" and (DECLARATIONS / "gpu" / f"{value}.yaml").is_file():
        return eight_of(value, clusters)
    counted = re.fullmatch(r"(\w+?)_(\d+)", value)
    gpus = [file.stem for file in (DECLARATIONS / "gpu").glob(f"{counted[1]}*")] if counted else ()
    if group == "cluster" and counted and gpus:
        # Others fill no servers: who writes h100_65 has mistyped one that ships.
        gpu = nearest_name(counted[1], sorted(gpus, reverse=True))
        return None if int(counted[2]) % 8 else f"{counted[2]}x{gpu}"
    return _spoken()[1].get((group, _plain(value)))


def _plain(word: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z][a-z])", "_", word.strip("'\"[] ")).replace("-", "_").lower()
