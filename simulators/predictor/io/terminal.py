"""Where reports are shown: as wide and as colourful as a terminal, or plain text in a file.

Texts are shown as they are: names are the user's, and brackets in them no markup.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .output import show_text

FILE_WIDTH = 120
PIPED_WIDTH = 100
"""Columns of what goes to no terminal, unless COLUMNS says another number."""


def console_for(stream: TextIO) -> Console:
    """A console on ``stream``: on a terminal as wide as that and coloured unless NO_COLOR is set;
    elsewhere of fixed width (or COLUMNS), and plain unless FORCE_COLOR is set."""
    if stream.isatty():
        return Console(file=stream, highlight=False, markup=False, emoji=False)
    forced = bool(os.environ.get("FORCE_COLOR")) and not os.environ.get("NO_COLOR")
    columns = os.environ.get("COLUMNS", "")
    return Console(
        file=stream,
        highlight=False,
        markup=False,
        emoji=False,
        width=int(columns) if columns.isdecimal() and int(columns) else PIPED_WIDTH,
        force_terminal=False,
        color_system="standard" if forced else None,
    )


def plain_table(
    *columns: str, title: str | None = None, title_style: str = "italic", **style: Any
) -> Table:
    """A table without lines; a column of figures has a title that starts with ``#``; ``style`` is
    rich's."""
    # As plain text, it would wrap at the table's width.
    shown = Text(title, title_style, no_wrap=True, overflow="ignore") if title else None
    table = Table(title=shown, title_justify="left", box=None, pad_edge=False, **style)
    for name in columns:
        figures = name.startswith("#")
        table.add_column(name.removeprefix("#"), justify="right" if figures else "left")
    return table


def labelled(rows: Iterable[Sequence[RenderableType]], gap: int = 2, least: int = 0) -> Table:
    """Words beside their labels, which are at ``least`` so wide."""
    table = Table.grid(padding=(0, gap))
    table.add_column(no_wrap=True, style="bold", min_width=least)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


@dataclass(frozen=True, eq=False, repr=False)
class Hanging:
    """Text of which all lines but the first are indented."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first = self.text.wrap(console, options.max_width, overflow="fold")[0]
        yield first
        rest = self.text[len(first.plain.rstrip()) :]
        rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
        if rest.plain:
            yield Padding(rest, (0, 0, 0, 2))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        least, most = Measurement.get(console, options, self.text)
        return Measurement(min(least + 2, most), most)


def redraws(console: Console) -> bool:
    """Whether lines can be drawn anew in place: not in a file, nor in the log of a build server
    that only looks like a terminal."""
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("CI")


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr while a command works; what is yielded moves it on by one."""
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


def show(renderable: RenderableType) -> None:
    """Print on stdout: laid out for the terminal, or as the text of a file."""
    console = console_for(sys.stdout)
    if console.is_terminal:
        console.print(renderable, crop=False)
    else:
        show_text(_as_text(renderable, sys.stdout.encoding or "utf-8", console))


def as_text(renderable: RenderableType) -> str:
    """The renderable as plain text for a file (UTF-8)."""
    plain = Console(
        width=FILE_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
        force_jupyter=False,  # which would show it beside what asks for it
        force_terminal=False,
        color_system=None,
    )
    return _as_text(renderable, "utf-8", plain)


def as_html(renderable: RenderableType) -> str:
    """The renderable as a page shows a terminal: bold and dim kept, no colours of its own."""
    console = Console(
        width=FILE_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
        record=True,
        file=io.StringIO(),
        force_jupyter=False,
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(renderable)
    style = "font-family: monospace; line-height: 1.25; white-space: pre; overflow-x: auto"
    frame = f'<pre style="{style}">{{code}}</pre>'
    return console.export_html(inline_styles=True, code_format=frame)


def _as_text(renderable: RenderableType, encoding: str, console: Console) -> str:
    # What is drawn with characters beyond ASCII looks at the encoding of its stream.
    text = io.TextIOWrapper(io.BytesIO(), encoding, errors="backslashreplace", newline="")
    with text as buffer:
        console.file = buffer
        console.print(renderable, crop=False)
        buffer.seek(0)
        return "".join(f"{line.rstrip()}\n" for line in buffer.read().split("\n")[:-1])
