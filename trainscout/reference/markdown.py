"""Tables in Markdown, and the words around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io.yaml_files import read_yaml

TEXTS: Mapping[str, Any] = read_yaml(Path(__file__).with_name("texts.yaml"))
"""What the pages say around their tables."""


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown already, except that line ends and bars would end them."""
    lines = [_line(heads), _line(["---"] * len(heads))]
    lines += [_line(row) for row in rows]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    plain = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return "| " + " | ".join(plain) + " |"
