"""From what a user gives (a script, a file, arguments) to a job."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import sysconfig
import tomllib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainscout.reports.dialects.automodel_reader import AutomodelReader, is_automodel
from trainscout.reports.dialects.environment import VARIABLES
from trainscout.reports.dialects.fine_tuning import (
    AUTOMODEL,
    MEGATRON_SWIFT,
    TORCHTUNE,
    deepspeed_preset,
    tool_of,
    words_of_accelerate,
    words_of_adapter,
    words_of_arguments,
    words_of_deepspeed,
    words_of_launcher,
)
from trainscout.reports.dialects.huggingface_reader import MARKS, HuggingFaceReader
from trainscout.reports.dialects.megatron_bridge_reader import BridgeReader, is_configuration
from trainscout.reports.dialects.megatron_reader import MegatronReader
from trainscout.reports.dialects.megatron_swift import MegatronSwiftReader
from trainscout.reports.dialects.nanotron_reader import NanotronReader, is_nanotron
from trainscout.reports.dialects.options import Options, Reading, is_known, shown, words_of_table
from trainscout.reports.dialects.torchtitan_reader import TorchTitanReader
from trainscout.reports.dialects.torchtune_reader import TorchtuneReader, is_torchtune
from trainscout.reports.launch_import.launcher import (
    GpuCount,
    gpu_count,
    program_end,
    tool_started,
)
from trainscout.reports.launch_import.shell import Command, Script, read_script
from trainscout.reports.launch_import.shell_words import MOST_BYTES
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError, read_text
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.question.tuning import Distillation


@dataclass(frozen=True)
class ImportedLaunch:
    """A job as launch arguments describe it.

    ``framework`` names the software whose arguments they are, ``origin`` the file (or
    ``arguments``). ``names_model``: the model is what they say, not what was declared beside.
    """

    framework: str
    origin: str
    question: Question
    recipe: Recipe
    reading: Reading
    names_model: bool


Reader = MegatronReader | TorchTitanReader | HuggingFaceReader
_ALLOWED = (
    "a launch script, a file of arguments, a TorchTitan TOML file, DeepSpeed's JSON, a YAML file "
    "of Megatron-Bridge (run_config.yaml), nanotron, axolotl, LLaMA-Factory, torchtune or NeMo "
    "AutoModel, or arguments (--name ...)"
)

_SHOWN = 80
# Fields in which models of one shape may differ, and how many others are worth listing.
_UNCOMPARED = ("name", "source", "sequence_length", "head_dim")
_MOST_SHOWN = 4
# Where arguments come from that are no file's.
_TYPED = "the command line"


def read_launch(
    source: str,
    base: Question,
    stated: Collection[str],
    model_named: Callable[[str], Model],
    framework_named: Callable[[str], Framework],
) -> ImportedLaunch:
    """The job that ``source`` (a path, or arguments) describes.

    Args:
        base: declarations for what it does not say.
        stated: settings of the command line (``model.num_layers``, ``cluster.num_nodes``), which
            count more than the arguments.
        model_named: a declared model by name, for frameworks whose arguments name one.
        framework_named: declared software by name.

    Raises:
        InputError: for what cannot be read, or a value that the framework would refuse.
    """
    try:
        reader, script, origin, count = _parsed(source)
    except (RecursionError, MemoryError) as error:
        problem, allowed = "nests too deep to be read", "some hundred levels"
        raise InputError("given", source[:_SHOWN], problem, allowed) from error
    question, recipe = _question(reader, origin, base, stated, model_named, framework_named, count)
    for what in script.not_followed:
        reader.options.note(f"not followed: {what}")
    names_model, reading = reader.model_name is not None or reader.whole, reader.reading()
    if script.commands and not reading.used:
        problem = f"holds no argument of {reader.title} that is known"
        allowed = f"the configuration of what it starts: {_ALLOWED}"
        files = sorted(Path(source.strip()).parent.glob("*.json")) if _is_file(source) else []
        nearest = str(files[0]) if len(files) == 1 else None
        raise InputError("given", origin, problem, allowed, nearest)
    return ImportedLaunch(reader.title, origin, question, recipe, reading, names_model)


def _parsed(source: str) -> tuple[Reader, Script, str, GpuCount]:
    """What reads a source, the script that it is (else none), its name, and how many GPUs it
    starts."""
    text, origin = _text_of(source)
    script, count = Script(), GpuCount(None, None, None)
    if origin.endswith(".toml"):
        return TorchTitanReader(words_of_table(_toml(origin, text)), {}), script, origin, count
    if origin.endswith(".json"):
        table = _json("given", origin, text)
        of_adapter = "peft_type" in table
        words = words_of_adapter(table) if of_adapter else words_of_deepspeed(table)
        json_reader = HuggingFaceReader(words, {})
        if not of_adapter:
            json_reader.options.note(
                "DeepSpeed's JSON says neither recomputation nor kernels, which scripts turn on: "
                "no layer is recomputed (a.recompute=full to change it)"
            )
        return json_reader, script, origin, count
    if origin.endswith((".yaml", ".yml")):
        return _reader_of_yaml(source, origin), script, origin, count
    if origin == _TYPED and text.startswith("--"):
        # The shell has made these words already: only quotes are left to be read.
        script = Script(commands=[Command(tuple(_split(text)), {}, 1)])
    else:
        script = read_script(text, os.environ)
    command = _launch_command(script, origin)
    return _reader(command, script, source), script, origin, gpu_count(command, script, text)


def _reader_of_yaml(source: str, origin: str) -> Reader:
    """What reads the settings of a YAML file: Megatron-Bridge's, nanotron's, or a Trainer's."""
    table = _settings("given", Path(source.strip()))
    if is_configuration(table):
        return BridgeReader(table, {})
    if is_nanotron(table):
        return NanotronReader(table, {})
    words = words_of_arguments(table)
    if is_torchtune(words):
        return TorchtuneReader(words, {})
    if is_automodel(words):
        return AutomodelReader(words, {})
    marked = any(mark.removeprefix("--") in table for mark in MARKS)
    if marked or tool_of(map(str, table)) is not None:
        return HuggingFaceReader(_with_files(Command((origin,), {}, 1), words, source), {})
    raise InputError("given", origin, "holds no settings that are known", _ALLOWED)


