"""The command ``trainscout``: a table of what there is, and the way to it.

Nothing is loaded before it is known what is asked for: ``trainscout --help`` needs neither Hydra
nor NumPy.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

_THREADS = "OPENBLAS_NUM_THREADS"
_LABORATORY, _CLUSTER = "simulators.laboratory", "simulators.virtual_cluster"

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "recipes": {
        "optimize": ("commands.optimize", "search for the best recipe of a model on a cluster"),
        "simulate": ("commands.simulate", "predict one recipe: step time, memory, cost, and why"),
        "explain": ("commands.explain", "compare two recipes; read your launch script as one"),
        "plan": ("commands.plan", "plan capacity: which GPUs, how many, how long, for how much"),
        "list": ("commands.listing", "the models, GPUs, clusters, spaces, searches that ship"),
    },
    "scripts": {
        "run": (
            f"{_CLUSTER}.emulation.launch.launcher",
            "run your script on virtual GPUs; write traces",
        ),
        "live": (f"{_CLUSTER}.live.launcher", "run your script on a simulated cluster's clock"),
        "tune": ("commands.tune", "search over your own script's settings"),
        "trace": ("", "show, collate, replay, export traces; read profiles of real GPUs"),
        "trace show": (f"{_CLUSTER}.traces.commands:show", "what one rank's trace amounts to"),
        "trace collate": (f"{_CLUSTER}.traces.commands:join", "match the ranks; check them"),
        "trace replay": (f"{_CLUSTER}.execution.command", "predict a traced job's step"),
        "trace export": (f"{_CLUSTER}.traces.commands:export", "write Perfetto or Chakra files"),
        "trace kineto": (f"{_CLUSTER}.profiles.command", "a real GPU's profile beside prices"),
    },
    "measured": {
        "validate": (f"{_LABORATORY}.validate", "hold predictions against measured runs"),
        "calibrate": (f"{_LABORATORY}.calibrate", "learn from runs of your own machines"),
        "measure": (f"{_LABORATORY}.measure", "measure this machine for a job, in one file"),
        "kernels": ("", "measured kernels: list, keep, validate, fit"),
        "kernels fit": (f"{_LABORATORY}.kernels.fit", "fit a GPU's coefficients to tables"),
        "kernels validate": (f"{_LABORATORY}.kernels.validate", "errors of predictions"),
        "kernels list": (f"{_LABORATORY}.kernels.database:listing", "what measured tables hold"),
        "kernels add": (f"{_LABORATORY}.kernels.database:add", "add tables to one database"),
        "kernels export": (f"{_LABORATORY}.kernels.database:export", "write a database as tables"),
        "collectives": ("", "measured NCCL: read, validate, fit"),
        "collectives read": (f"{_LABORATORY}.collectives.nccl_tests", "nccl-tests as a table"),
        "collectives fit": (f"{_LABORATORY}.collectives.fit", "fit transports to nccl-tests"),
        "collectives validate": (f"{_LABORATORY}.collectives.validate", "errors of predictions"),
        "interference": ("", "kernels beside communication: validate"),
        "interference validate": (
            f"{_LABORATORY}.interference.validate",
            "errors of predicted slowdowns",
        ),
    },
    "shipped": {
        "residuals": (f"{_LABORATORY}.residuals", "redo the table that error bars come from"),
        "accuracy": (f"{_LABORATORY}.accuracy", "redo the documentation's accuracy pages"),
        "questions": (f"{_LABORATORY}.questions", "search again what published runs answer"),
        "memory": (f"{_LABORATORY}.memory", "redo the table that bands of memory come from"),
        "fastest": (f"{_LABORATORY}.fastest", "redo the table of the fastest published runs"),
    },
    "parts": {
        "network": ("", "fabrics: draw one under a recipe's load"),
        "network show": ("commands.network_show", "draw a fabric, a recipe's load on its cables"),
        "moe": (
            "simulators.expert_exchange.command",
            "route tokens to experts; time the exchange",
        ),
    },
    "setup": {
        "init": ("commands.init", "write a model and a cluster of your own to start from"),
        "doctor": ("commands.doctor", "what works here; on a GPU node, its cluster as a file"),
        "completion": ("completion", "complete commands and settings in bash, zsh and fish"),
        "tracking": ("", "what is tracked in MLflow: log what waits"),
        "tracking flush": ("optimizer.tracking.commands:flush", "log what waits to be tracked"),
    },
}
"""Full names of commands, by what they are about: ``module`` or ``module:function`` below
``trainscout`` (a function takes the arguments and returns the exit code; ``main`` if not named),
and one line. Without a module, another name follows."""
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

_HELP = """\
usage: trainscout COMMAND ... | --version

Which training recipe to run: this model, this cluster, what it costs, how sure that is.

