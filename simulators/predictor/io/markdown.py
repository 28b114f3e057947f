"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], *, left: Sequence[str] | None = None
) -> str:
    """A table, its columns of words (``left``; None: the first) to the left and figures to the
    right; cells are Markdown already, except that line ends and bars would end them."""
    words = heads[:1] if left is None else left
    rule = "|".join("---" if head in words else "---:" for head in heads)
    return "\n".join([_line(heads), f"|{rule}|", *map(_line, rows)])


def _line(cells: Sequence[object]) -> str:
    plain = (" ".join(str(cell).split()).replace("|", "\\|") for cell in cells)
    return "| " + " | ".join(plain) + " |"