def _reader(command: Command, script: Script, source: str) -> Reader:
    """What reads the arguments of a command, by its framework."""
    end = program_end(command)
    arguments = list(command.words[end:])
    own = [word for word in arguments if shown(word) in ("$@", "$*")]
    if own:
        script.not_followed.append(f"{shown(own[0])}, the script's own arguments")
        arguments = [word for word in arguments if word not in own]
    exported = {name: value for name in VARIABLES if (value := _set(script, command, name))}
    if _is_torchtitan(command):
        return TorchTitanReader(_with_configuration(arguments, source), exported)
    started = tool_started(command)
    if started == MEGATRON_SWIFT:
        return MegatronSwiftReader(_with_settings(arguments, source), exported)
    program = command.words[end - 1].replace("openrlhf.cli.", "") if end else ""
    if started == AUTOMODEL:
        return AutomodelReader(_with_settings(arguments, source), exported)
    if started == TORCHTUNE:
        words = _with_settings(_with_recipe_file(arguments, source), source)
        return TorchtuneReader(words, exported, program)
    if started is not None or _is_hugging_face(command):
        words = _with_files(command, _with_settings(arguments, source), source)
        return HuggingFaceReader(words, exported, program, started)
    return MegatronReader(arguments, exported)


def _text_of(source: str) -> tuple[str, str]:
    """The text and what to call it."""
    stripped = source.strip()
    if not stripped:
        raise InputError("given", source, "is empty", _ALLOWED)
    if "--" in stripped and not _is_file(stripped):
        return stripped, _TYPED
    path = Path(stripped)
    return read_text("given", path, MOST_BYTES, _ALLOWED), path.name


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # longer than names of files may be
        return False


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError("given", text, f"cannot be read: {error}", _ALLOWED) from error


def _launch_command(script: Script, origin: str) -> Command:
    """The command that starts the training: the one with most options."""
    programs = [command for command in script.commands if program_end(command)]
    if programs:
        return max(programs, key=lambda each: sum(word.startswith("--") for word in each.words))
    # A file of arguments: each line looks like a command of its own.
    words = [
        word
        for command in script.commands
        if command.words[0].startswith("--")
        for word in command.words
    ]
    if not words:
        problem = "starts no training program and holds no arguments"
        if script.not_followed:
            problem += f"; not followed: {', '.join(script.not_followed)}"
        raise InputError("given", origin, problem, _ALLOWED)
    return Command(tuple(words), {}, 1)


def _is_torchtitan(command: Command) -> bool:
    sections = ("--parallelism.", "--training.", "--job.config_file", "--job.config-file")
    return any(
        word == "torchtitan.train" or "torchtitan/train" in word or word.startswith(sections)
        for word in command.words
    )


def _is_hugging_face(command: Command) -> bool:
    """Whether Transformers' arguments or Accelerate start it; Megatron's name DeepSpeed, too."""
    names = {word.partition("=")[0].replace("-", "_") for word in command.words}
    accelerated = Path(command.words[0]).name == "accelerate"
    marks = {mark.replace("-", "_") for mark in MARKS}
    return (accelerated or bool(names & marks)) and "__num_layers" not in names


