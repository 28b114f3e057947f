"""YAML files that the package ships, read once a process on the way to the first prediction."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

# LibYAML's parser, which PyYAML is mostly built with, takes a tenth of the time.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def shipped_yaml(file: Traversable | Path) -> Any:
    """The content of a file."""
    return yaml.load(file.read_text(encoding="utf-8"), _LOADER)
