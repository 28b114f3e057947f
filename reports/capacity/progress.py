"""What a capacity study shows while it runs: a bar on a terminal, a line a cell in a log."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from planning.outcome import Progress
from reports.wording import percent_words, seconds_words


class StudyView:
    """Shows each answered cell; a context manager that owns its place on the screen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Bar(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=None)

    def show(self, progress: Progress) -> None:
        words = cell_words(progress)
        if self._console.is_terminal:
            self._bar.update(
                self._task, completed=progress.done, total=progress.total, description=words
            )
            return
        count = f"{progress.done}/{progress.total} cells, {progress.elapsed_s:.0f} s"
        self._console.print(f"{count}: {words}", soft_wrap=True, markup=False)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()


def cell_words(progress: Progress) -> str:
    """The latest cell in a few words."""
    best, name = progress.answer.best, progress.cell.key
    if best is None:
        return f"{name}: {progress.answer.status.replace('_', ' ')}"
    return f"{name}: {seconds_words(best.step_time_s)}, MFU {percent_words(best.mfu)}"
