"""Fields that say what they are, for ``--help``."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError


def parameter(default: Any, meaning: str) -> Any:
    """A dataclass field with a default and the line of ``--help`` that explains it."""
    return field(default=default, metadata={"meaning": meaning})


def require_whole(name: str, value: int, least: int = 1) -> None:
    """Refuse what is not a whole number of at least ``least``.

    Raises:
        InputError: naming the parameter.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(name, value, "is out of range", f"a whole number >= {least}")