{commands}

examples:
  trainscout optimize model=gpt175b cluster=h800_96
  trainscout simulate --help        (what a command does, its options, examples, exit codes)
"""
_FAMILY_HELP = """\
{summary}

usage: trainscout {name} COMMAND ...

{commands}

examples:
{examples}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command to its end; the exit code. ``arguments`` are by default the process's."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # What follows "--" is for the script that a command runs.
    if "--version" in words[: words.index("--") if "--" in words else None]:
        print(f"trainscout {version()}")
        return 0
    if words[:1] == ["help"] and words[1:2] != [] and words[1] in COMMANDS:
        words = [*words[1:], "--help"]
    if _asks_for_help(words):
        print(help_text(), end="")
        return 0 if words else 2
    from trainscout.simulators.predictor.io.command_line import collect_rarely, exit_code

    collect_rarely()
    return exit_code(_dispatch, words)


def run() -> NoReturn:
    """``main`` as a process, which ends with its exit code.

    Python would take apart all that was made before it leaves, which is a twentieth of one
    prediction and an eighth of a search; what has to happen at the end happens here.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started it
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    code = main()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # That it could not be written was said.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _dispatch(words: Sequence[str]) -> int | None:
    """Run what the first words name with the words after them.

    Raises:
        InputError: for a name that is none, with the nearest.
    """
    name, rest = _named("", words[0]), list(words[1:])
    if nested(name):
        if _asks_for_help(rest):
            print(family_help(name), end="")
            return 0 if rest else 2
        name, rest = _named(f"{name} ", rest[0]), rest[1:]
    module, _, function = COMMANDS[name][0].partition(":")
    if module.startswith("commands."):
        _load_settings()
    run = getattr(importlib.import_module(f"trainscout.{module}"), function or "main")
    code: int | None = run(rest)
    return code


def _load_settings() -> None:
    """OmegaConf, but for what it takes classes of attrs by, which is slow to load: settings have
    none. And NumPy with one thread: its matrices are small here, and OpenBLAS would start one for
    every core, which wait busily."""
    if "attr" not in sys.modules:
        sys.modules["attr"] = None  # type: ignore[assignment]
        importlib.import_module("omegaconf")
        del sys.modules["attr"]
    if _THREADS not in os.environ:
        # A script that a command starts has its own.
        os.environ[_THREADS] = "1"
        importlib.import_module("numpy")
        del os.environ[_THREADS]


def _asks_for_help(words: Sequence[str]) -> bool:
    return not words or words[0] in ("-h", "--help", "help")


def _named(before: str, word: str) -> str:
    if f"{before}{word}" in COMMANDS and " " not in word:
        return f"{before}{word}"
    from trainscout.simulators.predictor.question.errors import InputError

    if "=" in word:
        instead = (
            f"trainscout {before or 'optimize '}{nested(before.strip())[0] if before else ''}"
        )
        problem = "is a setting, of no command"
        raise InputError("command line", word, problem, f"{instead.strip()} {word}")
    from trainscout.conf.input_errors import meant_choice

    known = nested(before.strip()) if before else top_level()
    meant = None if before else meant_choice("command", word)
    raise InputError(f"trainscout {before}".strip(), word, "is no command", known, meant)


def top_level() -> list[str]:
    """The first words of commands."""
    return [name for name in COMMANDS if " " not in name]


def nested(name: str) -> list[str]:
    """The second words of the commands that begin with ``name``."""
    return [other.split()[1] for other in COMMANDS if other.startswith(f"{name} ")]


def help_text() -> str:
    """All commands by what they are about, on one screen."""
    lines = []
    for section, commands in SECTIONS.items():
        if section == "shipped":  # of those who maintain what predicts
            lines.append(f"{section:9} {', '.join(commands)}: redo tables and pages")
            continue
        for name, (_, summary) in commands.items():
            if " " not in name:
                lines.append(f"{section:9} {name:13} {summary}")
                section = ""
    return _HELP.format(commands="\n".join(lines))


def family_help(name: str) -> str:
    """The commands below ``name``."""
    names = nested(name)
    return _FAMILY_HELP.format(
        name=name,
        summary=COMMANDS[name][1],
        commands="\n".join(f"{each:9} {COMMANDS[f'{name} {each}'][1]}" for each in names),
        examples="\n".join(f"  trainscout {name} {each} --help" for each in names),
    )


def version() -> str:
    """As installed; of a clone that is not, as it declares itself."""
    from importlib import metadata

    try:
        return metadata.version("trainscout")
    except metadata.PackageNotFoundError:
        import tomllib
        from pathlib import Path

        declared = Path(__file__).parents[1] / "pyproject.toml"
        return str(tomllib.loads(declared.read_text("utf-8"))["project"]["version"])
