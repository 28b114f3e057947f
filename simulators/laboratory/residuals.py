"""Redo the error bars from measured runs: ``trainscout residuals --help``.

To be run whenever predictions have changed: the table it writes is what error bars come from.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import check_output, show_text, write_output
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.features import features_of
from trainscout.simulators.predictor.uncertainty.table import (
    RESIDUALS,
    Residual,
    Tuning,
    read_table,
    table_text,
)

from .published.groups import source_group
from .published.jobs import shipped_declarations
from .published.layouts import sweep_of
from .published.published import add_output, add_runs
from .published.regularity import mark_extrapolated
from .published.replay import Result
from .published.rows import TRUSTED, read_rows
from .uncertainty.coverage import Coverage, calibrate
from .validate import replay_with_progress

MIN_RUNS = 30
MIN_SOURCES = 3


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = _parser().parse_args(arguments)
    rows = mark_extrapolated(read_rows(options.runs))
    check_output("--output", options.output, [options.runs])
    declarations = shipped_declarations()
    results = replay_with_progress(rows, declarations, Bare())
    residuals = residuals_of(results)
    _refuse_too_few(residuals, options.runs)
    # Tuned on what is written, which is rounded.
    tuning, found = calibrate(read_table(table_text(residuals, Tuning(), {})))
    text = table_text(residuals, tuning, _provenance(options.runs, found))
    write_output("--output", options.output, text)
    show_text(_format_coverage(found, options.output))
    return OK


class Bare:
    """The replay without the error bars that are yet to be made."""

    name = "replay"

    def __init__(self) -> None:
        self._replay = ReplaySimulator()

    def simulate(self, job: Job) -> Prediction:
        return self._replay.without_error_bar(job)


def residuals_of(results: Sequence[Result]) -> tuple[Residual, ...]:
    """The residual of every trusted row with a measured and a predicted step time.

    Extrapolated rows are no measurements.
    """
    residuals: list[Residual] = []
    sweeps: dict[object, str] = {}
    for result in results:
        job, prediction, measured_s = result.job, result.prediction, result.measured_s
        if result.row.quality not in TRUSTED or result.row.extrapolated:
            continue
        if job is None or prediction is None or measured_s is None:
            continue
        sweep = sweeps.setdefault(sweep_of(result), str(len(sweeps) + 1))
        residuals.append(
            Residual(
                id=result.row.id,
                source=source_group(result.row),
                sweep=sweep,
                features=features_of(job, prediction.step_time_s, prediction.breakdown_s),
                recipe=job.recipe,
                log_residual=math.log(measured_s / prediction.step_time_s),
            )
        )
    return tuple(residuals)


def _refuse_too_few(residuals: Sequence[Residual], path: Path) -> None:
    sources = len({residual.source for residual in residuals})
    if len(residuals) < MIN_RUNS or sources < MIN_SOURCES:
        raise InputError(
            "runs",
            path,
            f"has {len(residuals)} usable runs of {sources} sources",
            f"at least {MIN_RUNS} runs of {MIN_SOURCES} sources",
        )


def _provenance(runs: Path, found: Coverage) -> dict[str, Any]:
    return {
        "what": "measured over predicted step times of published runs, as natural logarithms",
        "made_by": "trainscout residuals",
        "runs": format_origin(runs),
        "coverage": {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in found.to_dict().items()
        },
    }


def format_origin(runs: Path) -> str:
    """Which table of measured runs something was made of, and which of its rows."""
    digest = hashlib.sha256(runs.read_bytes()).hexdigest()[:16]
    return f"{runs.name}, sha256 {digest}..., grades {' and '.join(TRUSTED)}"


def _format_coverage(found: Coverage, output: Path) -> str:
    groups = {
        "publication": found.per_source,
        "framework": found.per_framework,
        "GPU": found.per_gpu,
        "cluster": found.per_cluster,
    }
    held = ",\n".join(
        f"{share:.1%} of a {group} left out"
        for group, share in groups.items()
        if share is not None
    )
    return (
        f"{found.n} runs. The {found.level:.0%} interval holds {found.five_fold:.1%} of a random "
        f"fifth left out and, as means over groups of three runs or more,\n{held}.\n"
        f"Its median width is {found.median_width:.0%} of its low end. Written to {output}.\n"
    )


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "residuals",
        "Predict measured runs and write the table that error bars come from.",
        "trainscout residuals                        # the published rows\n"
        "trainscout residuals ours.csv --output residuals.csv",
    )
    add_runs(parser)
    add_output(parser, RESIDUALS)
    return parser
