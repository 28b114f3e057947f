"""Wrong input through the real commands: exit code 2, the field, what would be right; nothing
written, no traceback."""

from __future__ import annotations

import importlib
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.attack.forked import Ended, files_below, run_command
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, read_yaml

_JOB = ("model=gpt13b", "cluster=a800_8", "training.global_batch_size=64")
COMMANDS = {
    "simulate": _JOB,
    "optimize": (*_JOB, "executor=serial", "tracking=none", "search.n_trials=4"),
    "explain": (*_JOB, "a.tp=8", "b.tp=4"),
    "plan": ("sweep=llama3_8b", "tracking=none"),
}
# Of every command its settings, and values that they cannot have.
SETTINGS: dict[str, dict[str, list[str]]] = {
    command: {name: values for values, names in rows for name in names.split()}
    for command, rows in read_yaml(Path(__file__).with_suffix(".yaml"))["settings"].items()
}
# Files that declare nothing, and what spoils one that does.
_NO_DECLARATION = (
    b"", b"a: [", b"a: 1\na: 2\n", b"\ta: 1\n", b"5\n", b"- a\n", b"a: \0\n", b"\xff\xfea\0",
    b"a: !!python/object:os.system {}\n", b"a: &a [*a]\n", b"[" * 5000, b"null\n", b"a: ${a}\n",
)  # fmt: skip
_EDITS: tuple[Callable[[bytes], bytes], ...] = (
    lambda right: right + b"nothing_of_ours: 1\n",
    lambda right: re.sub(rb"(?m)^(\w+): \d+", rb"\1: -1", right, count=1),
    lambda right: re.sub(rb"(?m)^(\w+): \d+", rb"\1: many", right, count=1),
    lambda right: re.sub(rb"(?m)^(\w+): \d+", rb"\1: [1]", right, count=1),
    lambda right: re.sub(rb"(?m)^(\w+): ", rb"\1:\t\t: ", right, count=1),
    lambda right: right + right,
)
_UNKNOWN = (
    "modle=gpt13b",
    "+nothing=1",
    "model.num_layer=3",
    "nothing",
    "=",
    "a=b=c",
    "recipe.dp=3",
)


def attack(seed: int, count: int) -> tuple[int, list[str]]:
    """What was wrong with the answers to ``count`` wrong inputs, a line each."""
    for command in COMMANDS:  # once, not in every fork
        importlib.import_module(f"trainscout.commands.{command}")
    chosen = list(mutations())
    random.Random(seed).shuffle(chosen)
    chosen = chosen[:count]
    wrong = []
    for command, setting, content in chosen:
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder)
            (directory / "file").write_text("")
            (directory / "own.yaml").write_bytes(content)
            ended = run_command([command, *COMMANDS[command], setting], directory)
            left = [name for name in files_below(directory) if name not in ("file", "own.yaml")]
        found = problems(setting, ended, left)
        wrong += [f"{command} {setting} {content[:60]!r}: {each}" for each in found]
    return len(chosen), wrong


def mutations() -> Iterator[tuple[str, str, bytes]]:
    """Commands, a setting that each must refuse, and what is in the file that it may name."""
    for command, settings in SETTINGS.items():
        for name, values in settings.items():
            for value in values:
                if (name, value) not in _RIGHT:
                    yield command, f"{name}={value}", b""
        for setting in _UNKNOWN:
            yield command, setting, b""
    for command, setting, shipped in (
        ("simulate", "model", "model/mixtral_8x7b.yaml"),
        ("optimize", "cluster", "cluster/h800_96.yaml"),
        ("plan", "sweep", "sweep/llama3_8b.yaml"),
    ):
        right = (DECLARATIONS / shipped).read_bytes()
        spoiled = [edited for edit in _EDITS if (edited := edit(right)) != right]
        for content in (*_NO_DECLARATION, *spoiled):
            yield command, f"{setting}=own.yaml", content


# Values of the lists above that some settings do have.
_RIGHT = {
    *((name, "'a b'") for name in ("search.storage",)),
    ("training.global_batch_size", "0.0"),
    ("recipe.vpp", "null"),
    ("search.timeout_s", "null"),
}


def problems(setting: str, ended: Ended, left: list[str]) -> list[str]:
    """What the answer to a wrong setting lacks."""
    found = []
    if ended.code != 2:
        found.append(f"exit code {ended.code}: {ended.err[-200:]!r}")
    if "Traceback" in ended.err or "internal failure" in ended.err:
        found.append("a traceback, or an internal failure")
    name = setting.partition("=")[0].lstrip("+")
    statement = ended.err.strip()
    if ended.code == 2 and not re.match(
        rf"error: ({re.escape(name)}|[\w.]+)\b.*=", statement, re.S
    ):
        found.append(f"no field: {statement[:200]!r}")
    if (
        ended.code == 2
        and not statement.rstrip().endswith(")")
        and "did you mean" not in statement
    ):
        found.append(f"not what is allowed: {statement[:200]!r}")
    if left:
        found.append(f"left {left}")
    if "\x1b" in ended.err:
        found.append("an escape sequence")
    return found