def _with_files(command: Command, words: list[str], source: str) -> list[str]:
    """Arguments behind what the configurations of Accelerate and DeepSpeed say that they name."""
    if Path(command.words[0]).name == "accelerate":
        launcher = Options(command.words[: max(1, program_end(command) - 1)])
        words = [*words_of_launcher(launcher), *words]
        if name := launcher.text("--config_file"):
            file = _settings("--config_file", _next_to("--config_file", name, source))
            words = [*words_of_accelerate(file), *words]
    named = Options(words)
    for option in ("--deepspeed", "--deepspeed_config", "--accelerate_config"):
        values = named.texts(option)
        table = deepspeed_preset(values[0]) if values else None
        if values and re.fullmatch(r"zero\d+\w*", values[0]) and table is None:
            raise InputError(option, values[0], "is no stage of ZeRO", "zero0 to zero3")
        if values and values[0].endswith((".json", ".conf")):
            text, _ = _text_of(str(_next_to(option, values[0], source)))
            table = _json(option, values[0], text)
        if values and values[0] in ("fsdp1", "fsdp2"):  # files of TRL
            words = [f"--fsdp_version={values[0][-1]}", *words]
        words = [*words_of_deepspeed(table or {}), *words]
    return words


def _with_settings(words: list[str], source: str) -> list[str]:
    """Arguments behind those of the file that comes first, or that ``--config`` names, as TRL and
    the tools around it take them; ``name=value`` counts as ``--name=value``."""
    named = Options(words).texts("--config") or words
    if not named or not named[0].endswith((".yaml", ".yml")):
        return words
    table = _settings("--config", _next_to("--config", named[0], source))
    own = [word for word in words if word not in (named[0], "--config", f"--config={named[0]}")]
    own = [word if word.startswith("--") or "=" not in word else f"--{word}" for word in own]
    return [*words_of_arguments(table), *own]


def _with_recipe_file(words: list[str], source: str) -> list[str]:
    """torchtune's arguments, where ``--config`` names a configuration that it ships with the file
    that has it: of the clone that the script is in, or of what is installed here.

    Raises:
        InputError: for one that is not to be found.
    """
    name = Options(words).text("--config")
    if name is None or name.endswith((".yaml", ".yml")):
        return words
    beside = Path(source).resolve() if _is_file(source) else Path().resolve()
    for folder in (Path(sysconfig.get_path("purelib")), *beside.parents):
        if (file := folder / "recipes/configs" / f"{name}.yaml").is_file():
            named = (name, f"--config={name}")
            return [word.replace(name, str(file)) if word in named else word for word in words]
    problem = "is a configuration that torchtune ships, and is not here"
    raise InputError("--config", name, problem, f"tune cp {name} FILE.yaml; --config FILE.yaml")


def _next_to(option: str, name: str, source: str) -> Path:
    """A file that a script names, from here, from where the script is or from above it."""
    beside = Path(source).resolve().parent if _is_file(source) else Path()
    above = (folder / name for folder in beside.parents)
    for path in (Path(name), beside / name, beside / Path(name).name, *above):
        if path.is_file():
            return path
    raise InputError(option, name, "is not to be found here", "given=<that file>")


def _settings(field: str, path: Path) -> dict[str, Any]:
    """Of a YAML file; none where it holds something else."""
    table = read_yaml(path, field)
    return table if isinstance(table, dict) else {}


def _json(field: str, origin: str, text: str) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except ValueError as error:
        raise InputError(field, origin, f"is no JSON: {error}") from error
    if not isinstance(table, dict):
        raise InputError(field, origin, "holds no settings", "an object with names and values")
    if "model_type" in table:
        raise InputError(field, origin, "describes a model, and no launch", f"model={origin}")
    return table


def _with_configuration(words: list[str], source: str) -> list[str]:
    """Arguments behind the settings of the TOML file that they name; they count more."""
    named = Options([word.replace("config_file", "config-file") for word in words])
    name = named.text("--job.config-file")
    if name is None:
        return words
    text, _ = _text_of(str(_next_to("--job.config-file", name, source)))
    return [*words_of_table(_toml(name, text)), *words]


def _set(script: Script, command: Command, name: str) -> str | None:
    value = command.environment.get(name) or script.variables.text(name)
    return value if value is not None and is_known(value) else None


