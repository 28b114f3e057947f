"""What people write on a command line, as the settings that Hydra knows."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from trainscout.commands.hydra_setup import check_defaults
from trainscout.conf.catalogue import Catalogue, load_catalogue
from trainscout.conf.counted_gpus import counted_fields, counts_gpus, with_named_gpu
from trainscout.conf.hub_names import hub_choice
from trainscout.conf.named_files import config_file
from trainscout.simulators.predictor.io.values import spoken_number
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, read_yaml
from trainscout.simulators.predictor.question.errors import InputError

# Hydra's own, and those of its arguments that take a value.
_OPTIONS = re.compile(
    r"--(help|hydra-help|version|cfg|resolve|package|run|multirun|info"
    r"|config-path|config-name|config-dir|experimental-rerun)(=.*)?"
)
_FOLDER = ("--config-dir", "-cd")
_TOKENS = re.compile(r"(\+*(?:[\w.@]+\.)?tokens)=(.+)")


def as_settings(config_name: str, arguments: Sequence[str]) -> list[str]:
    """The arguments with what is said otherwise put as settings: ``gpus=64xH100`` becomes a
    cluster, a file a choice, and ``training.tokens=1T`` a number.

    Raises:
        InputError: for ``--name value``, and for what cannot be put so.
    """
    _refuse_options(arguments)
    # Settings on both sides of an option are more than Hydra's parser takes.
    folders = [at + 1 for at, word in enumerate(arguments) if word in _FOLDER]
    setting = re.compile(r"~|[^-].*=")
    ordered = sorted(
        enumerate(arguments), key=lambda each: each[0] in folders or not setting.match(each[1])
    )
    return [
        _argument(word) for _, each in ordered for word in _settings(config_name, each, arguments)
    ]


def _refuse_options(arguments: Sequence[str]) -> None:
    for word, after in itertools.pairwise(arguments):
        if word in (*GROUPS, "gpus") and re.fullmatch(r"\w[\w./-]*", after):
            refused, form = f"{word} {after}", f"{word}={after}"
            raise InputError("command line", refused, "is not of the form name=value", form)
    for at, word in enumerate(arguments):
        if word in ("-sc", "--shell-completion"):
            raise InputError("command line", word, "is no option", "trainscout completion SHELL")
        if re.match(r"--|-\w[\w.]+=", word) and not _OPTIONS.fullmatch(word):
            name, equals, value = word.lstrip("-").partition("=")
            refused = word
            if not equals and at + 1 < len(arguments) and not arguments[at + 1].startswith("-"):
                value = arguments[at + 1] if "=" not in arguments[at + 1] else ""
                refused = f"{word} {value}".strip()
            setting = f"{name.replace('-', '_')}={value or 'VALUE'}"
            raise InputError("command line", refused, "is no option", f"settings: {setting}")


def _settings(config_name: str, argument: str, arguments: Sequence[str]) -> Iterator[str]:
    name, equals, value = argument.partition("=")
    plain = value.strip("'\"")
    tokens = _TOKENS.fullmatch(argument)
    if (equals and name == "gpus") or (name == "cluster" and counts_gpus(plain)):
        yield from _counted(config_name, name, plain, arguments)
    elif tokens is not None:
        yield f"{tokens[1]}={','.join(map(_number, tokens[2].split(',')))}"
    else:
        yield argument


def _number(text: str) -> str:
    found = spoken_number(text)
    # As short as is exact: what is refused is shown so.
    return (
        text
        if found is None
        else min(f"{found:g}", f"{found!r}", key=lambda word: (float(word) != found, len(word)))
    )


def _counted(config_name: str, field: str, text: str, arguments: Sequence[str]) -> Iterator[str]:
    if field == "gpus" and any(word.startswith("cluster=") for word in arguments):
        raise InputError(field, text, "is given beside cluster=", "one of them")
    gpus = _catalogue(arguments).gpus
    names = []
    for each in text.strip("[]").split(","):
        fields = counted_fields(field, each.strip(), gpus)
        names.append(str(fields["name"]))
        ConfigStore.instance().store(names[-1], fields, group="cluster")
    if config_name != "plan":
        yield f"cluster={','.join(names)}"
        return
    counts = [int(name.partition("x")[0]) for name in names]
    kinds = {name.partition("x")[2]: name for name in names}
    if len(kinds) > 1 and len(set(counts)) > 1:
        yield from (f"sweep.clusters=[{','.join(names)}]", "sweep.num_gpus=[]")
        return
    # Sizes of one GPU are one cluster at several sizes.
    yield f"sweep.clusters=[{','.join(kinds.values())}]"
    yield f"sweep.num_gpus=[{','.join(map(str, sorted(set(counts))))}]"


def _catalogue(arguments: Sequence[str]) -> Catalogue:
    """What ships, and what ``--config-dir`` has."""
    folders = [word.partition("=")[2] for word in arguments if word.startswith("--config-dir=")]
    folders += [after for word, after in itertools.pairwise(arguments) if word in _FOLDER]
    return load_catalogue(*map(Path, folders))


GROUPS = frozenset(folder.name for folder in DECLARATIONS.iterdir() if any(folder.glob("*.yaml")))
"""What has choices."""


def _argument(argument: str) -> str:
    """The argument with a file that stands where a choice does made a choice of this process,
    called after it: a YAML file of any group (``cluster=ours.yaml``), the ``config.json`` of a
    model or its directory. A model's name on the Hugging Face Hub becomes that of what ships."""
    name, equals, value = argument.partition("=")
    group = name.lstrip("+").partition("@")[0]
    if group not in GROUPS or not equals:
        return argument
    if value.startswith("["):
        # Hydra would lay one declaration over the other.
        problem, allowed = "is a list", f"one choice; several in turn: -m {group}=A,B"
        raise InputError(group, value, problem, allowed)
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
    check_defaults(file, content.get("defaults", []))
    return with_named_gpu(content) if group == "cluster" else content


def _stored(group: str, name: str, fields: dict[str, Any]) -> str:
    choice = re.sub(r"\W+", "_", name) or group
    # Under the name of one that ships, Hydra would take that.
    if (DECLARATIONS / group / f"{choice}.yaml").is_file():
        choice = f"own_{choice}"
    ConfigStore.instance().store(choice, fields, group=group)
    return choice
