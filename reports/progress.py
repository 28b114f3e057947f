"""What a search shows while it runs: a live line on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from trainscout.optimizer.trial import Progress
from trainscout.reports.explain import JobOf
from trainscout.reports.terminal import redraws
from trainscout.reports.wording import format_percent, format_recipe, format_seconds

_LOG_EVERY_S = 5.0


class ProgressView(Protocol):
    """Shows where a search stands; a context manager that owns its place on the screen."""

    def show(self, progress: Progress) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def progress_view(console: Console, job_of: JobOf, verbosity: str = "normal") -> ProgressView:
    """The view that suits the console: none when ``quiet``, every batch when ``verbose``."""
    if verbosity == "quiet":
        return Silence()
    if verbosity == "verbose":
        return LogLines(console, job_of, every_s=0.0)
    return LiveBar(console, job_of) if redraws(console) else LogLines(console, job_of)


class Silence:
    """Shows nothing."""

    def show(self, progress: Progress) -> None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class LiveBar:
    """One line that is redrawn, and gone when the search is over."""

    def __init__(self, console: Console, job_of: JobOf) -> None:
        self._job_of = job_of
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
            completed=progress.considered,
            total=progress.limit,
            description=format_best(progress, self._job_of),
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


class LogLines:
    """The first batch, then a line every few seconds."""

    def __init__(self, console: Console, job_of: JobOf, every_s: float = _LOG_EVERY_S) -> None:
        self._console = console
        self._job_of = job_of
        self._every_s = every_s
        self._next_s = 0.0

    def show(self, progress: Progress) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._every_s
        left = f", about {progress.eta_s:.0f} s left" if progress.eta_s is not None else ""
        self._console.print(
            f"{progress.considered}/{progress.limit} recipes, {progress.elapsed_s:.1f} s{left}: "
            + format_best(progress, self._job_of),
            soft_wrap=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def format_best(progress: Progress, job_of: JobOf) -> str:
    """The best recipe so far in a few words."""
    best = progress.best
    if best is None or best.prediction is None:
        return "nothing fits yet"
    prediction = best.prediction
    recipe = format_recipe(best.recipe, job_of(best.recipe).dp)
    return (
        f"best {format_seconds(prediction.step_time_s)}, "
        f"MFU {format_percent(prediction.mfu)}, {recipe}"
    )
