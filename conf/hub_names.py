"""Models that ship, by the names that they have on the Hugging Face Hub or that people try."""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Iterable
from pathlib import Path

from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, read_yaml
from trainscout.simulators.predictor.question.errors import InputError, nearest_name

FILE = "config.json"
# What a name says beside the shape: how the weights were made, or in which format they are.
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_VARIANT = re.compile(
    "(-(base|instruct|thinking|chat|hf|it|pt|fp8|nvfp4|bf16|awq|gptq|int4|int8|[0-9]{4}|exp|terminus"
    r"|v0\.[1-9]|8k|128k))+$"
)


def hub_choice(field: str, name: str) -> str | None:
    """The shipped declaration of a model of the Hub (``meta-llama/Llama-3.1-8B``), whatever its
    training, format (``-Instruct``, ``-FP8``) or publisher; None for what is no name of the Hub's
    form.

    Raises:
        InputError: for a name of that form that none has, with the nearest.
    """
    name = name.removeprefix("https://huggingface.co/").rstrip("/")
    if not _HUB_NAME.fullmatch(name) or name.endswith((".yaml", ".json")) or Path(name).exists():
        return None
    if (shipped := shipped_model(name)) is not None:
        return shipped
    known = {_plain(hub): hub for each in _names().values() for hub in each}
    nearest = nearest_name(_plain(name), known)
    problem = "is no model of the Hugging Face Hub that ships"
    allowed = "the path of its config.json, or a name of `trainscout list models`"
    raise InputError(field, name, problem, allowed, nearest and known[nearest])


def downloaded(name: str) -> Path | None:
    """The ``config.json`` of a model of the Hub that does not ship, where Transformers or
    ModelScope has it on this machine; None for others."""
    if not _HUB_NAME.fullmatch(name) or shipped_model(name) is not None:
        return None
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{cache}/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    files = list(hub.glob(f"models--{name.replace('/', '--')}/snapshots/*/{FILE}"))
    scope = Path(os.environ.get("MODELSCOPE_CACHE", f"{cache}/modelscope/hub")).expanduser()
    files += [file for each in ("", "models") if (file := scope / each / name / FILE).is_file()]
    return max(files, key=lambda file: file.stat().st_mtime, default=None)


def shipped_model(name: str) -> str | None:
    """The declaration that has a name, else the one whose own publisher's has its last part."""
    known = {_plain(hub): shipped for shipped, each in _names().items() for hub in each}
    copies = {hub.rpartition("/")[2]: shipped for hub, shipped in known.items()}
    return known.get(_plain(name)) or copies.get(_plain(name).rpartition("/")[2])


SCRIPTED = "what else trains runs as your script: trainscout live"


def other_model(name: str, shipped: Iterable[str]) -> tuple[str, str] | None:
    """What is wrong with a name of no family that ships, and what can be asked instead; None for
    one that is like theirs, whose nearest names say more."""
    families = sorted({found[0] for each in shipped if (found := re.match("[a-z]+", each))})
    words = re.findall("[a-z]+", name.lower())
    if any(difflib.get_close_matches(word, families, 1, cutoff=0.6) for word in words):
        return None
    return "is no model that ships", (
        f"families that do: {', '.join(families)}; others by a YAML file or a config.json; "
        + SCRIPTED
    )


@functools.cache
def _names() -> dict[str, list[str]]:
    table: dict[str, list[str]] = read_yaml(DECLARATIONS / "hub_names.yaml")
    return table


def _plain(name: str) -> str:
    return _VARIANT.sub("", name.lower())
