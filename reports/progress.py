"""What a search shows while it runs: a live line on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from trainscout.optimizer.trial import Progress
from trainscout.reports.explain import JobOf
from trainscout.reports.wording import format_percent, format_recipe, format_seconds, format_wait
from trainscout.simulators.predictor.io.terminal import redraws

_LOG_EVERY_S = 5.0
P = TypeVar("P")


@dataclass(frozen=True)
class Standing:
    """How far something is: ``done`` of ``total`` of what is ``counted``, after ``elapsed_s`` with
    about ``eta_s`` to go (None: nobody knows); the latest news."""

    done: int
    total: int | None
    counted: str
    elapsed_s: float
    eta_s: float | None
    news: str

    @property
    def left(self) -> str:
        """``, about 40 s left``."""
        return "" if self.eta_s is None else f", about {format_wait(self.eta_s)} left"


class View(Generic[P]):
    """Shows where something stands; a context manager that owns its place on the screen.

    This one shows nothing.
    """

    def show(self, progress: P) -> None:
        """Show what ``progress`` says."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class LiveBar(View[P]):
    """One line that is redrawn, and gone at the end."""

    def __init__(self, console: Console, standing: Callable[[P], Standing]) -> None:
        self._standing = standing
        self._bar = Bar(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[counted]},"),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None, counted="")

    def show(self, progress: P) -> None:
        at = self._standing(progress)
        words = f"elapsed{at.left}: {at.news}"
        self._bar.update(
            self._task, completed=at.done, total=at.total, description=words, counted=at.counted
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


class LogLines(View[P]):
    """The first, then a line every few seconds (0: all)."""

    def __init__(
        self, console: Console, standing: Callable[[P], Standing], every_s: float
    ) -> None:
        self._console = console
        self._standing = standing
        self._every_s = every_s
        self._next_s = 0.0

    def show(self, progress: P) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._every_s
        at = self._standing(progress)
        done = at.done if at.total is None else f"{at.done}/{at.total}"
        line = f"{done} {at.counted}, {format_wait(at.elapsed_s)}{at.left}: {at.news}"
        self._console.print(line, soft_wrap=True, markup=False)


def view_of(
    console: Console, standing: Callable[[P], Standing], verbosity: str, every_s: float = 0.0
) -> View[P]:
    """The view that suits the console: none when ``quiet``, all lines when ``verbose``, else one
    that is redrawn, or where none can be, a line in so many seconds."""
    if verbosity == "quiet":
        return View()
    if verbosity == "normal" and redraws(console):
        return LiveBar(console, standing)
    return LogLines(console, standing, every_s if verbosity == "normal" else 0.0)


def progress_view(console: Console, job_of: JobOf, verbosity: str = "normal") -> View[Progress]:
    """How far a search is; every batch when ``verbose``."""

    def standing(progress: Progress) -> Standing:
        news = format_best(progress, job_of)
        return Standing(
            *(progress.considered, progress.limit, progress.counted),
            *(progress.elapsed_s, progress.eta_s, news),
        )

    return view_of(console, standing, verbosity, _LOG_EVERY_S)


def format_best(progress: Progress, job_of: JobOf) -> str:
    """The best recipe so far in a few words."""
    best = progress.best
    if best is None or best.prediction is None:
        return "none known to fit yet"
    prediction = best.prediction
    recipe = format_recipe(best.recipe, job_of(best.recipe).dp)
    return (
        f"best {format_seconds(prediction.step_time_s)}, "
        f"MFU {format_percent(prediction.mfu)}, {recipe}"
    )
