"""Templates of launch files, and Python source of configuration calls."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"


def call(function: str, arguments: Mapping[str, object], indent: int = 4) -> str:
    """A call with one keyword argument a line, closed at ``indent`` spaces."""
    inner = " " * (indent + 4)
    lines = [f"{inner}{name}={value!r}," for name, value in arguments.items()]
    return "\n".join([f"{function}(", *lines, " " * indent + ")"])


def imports(known: Mapping[str, Sequence[str]], body: str) -> str:
    """Import lines for the names of ``known`` modules that ``body`` uses.

    A module without names is imported itself.
    """
    words = set(re.findall(r"\w+", body))
    standard: list[str] = []
    others: list[str] = []
    for module, names in known.items():
        group = standard if module.split(".")[0] in sys.stdlib_module_names else others
        used = [name for name in names if name in words]
        if not names and re.search(rf"\b{re.escape(module)}\.", body):
            group.append(f"import {module}")
        elif len(used) > 3:
            group.append(f"from {module} import (\n    " + ",\n    ".join(used) + ",\n)")
        elif used:
            group.append(f"from {module} import {', '.join(used)}")
    return "\n".join([*standard, *([""] if standard else []), *others])


def python_module(about: Sequence[str], known: Mapping[str, Sequence[str]], body: str) -> str:
    """A module of ``body``, what it is ``about``, and the imports it needs from ``known``."""
    # People name models and clusters as they like.
    text = "\n".join(about).replace("\\", "/").replace('"', "'")
    return "\n".join([f'"""{text}\n"""\n', imports(known, body), "", body])


def template(name: str) -> str:
    """A launch file as it is but for what depends on the job, in braces."""
    return (TEMPLATES / f"{name}.txt").read_text("utf-8")
