"""What a launch script starts, and on how many GPUs: the launcher's arguments and the job's
directives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainscout.reports.dialects.fine_tuning import (
    AUTOMODEL,
    AXOLOTL,
    FACTORY,
    MEGATRON_SWIFT,
    OPENRLHF,
    SWIFT,
    TORCHTUNE,
    TRL,
)
from trainscout.reports.dialects.options import is_known
from trainscout.reports.launch_import.shell import Command, Script
from trainscout.simulators.predictor.question.errors import InputError

_TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_LAUNCHER_NAMES = (
    *_TORCHRUN,
    *("deepspeed", "accelerate", "trl", "tune", "automodel"),
)
_NODES = ("--nnodes", "--num_nodes", "--num_machines")
_PER_NODE = ("--nproc-per-node", "--nproc_per_node", "--num_gpus")
_PROCESSES = ("--num_processes",)
_SBATCH = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_NODE_VARIABLES = ("NNODES", "NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_PER_NODE_VARIABLES = ("GPUS_PER_NODE", "NGPUS_PER_NODE", "NUM_GPUS_PER_NODE", "NPROC_PER_NODE")
_WORLD_VARIABLES = ("WORLD_SIZE", "NGPU", "NUM_GPUS")
_MODULES = ("torchtitan.train", "axolotl.cli.train", "openrlhf.cli.train_")
# Commands of tools, with what of them trains.
_TOOLS = {
    "swift": (SWIFT, ("sft", "pt", "rlhf")),
    "megatron": (MEGATRON_SWIFT, ("sft", "pt", "rlhf")),
    "trl": (TRL, ("sft", "dpo", "kto", "grpo", "rloo", "reward")),
    "axolotl": (AXOLOTL, ("train",)),
    "llamafactory-cli": (FACTORY, ("train",)),
    "tune": (TORCHTUNE, ("run",)),
    "automodel": (AUTOMODEL, ("finetune", "pretrain", "kd", "benchmark")),
}
_OF_FILES = {"axolotl.cli.train": AXOLOTL, "cli/_megatron/": MEGATRON_SWIFT, "swift/cli/": SWIFT}
_OF_FILES |= {"trl/scripts/": TRL, "openrlhf.cli.train_": OPENRLHF}
_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class GpuCount:
    """Nodes and GPUs a node, None where the script does not say; ``total`` alone where it says
    only that. ``in_sight`` of a lone process are so many, over which ms-swift puts layers."""

    nodes: int | None
    per_node: int | None
    total: int | None
    in_sight: int = 1


def program_end(command: Command) -> int:
    """Behind which word the arguments of the training program begin; 0: it starts none."""
    words = command.words
    for at, word in enumerate(words):
        if word.endswith(".py") or word.startswith(_MODULES):
            return at + 1
        tool, verbs = _TOOLS.get(_name(word), ("", ()))
        if tool == AUTOMODEL:  # with or without a verb and ``-c`` in front of its file
            return next((n for n, each in enumerate(words) if each.endswith((".yaml", ".yml"))), 0)
        if words[at + 1 : at + 2] and words[at + 1] in verbs:
            # The launcher's options and the recipe stand in front of torchtune's.
            own = (n for n, each in enumerate(words) if each.partition("=")[0] == "--config")
            return next(own, at + 2) if tool == TORCHTUNE else at + 2
    return 0


def tool_started(command: Command) -> str | None:
    """The tool around Transformers' Trainer that a command starts."""
    for word in command.words[: program_end(command)]:
        if _name(word) in _TOOLS:
            return _TOOLS[_name(word)][0]
        for part, tool in _OF_FILES.items():
            if part in word:
                return tool
    return None


def gpu_count(command: Command, script: Script, text: str) -> GpuCount:
    """What the launcher in front of the training program says; else Slurm's directives; else
    variables that scripts commonly keep it in."""
    counts = _launcher_options(command)
    directives = _slurm(text)
    tool, own = tool_started(command), command.environment
    nodes = _first(counts, _NODES) or directives.get("nodes")
    nodes = nodes or _variable(script, own, _NODE_VARIABLES)
    per_node = _first(counts, _PER_NODE) or directives.get("per_node")
    per_node, in_sight = per_node or _variable(script, own, _PER_NODE_VARIABLES), 1
    if tool == TORCHTUNE:  # as torchrun
        nodes = nodes or 1
        single = command.words[program_end(command) - 1].endswith("_single_device")
        per_node = 1 if single else per_node
    if tool is not None and not any(_name(word) in _LAUNCHER_NAMES for word in command.words):
        # They take the GPUs in sight of one node; ms-swift takes one process unless it is told.
        devices = own.get(_DEVICES) or script.variables.text(_DEVICES) or ""
        seen = devices.count(",") + 1 if devices else None
        if tool == SWIFT and per_node in (None, 1):
            in_sight = seen or 1
        per_node = per_node or (1 if tool in (SWIFT, MEGATRON_SWIFT) else seen)
        nodes = nodes or (1 if per_node else None)
    named = [_name(word.partition("=")[0]) for word in command.words]
    if per_node and {*named} & {*_TORCHRUN} and not {"--nnodes"} & {*named}:
        nodes = nodes or 1  # its default
    processes = _first(counts, _PROCESSES)
    if nodes and processes and per_node is None:
        per_node = processes // nodes or None
    total = nodes * per_node if nodes and per_node else processes
    return GpuCount(nodes, per_node, total or _variable(script, own, _WORLD_VARIABLES), in_sight)


def _name(word: str) -> str:
    """A program without its folder."""
    return word.rpartition("/")[2]


def _launcher_options(command: Command) -> Mapping[str, int]:
    found: dict[str, int] = {}
    words = command.words
    starts = [at for at, word in enumerate(words) if _name(word) in _LAUNCHER_NAMES]
    if not starts:
        return found
    for at in range(starts[0], len(words)):
        name, equals, value = words[at].partition("=")
        if words[at].endswith(".py"):
            break
        if not equals and at + 1 < len(words):
            value = words[at + 1]
        if value.isdigit() and is_known(value) and int(value) > 0:
            found.setdefault(name, int(value))
        elif name in (*_NODES, *_PER_NODE, *_PROCESSES) and is_known(value):
            _refuse_words(name, value)
    return found


def _first(counts: Mapping[str, int], names: tuple[str, ...]) -> int | None:
    return next((counts[name] for name in names if name in counts), None)


def _slurm(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in _SBATCH.findall(text):
        if match := re.search(r"(?:--nodes[= ]|-N[ =]?)(\d+)\b", line):
            found["nodes"] = int(match[1])
        if match := re.search(r"--(?:gpus-per-node|gres)[= ](?:gpu:)?(?:\w+:)?(\d+)\b", line):
            found["per_node"] = int(match[1])
    return found


def _variable(script: Script, own: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = own.get(name) or script.variables.text(name)
        if value is not None and value.isdigit() and int(value) > 0:
            return int(value)
        if name in _PER_NODE_VARIABLES:
            _refuse_words(name, value or "")
    return None


def _refuse_words(name: str, value: str) -> None:
    if re.fullmatch(r"0+|[a-z]+", value) and value not in ("auto", "gpu", "cpu", "xpu"):
        what = "nodes" if name in _NODES else "GPUs"
        raise InputError(name, value, f"is no number of {what}", "a whole number >= 1")
