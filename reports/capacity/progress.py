"""What a capacity study shows while it runs: a bar on a terminal, a line a cell in a log."""

from __future__ import annotations

from rich.console import Console

from trainscout.planning.outcome import Progress
from trainscout.reports.progress import Standing, View, view_of
from trainscout.reports.wording import format_percent, format_seconds


def study_view(console: Console, verbosity: str) -> View[Progress]:
    """How far a study is; a line a cell when ``verbose``."""
    return view_of(console, _standing, verbosity)


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
