"""Python source of configuration calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """Source text that stands as it is, where other values stand as Python writes them."""

    text: str

    def __repr__(self) -> str:
        return self.text


def call(function: str, arguments: Mapping[str, object], indent: int = 4) -> str:
    """A call with one keyword argument a line, closed at ``indent`` spaces."""
    inner = " " * (indent + 4)
    lines = [f"{inner}{name}={value!r}," for name, value in arguments.items()]
    return "\n".join([f"{function}(", *lines, " " * indent + ")"])
