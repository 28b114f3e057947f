"""What a capacity study shows while it runs: a bar on a terminal, a line a cell in a log."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from trainscout.planning.outcome import Progress
from trainscout.reports.terminal import redraws
from trainscout.reports.wording import format_percent, format_seconds


class StudyView(Protocol):
    """Shows each answered cell; a context manager that owns its place on the screen."""

    def show(self, progress: Progress) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def study_view(console: Console, verbosity: str) -> StudyView:
    """The view that suits the console: none when ``quiet``, a line a cell when ``verbose``."""
    if verbosity == "quiet":
        return _View()
    if verbosity == "normal" and redraws(console):
        return _Bar(console)
    return _Lines(console)


class _View:
    """Shows nothing."""

    def show(self, progress: Progress) -> None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _Lines(_View):
    """A line a cell."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, progress: Progress) -> None:
        count = f"{progress.done}/{progress.total} cells, {progress.elapsed_s:.0f} s"
        line = f"{count}: {format_cell(progress)}"
        self._console.print(line, soft_wrap=True, markup=False)


class _Bar(_View):
    """One line that is redrawn, and gone when the study is over."""

    def __init__(self, console: Console) -> None:
        self._bar = Bar(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None)

    def show(self, progress: Progress) -> None:
        self._bar.update(
            self._task,
            completed=progress.done,
            total=progress.total,
            description=format_cell(progress),
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def format_cell(progress: Progress) -> str:
    """The latest cell in a few words."""
    best, name = progress.answer.best, progress.cell.key
    if best is None:
        return f"{name}: {progress.answer.status.replace('_', ' ')}"
    return f"{name}: {format_seconds(best.step_time_s)}, MFU {format_percent(best.mfu)}"