def _toml(origin: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError("given", origin, f"is no TOML: {error}") from error


def _question(
    reader: Reader,
    origin: str,
    base: Question,
    stated: Collection[str],
    model_named: Callable[[str], Model],
    framework_named: Callable[[str], Framework],
    count: GpuCount,
) -> tuple[Question, Recipe]:
    model = _declared_model(reader, base.model, "model" in stated, model_named)
    model = _kept("model", reader.model(model), base.model, stated)
    if reader.model_name is None:
        model = _named(model, base.model, origin)
    if "model" in stated:
        _note_contradiction(reader, model, base.model)
    cluster = _cluster(count, base.cluster, reader, stated)
    recipe = reader.recipe(model, cluster.num_gpus)
    replicas = max(1, cluster.num_gpus // (recipe.tp * recipe.pp * recipe.cp))
    trained = _taught(reader, base.training, model, model_named)
    training = reader.training(trained, model, recipe, replicas)
    training = _kept("training", training, base.training, stated)
    framework = base.framework
    if reader.software is not None and "framework" not in stated:
        framework = framework_named(reader.software)
    framework = reader.framework(framework, model, recipe, training)
    framework = _kept("framework", framework, base.framework, stated)
    return Question(model, base.gpu, cluster, training, framework), recipe


def _declared_model(
    reader: Reader, base: Model, is_stated: bool, model_named: Callable[[str], Model]
) -> Model:
    if reader.model_name is None:
        return base
    try:
        return model_named(reader.model_name)
    except InputError:
        if not is_stated:
            raise
        reader.options.note(f"{reader.model_name} is not known here: it is model={base.name}")
        return base


def _taught(
    reader: Reader, base: Training, model: Model, model_named: Callable[[str], Model]
) -> Training:
    """With the teacher that arguments name, if it is known and can teach the model."""
    if reader.teacher_name is None or base.distillation is not None:
        return base
    try:
        taught = Distillation(model_named(reader.teacher_name))
        taught.check_for(model, None, None)
    except InputError as error:
        reader.options.note(f"{error.value} {error.problem}")
        return base
    return replace(base, distillation=taught)


def _named(model: Model, base: Model, origin: str) -> Model:
    """The model under a name of its own where it is not the declared one."""
    # The length it is usually trained at is no part of a shape, nor is how a head's size is spelt.
    spelt = replace(model, sequence_length=base.sequence_length, head_dim=base.head_dim)
    if spelt == base and model.qk_head_dim == base.qk_head_dim:
        return model
    name = "given" if origin == _TYPED else origin.partition(".")[0]
    return replace(model, name=name, source=f"arguments in {origin}")


def _note_contradiction(reader: Reader, model: Model, base: Model) -> None:
    """Say where the model that the command line names has another shape than the arguments."""
    if model.name == base.name:
        return
    fields = [field.name for field in dataclasses.fields(base) if field.name not in _UNCOMPARED]
    other = [name for name in fields if getattr(model, name) != getattr(base, name)]
    shown_fields = ", ".join(
        f"{name} {getattr(base, name)}, not {getattr(model, name)}" for name in other[:_MOST_SHOWN]
    )
    more = f" and {len(other) - _MOST_SHOWN} more" if len(other) > _MOST_SHOWN else ""
    reader.options.note(
        f"model={base.name} contradicts the arguments, which count: it has {shown_fields}{more}"
    )


def _kept(group: str, made: Any, base: Any, stated: Collection[str]) -> Any:
    """``made`` with the fields that the command line sets as they are in ``base``."""
    names = [field.name for field in dataclasses.fields(base) if f"{group}.{field.name}" in stated]
    return replace(made, **{name: getattr(base, name) for name in names})


def _cluster(count: GpuCount, base: Cluster, reader: Reader, stated: Collection[str]) -> Cluster:
    """The declared cluster with as many GPUs as the script starts, if the degrees divide them."""
    if count.in_sight > 1:
        layers = f"layers in a row over the {count.in_sight} GPUs of one process (device_map)"
        reader.options.assume(layers, "one GPU has them all")
    if {"cluster.num_nodes", "cluster.gpus_per_node"} & set(stated):
        return base
    per_node = count.per_node or min(base.gpus_per_node, count.total or base.gpus_per_node)
    nodes = count.nodes
    if nodes is None and count.total is not None and count.total % per_node == 0:
        nodes = count.total // per_node
    if nodes is None:
        reader.options.note(
            f"the number of GPUs is that of cluster={base.name}, {base.num_gpus} "
            "(cluster.num_nodes= to change it)"
        )
        return base
    if (nodes, per_node) == (base.num_nodes, base.gpus_per_node):
        return base
    if nodes * per_node % reader.degrees:
        reader.options.note(
            f"it starts {nodes} x {per_node} GPUs, which tp x pp x cp = {reader.degrees} does not "
            f"divide: the {base.num_gpus} of cluster={base.name} are taken"
        )
        return base
    reader.options.note(
        f"{nodes} x {per_node} GPUs, as it starts; all else of the cluster is {base.name}'s "
        "(cluster.num_nodes= to change it)"
    )
    return replace(base, name=f"{base.name} resized", num_nodes=nodes, gpus_per_node=per_node)
