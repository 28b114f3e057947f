"""What a capacity study shows while it runs: a bar on a terminal, a line a cell in a log."""

from __future__ import annotations

from rich.console import Console

from trainscout.planning.outcome import Progress
from trainscout.reports.progress import LiveBar, LogLines, Standing, View
from trainscout.reports.wording import format_percent, format_seconds
from trainscout.simulators.predictor.io.terminal import redraws


def study_view(console: Console, verbosity: str) -> View[Progress]:
    """The view that suits the console: none when ``quiet``, a line a cell when ``verbose``."""
    if verbosity == "quiet":
        return View()
    if verbosity == "normal" and redraws(console):
        return LiveBar(console, _standing)
    return LogLines(console, _standing, every_s=0.0)


def _standing(progress: Progress) -> Standing:
    elapsed_s, eta_s = progress.elapsed_s, progress.eta_s
    return Standing(
        progress.done, progress.total, "cells", elapsed_s, eta_s, format_cell(progress)
    )


def format_cell(progress: Progress) -> str:
    """The latest cell in a few words."""
    best, name = progress.answer.best, progress.cell.key
    if best is None:
        return f"{name}: {progress.answer.status.replace('_', ' ')}"
    return f"{name}: {format_seconds(best.step_time_s)}, MFU {format_percent(best.mfu)}"
