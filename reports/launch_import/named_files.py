"""The files that a launch is given as, and those that it names: their settings as arguments."""

from __future__ import annotations

import json
import re
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

from trainscout.reports.dialects.fine_tuning import (
    deepspeed_preset,
    words_of_accelerate,
    words_of_arguments,
    words_of_deepspeed,
    words_of_launcher,
)
from trainscout.reports.dialects.options import Options, shown, words_of_table
from trainscout.reports.launch_import.launcher import program_end
from trainscout.reports.launch_import.shell import Command
from trainscout.reports.launch_import.shell_words import MOST_BYTES
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.errors import InputError, read_text

ALLOWED = (
    "a launch script, a file of arguments, a TorchTitan TOML file, DeepSpeed's JSON, a YAML file "
    "of Megatron-Bridge (run_config.yaml; its Python, too), nanotron, axolotl, LLaMA-Factory, "
    "torchtune or NeMo AutoModel, or arguments (--name ...)"
)
BRIDGE = "megatron.bridge"
# Where arguments come from that are no file's.
TYPED = "the command line"


def text_of(source: str) -> tuple[str, str]:
    """The text and what to call it."""
    stripped = source.strip()
    if not stripped:
        raise InputError("given", source, "is empty", ALLOWED)
    if "--" in stripped and not is_file(stripped):
        return stripped, TYPED
    path = Path(stripped)
    return read_text("given", path, MOST_BYTES, ALLOWED), path.name


def is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # longer than names of files may be
        return False


def with_files(command: Command, words: list[str], source: str) -> list[str]:
    """Arguments behind what the configurations of Accelerate and DeepSpeed say that they name."""
    if Path(command.words[0]).name == "accelerate":
        launcher = Options(command.words[: max(1, program_end(command) - 1)])
        words = [*words_of_launcher(launcher), *words]
        if name := launcher.text("--config_file"):
            file = settings_of("--config_file", _next_to("--config_file", name, source))
            words = [*words_of_accelerate(file), *words]
    named = Options(words)
    for option in ("--deepspeed", "--deepspeed_config", "--accelerate_config"):
        values = named.texts(option)
        table = deepspeed_preset(values[0]) if values else None
        if values and re.fullmatch(r"zero\d+\w*", values[0]) and table is None:
            raise InputError(option, values[0], "is no stage of ZeRO", "zero0 to zero3")
        if values and values[0].endswith((".json", ".conf")):
            text, _ = text_of(str(_next_to(option, values[0], source)))
            table = json_of(option, values[0], text)
        if values and values[0] in ("fsdp1", "fsdp2"):  # files of TRL
            words = [f"--fsdp_version={values[0][-1]}", *words]
        words = [*words_of_deepspeed(table or {}), *words]
    return words


def with_settings(words: list[str], source: str) -> list[str]:
    """Arguments behind those of the file that comes first, or that ``--config`` names, as TRL and
    the tools around it take them; ``name=value`` counts as ``--name=value``."""
    named = Options(words).texts("--config") or words
    if not named or not named[0].endswith((".yaml", ".yml")):
        return words
    table = settings_of("--config", _next_to("--config", named[0], source))
    own = [word for word in words if word not in (named[0], "--config", f"--config={named[0]}")]
    own = [word if word.startswith("--") or "=" not in word else f"--{word}" for word in own]
    return [*words_of_arguments(table), *own]


def with_recipe_file(words: list[str], source: str) -> list[str]:
    """torchtune's arguments, where ``--config`` names a configuration that it ships with the file
    that has it: of the clone that the script is in, or of what is installed here.

    Raises:
        InputError: for one that is not to be found.
    """
    name = Options(words).text("--config")
    if name is None or name.endswith((".yaml", ".yml")):
        return words
    beside = Path(source).resolve() if is_file(source) else Path().resolve()
    for folder in (Path(sysconfig.get_path("purelib")), *beside.parents):
        if (file := folder / "recipes/configs" / f"{name}.yaml").is_file():
            named = (name, f"--config={name}")
            return [word.replace(name, str(file)) if word in named else word for word in words]
    problem = "is a configuration that torchtune ships, and is not here"
    raise InputError("--config", name, problem, f"tune cp {name} FILE.yaml; --config FILE.yaml")


def with_configuration(words: list[str], source: str) -> list[str]:
    """Arguments behind the settings of the TOML file that they name; they count more."""
    named = Options([word.replace("config_file", "config-file") for word in words])
    name = named.text("--job.config-file")
    if name is None:
        return words
    text, _ = text_of(str(_next_to("--job.config-file", name, source)))
    return [*words_of_table(toml_of(name, text)), *words]


def bridge_module(program: str, source: str) -> str | None:
    """The text of a program beside a script that trains with Megatron-Bridge."""
    try:
        path = _next_to("given", shown(program), source)
        text = read_text("given", path, MOST_BYTES, ALLOWED)
    except InputError:
        return None
    return text if BRIDGE in text else None


def _next_to(option: str, name: str, source: str) -> Path:
    """A file that a script names, from here, from where the script is or from above it."""
    beside = Path(source).resolve().parent if is_file(source) else Path()
    above = (folder / name for folder in beside.parents)
    for path in (Path(name), beside / name, beside / Path(name).name, *above):
        if path.is_file():
            return path
    allowed = "a copy of it beside what names it, or given=<that file>"
    raise InputError(option, name, "is not to be found here", allowed)


def settings_of(field: str, path: Path) -> dict[str, Any]:
    """Of a YAML file; none where it holds something else."""
    table = read_yaml(path, field)
    return table if isinstance(table, dict) else {}


def json_of(field: str, origin: str, text: str) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except ValueError as error:
        raise InputError(field, origin, f"is no JSON: {error}") from error
    if not isinstance(table, dict):
        raise InputError(field, origin, "holds no settings", "an object with names and values")
    if "model_type" in table:
        raise InputError(field, origin, "describes a model, and no launch", f"model={origin}")
    return table


def toml_of(origin: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError("given", origin, f"is no TOML: {error}") from error
