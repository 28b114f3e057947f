"""From what a user gives (a script, a file, arguments) to a job."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainscout.reports.dialects.automodel_reader import AutomodelReader, is_automodel
from trainscout.reports.dialects.environment import FAMILIES, VARIABLES
from trainscout.reports.dialects.fine_tuning import (
    AUTOMODEL,
    MEGATRON_SWIFT,
    TORCHTUNE,
    tool_of,
    words_of_adapter,
    words_of_arguments,
    words_of_deepspeed,
)
from trainscout.reports.dialects.huggingface_reader import MARKS, HuggingFaceReader
from trainscout.reports.dialects.megatron_bridge_reader import (
    BridgeReader,
    configuration_in,
    is_configuration,
    with_overrides,
)
from trainscout.reports.dialects.megatron_reader import MegatronReader
from trainscout.reports.dialects.megatron_swift import MegatronSwiftReader
from trainscout.reports.dialects.nanotron_reader import NanotronReader, is_nanotron
from trainscout.reports.dialects.options import Reading, is_known, shown, words_of_table
from trainscout.reports.dialects.torchtitan_reader import TorchTitanReader
from trainscout.reports.dialects.torchtune_reader import TorchtuneReader, is_torchtune
from trainscout.reports.launch_import.launcher import (
    GpuCount,
    gpu_count,
    program_end,
    tool_started,
)
from trainscout.reports.launch_import.named_files import (
    ALLOWED,
    BRIDGE,
    TYPED,
    bridge_module,
    is_file,
    json_of,
    settings_of,
    text_of,
    toml_of,
    with_configuration,
    with_files,
    with_recipe_file,
    with_settings,
)
from trainscout.reports.launch_import.shell import Command, Script, read_script
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.question import LIMITS, Question
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

_SHOWN = 80
# Fields in which models of one shape may differ, and how many others are worth listing.
_UNCOMPARED = ("name", "source", "sequence_length", "head_dim")
_MOST_SHOWN = 4
# What a program or a log is read by.
_INSTEAD = {
    ".py": "the command that starts it, in a file of its own; trainscout run -- {} runs it",
    ".log": "what the run was started with; trainscout calibrate watch --from-log {} holds it "
    "against what is predicted",
}


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
        words = (word for command in script.commands for word in command.words)
        program = next((word for word in words if word.endswith(".py")), None)
        allowed = f"the configuration of what it starts: {ALLOWED}"
        if program is not None:
            allowed = (
                f"the file of its settings; where {shown(program)} has them itself: trainscout "
                f"live --world-size {count.total or 8} --gpu h100 -- {shown(program)}"
            )
        files = sorted(Path(source.strip()).parent.glob("*.json")) if is_file(source) else []
        nearest = str(files[0]) if len(files) == 1 else None
        raise InputError("given", origin, problem, allowed, nearest)
    return ImportedLaunch(reader.title, origin, question, recipe, reading, names_model)


def _parsed(source: str) -> tuple[Reader, Script, str, GpuCount]:
    """What reads a source, the script that it is (else none), its name, and how many GPUs it
    starts."""
    text, origin = text_of(source)
    script, count = Script(), GpuCount(None, None, None)
    if origin.endswith(".toml"):
        return TorchTitanReader(words_of_table(toml_of(origin, text)), {}), script, origin, count
    if origin.endswith(".json"):
        table = json_of("given", origin, text)
        of_adapter = "peft_type" in table
        words = words_of_adapter(table) if of_adapter else words_of_deepspeed(table)
        json_reader = HuggingFaceReader(words, {})
        if not of_adapter:
            json_reader.options.note(
                "DeepSpeed's JSON says neither recomputation nor kernels nor adapters, which "
                "scripts turn on: no layer is recomputed, and what is trained is as declared "
                "(a.recompute=full, training=lora to change it)"
            )
        return json_reader, script, origin, count
    if origin.endswith((".yaml", ".yml")):
        return _reader_of_yaml(source, origin), script, origin, count
    if origin.endswith(".py") and BRIDGE in text:
        table, script.not_followed = configuration_in(text)
        return BridgeReader(table, None), script, origin, count
    if origin == TYPED and text.startswith("--"):
        # The shell has made these words already: only quotes are left to be read.
        script = Script(commands=[Command(tuple(_split(text)), {}, 1)])
    else:
        script = read_script(text, os.environ)
    command = _launch_command(script, origin)
    return _reader(command, script, source), script, origin, gpu_count(command, script, text)


def _reader_of_yaml(source: str, origin: str) -> Reader:
    """What reads the settings of a YAML file: Megatron-Bridge's, nanotron's, or a Trainer's."""
    table = settings_of("given", Path(source.strip()))
    if is_configuration(table):
        return BridgeReader(table, None)
    if is_nanotron(table):
        return NanotronReader(table, {})
    words = words_of_arguments(table)
    if is_torchtune(words):
        return TorchtuneReader(words, {})
    if is_automodel(words):
        return AutomodelReader(words, {})
    marked = any(mark.removeprefix("--") in table for mark in MARKS)
    if marked or tool_of(map(str, table)) is not None:
        return HuggingFaceReader(with_files(Command((origin,), {}, 1), words, source), {})
    raise InputError("given", origin, "holds no settings that are known", ALLOWED)


