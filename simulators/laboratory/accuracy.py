"""Write the accuracy page and its plots: ``trainscout accuracy --help``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import write_whole
from trainscout.simulators.predictor.question.errors import InputError

from .published.page.later import read_blind
from .published.page.page import ERROR_PLOT, MEMORY_PLOT, PLOT_FOLDER, STEP_PLOT, accuracy_pages
from .published.page.plots import error_plot, memory_plot, step_time_plot
from .published.page.summaries import COLLECTIVES, KERNELS, read_summary, stored_summary
from .published.published import BLIND_TESTS, PUBLISHED_RUNS, stored_coverage
from .published.reading.rows import TRUSTED
from .validate import predict


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = _parser().parse_args(arguments)
    write_accuracy(options.docs, options.collectives, options.kernels)
    return OK


def write_accuracy(docs: Path, collectives: Path | None, kernels: Path | None) -> None:
    """Replay the published rows and write the accuracy pages and their plots into ``docs``.

    ``collectives`` and ``kernels`` are results of the other two validators; their figures are
    kept with the project, so that the page can be made again without their measurements.

    Raises:
        InputError: for a folder that has no pages of accuracy, or an unusable result file.
    """
    folder = docs / PLOT_FOLDER
    if not folder.is_dir():
        raise InputError("--docs", docs, f"has no folder {PLOT_FOLDER}", "the docs folder")
    results = ((collectives, COLLECTIVES), (kernels, KERNELS))
    # All are read before one is kept.
    kept = [(place, read_summary(result)) for result, place in results if result is not None]
    for place, summary in kept:
        write_whole(place, json.dumps(summary, indent=1) + "\n")
    report, _ = predict(PUBLISHED_RUNS, TRUSTED, "replay")
    plots = {STEP_PLOT: step_time_plot, ERROR_PLOT: error_plot, MEMORY_PLOT: memory_plot}
    for name, draw in plots.items():
        write_whole(folder / name, draw(report["rows"]))
    tests = [
        (test, predict(test.runs, TRUSTED, "replay")[0], read_blind(test.predictions))
        for test in BLIND_TESTS
    ]
    pages = accuracy_pages(
        report, stored_coverage(), stored_summary(COLLECTIVES), stored_summary(KERNELS), tests
    )
    for name, text in pages.items():
        write_whole(docs / name, text)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "accuracy",
        "Replay the published rows and write docs/accuracy.md, its details and plots.",
        "trainscout accuracy\n"
        "trainscout accuracy --kernels kernels.json --collectives collectives.json",
    )
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of the pages")
    parser.add_argument("--collectives", type=Path, help="JSON of trainscout collectives validate")
    parser.add_argument("--kernels", type=Path, help="JSON of trainscout kernels validate")
    return parser
