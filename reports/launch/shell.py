"""Shell scripts that start one process a GPU with torchrun, on every node alike."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from trainscout.reports.wording import format_question, format_recipe
from trainscout.simulators.predictor.question.job import Job

_WIDTH = 98

# Scripts know where they lie, for the files beside them.
HERE = 'here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"'


def title_lines(job: Job) -> list[str]:
    """What a launch file runs, and how the global batch comes about."""
    recipe = job.recipe
    return [
        format_question(job),
        f"{format_recipe(recipe, job.dp)}; global batch {job.training.global_batch_size} = "
        f"{job.dp} replicas x {job.num_micro_batches} micro-batches x {recipe.micro_batch}",
    ]


def comment(lines: Iterable[str]) -> list[str]:
    """Each line as a wrapped comment."""
    wrapped: list[str] = []
    for line in lines:
        wrapped += textwrap.wrap(
            line, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False
        )
    return wrapped


def shell_script(
    header: Sequence[str],
    environment: Mapping[str, str],
    preparation: Sequence[str],
    job: Job,
    program: Sequence[tuple[str, ...]],
) -> str:
    """A script that runs ``program`` (groups of one option with its values) under torchrun.

    NODE_RANK, MASTER_ADDR and MASTER_PORT come from the job launcher (``slurm.sbatch`` sets
    them); without them it runs on one node.
    """
    lines = ["#!/usr/bin/env bash", *comment(header), "set -euo pipefail"]
    lines += [f"export {name}={value}" for name, value in environment.items()]
    lines += preparation
    command = ["torchrun", *map(option, torchrun_options(job)), *map(option, program)]
    return "\n".join(lines) + "\n\n" + " \\\n  ".join(command) + "\n"


def torchrun_options(job: Job) -> list[tuple[str, ...]]:
    """Where each of the job's processes runs and how they find each other."""
    return [
        ("--nnodes", str(job.cluster.num_nodes)),
        ("--nproc-per-node", str(job.cluster.gpus_per_node)),
        ("--node-rank", '"${NODE_RANK:-0}"'),
        ("--master-addr", '"${MASTER_ADDR:-localhost}"'),
        ("--master-port", '"${MASTER_PORT:-6000}"'),
    ]


def option(words: tuple[str, ...]) -> str:
    """One option as shell text. Shell variables stay live; everything else is quoted."""
    return " ".join(word if word.startswith(('"$', "${")) else shlex.quote(word) for word in words)


def resumed(words: str) -> list[str]:
    """Lines that define ``resume`` as ``words`` where CHECKPOINTS is set, else as nothing."""
    return ["resume=()", 'if [[ -n "${CHECKPOINTS:-}" ]]; then', f"  resume=({words})", "fi"]


# Expands to nothing where ``resume`` is empty, with the bash of 2011 (4.2) too.
RESUME = '${resume[@]+"${resume[@]}"}'
