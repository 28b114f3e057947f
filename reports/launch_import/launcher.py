"""How many GPUs a launch script starts, from the launcher's arguments and the job's directives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainscout.reports.dialects.options import is_known
from trainscout.reports.launch_import.shell import Command, Script

_LAUNCHER_NAMES = (
    *("torchrun", "torch.distributed.run", "torch.distributed.launch"),
    *("deepspeed", "accelerate"),
)
_NODES = ("--nnodes", "--num_nodes", "--num_machines")
_PER_NODE = ("--nproc-per-node", "--nproc_per_node", "--num_gpus")
_PROCESSES = ("--num_processes",)
_SBATCH = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_NODE_VARIABLES = ("NNODES", "NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_PER_NODE_VARIABLES = ("GPUS_PER_NODE", "NGPUS_PER_NODE", "NUM_GPUS_PER_NODE", "NPROC_PER_NODE")
_WORLD_VARIABLES = ("WORLD_SIZE", "NGPU", "NUM_GPUS")


@dataclass(frozen=True)
class GpuCount:
    """Nodes and GPUs a node, None where the script does not say; ``total`` alone where it says
    only that."""

    nodes: int | None
    per_node: int | None
    total: int | None


def gpu_count(command: Command, script: Script, text: str) -> GpuCount:
    """What the launcher in front of the training program says; else Slurm's directives; else
    variables that scripts commonly keep it in."""
    counts = _launcher_options(command)
    directives = _slurm(text)
    nodes = _first(counts, _NODES) or directives.get("nodes") or _variable(script, _NODE_VARIABLES)
    per_node = (
        _first(counts, _PER_NODE)
        or directives.get("per_node")
        or _variable(script, _PER_NODE_VARIABLES)
    )
    total = nodes * per_node if nodes and per_node else _first(counts, _PROCESSES)
    return GpuCount(nodes, per_node, total or _variable(script, _WORLD_VARIABLES))


def _launcher_options(command: Command) -> Mapping[str, int]:
    found: dict[str, int] = {}
    words = command.words
    starts = [at for at, word in enumerate(words) if word.rpartition("/")[2] in _LAUNCHER_NAMES]
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


def _variable(script: Script, names: tuple[str, ...]) -> int | None:
    for name in names:
        value = script.variables.text(name)
        if value is not None and value.isdigit() and int(value) > 0:
            return int(value)
    return None