def _reader(command: Command, script: Script, source: str) -> Reader:
    """What reads the arguments of a command, by its framework."""
    end = program_end(command)
    arguments = list(command.words[end:])
    own = [word for word in arguments if shown(word) in ("$@", "$*")]
    if own:
        script.not_followed.append(f"{shown(own[0])}, the script's own arguments")
        arguments = [word for word in arguments if word not in own]
    own_names = (*script.variables.names(), *command.environment)
    names = (*VARIABLES, *(name for name in own_names if name.startswith(FAMILIES)))
    exported = {name: value for name in names if (value := _set(script, command, name))}
    if _is_torchtitan(command):
        return TorchTitanReader(with_configuration(arguments, source), exported)
    started = tool_started(command)
    if started == MEGATRON_SWIFT:
        return MegatronSwiftReader(with_settings(arguments, source), exported)
    if started is None and end and (module := bridge_module(command.words[end - 1], source)):
        table, changes = configuration_in(module)
        script.not_followed += [*changes, *with_overrides(table, arguments)]
        return BridgeReader(table, exported)
    program = command.words[end - 1].replace("openrlhf.cli.", "") if end else ""
    if started == AUTOMODEL:
        return AutomodelReader(with_settings(arguments, source), exported)
    if started == TORCHTUNE:
        words = with_settings(with_recipe_file(arguments, source), source)
        return TorchtuneReader(words, exported, program)
    if started is not None or _is_hugging_face(command):
        words = with_files(command, with_settings(arguments, source), source)
        return HuggingFaceReader(words, exported, program, started)
    return MegatronReader(arguments, exported)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError("given", text, f"cannot be read: {error}", ALLOWED) from error


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
        allowed = _INSTEAD.get(Path(origin).suffix, ALLOWED).format(origin)
        raise InputError("given", origin, problem, allowed)
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


def _set(script: Script, command: Command, name: str) -> str | None:
    value = command.environment.get(name) or script.variables.text(name)
    return value if value is not None and is_known(value) else None


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
    if training.tokens < LIMITS["training.tokens"].least:
        few = f"a trial of {training.tokens:,.0f} tokens"
        reader.options.note(f"{few}: as many as declared are trained, {base.training.tokens:,.0f}")
        training = replace(training, tokens=base.training.tokens)
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
    name = "given" if origin == TYPED else origin.partition(".")[0]
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
    started = (count.nodes or 0) * (count.per_node or 0) or count.total
    if not {"cluster", "gpus"} & set(stated):
        what = "network" if "gpu" in stated else "GPUs"
        reader.options.note(
            f"on which {what} is not said: that of cluster={base.name} is assumed "
            f"(gpus={started or base.num_gpus}xH100 or cluster= to change it)"
        )
    if {"cluster.num_nodes", "cluster.gpus_per_node"} & set(stated):
        return base
    if "gpus" in stated:
        if started and started != base.num_gpus:
            reader.options.note(f"it starts {started} GPUs: the {base.num_gpus} of gpus= count")
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
