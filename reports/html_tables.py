"""Tables of reports: one of each for terminal and page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from rich.table import Table


@dataclass(frozen=True)
class Row:
    """``chosen``: it is the answer. ``move``: by how much of itself a cost moves, for a bar."""

    cells: Sequence[str]
    chosen: bool = False
    move: float | None = None


@dataclass(frozen=True)
class ReportTable:
    """Titles of columns, those of figures in ``figures``, and rows of as many cells."""

    title: str
    columns: Sequence[str]
    figures: frozenset[str]
    rows: Sequence[Row]


def table(title: str, columns: str, rows: Iterable[Row | Sequence[str]]) -> ReportTable:
    """``columns``: titles by commas; those of figures start with ``#``."""
    names = [name.strip() for name in columns.split(",")]
    return ReportTable(
        title,
        [name.lstrip("#") for name in names],
        frozenset(name[1:] for name in names if name.startswith("#")),
        [row if isinstance(row, Row) else Row(row) for row in rows],
    )


def from_terminal(drawn: Table) -> ReportTable:
    """A table as it is drawn on a terminal; figures stand at the right."""
    names = [str(column.header) for column in drawn.columns]
    right = (str(each.header) for each in drawn.columns if each.justify == "right")
    cells = zip(*(column.cells for column in drawn.columns), strict=True)
    return ReportTable("", names, frozenset(right), [Row([*map(str, row)]) for row in cells])


def html_table(shown: ReportTable) -> str:
    """With a bar before the last column where costs move."""
    if not shown.rows:
        return ""
    moves = [row.move for row in shown.rows if row.move is not None]
    widest = max(map(abs, moves), default=0.0)

    def line(tag: str, cells: Sequence[str], bar: str) -> str:
        drawn = [
            f"<{tag}{_class(_kind(shown, column))}>{escape(text)}</{tag}>"
            for column, text in zip(shown.columns, cells, strict=True)
        ]
        if moves:
            drawn.insert(-1, f'<{tag} class="move">{bar}</{tag}>')
        return "".join(drawn)

    body = "".join(
        f"<tr{_class('answer' if row.chosen else '')}>"
        f"{line('td', row.cells, '' if row.move is None else _bar(row.move, widest))}</tr>"
        for row in shown.rows
    )
    heading = f"<h3>{escape(shown.title)}</h3>" if shown.title else ""
    return (
        f'{heading}<div class="wide"><table{_class("effects" if moves else "")}>'
        f"<thead><tr>{line('th', shown.columns, '')}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def html_cards(cards: Iterable[tuple[str, str, str]]) -> str:
    """Figures that stand out: a name, the figure, and what it goes by."""
    drawn = "".join(
        f'<div class="card"><h3>{escape(name)}</h3><div class="big">{escape(figure)}</div>'
        f"<p>{escape(more)}</p></div>"
        for name, figure, more in cards
    )
    return f'<div class="cards">{drawn}</div>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _kind(shown: ReportTable, column: str) -> str:
    if column in shown.figures:
        return "n"
    return {"recipe": "recipe", "reason": "text"}.get(column, "")


def _bar(move: float, widest: float) -> str:
    """A bar to the left for less, to the right for more."""
    length = 78 * abs(move) / widest if widest else 0.0
    x = 80 - length if move < 0 else 80.0
    kind = "less" if move < 0 else "more"
    return (
        '<svg viewBox="0 0 160 14" aria-hidden="true">'
        f'<rect class="{kind}" x="{x:.1f}" y="2" width="{length:.1f}" height="10"/>'
        '<line class="axis" x1="80" x2="80" y1="0" y2="14"/></svg>'
    )
