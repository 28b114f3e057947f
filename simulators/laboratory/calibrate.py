"""Calibrate the predictor to your own machines: ``trainscout calibrate --help``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainscout.conf.catalogue import load_catalogue
from trainscout.reports.terminal import show
from trainscout.reports.wording import format_seconds
from trainscout.simulators.laboratory.calibration.fit import Fit, fit_corrections
from trainscout.simulators.laboratory.calibration.identify import Identified, identify
from trainscout.simulators.laboratory.calibration.model import MeasuredRun, StepTimes, Vector
from trainscout.simulators.laboratory.published.jobs import Declarations
from trainscout.simulators.laboratory.published.replay import Result
from trainscout.simulators.laboratory.published.rows import read_rows
from trainscout.simulators.laboratory.validate import replay_with_progress
from trainscout.simulators.predictor.io.command_line import FAILURE, OK, command_parser
from trainscout.simulators.predictor.io.output import check_output, write_output
from trainscout.simulators.predictor.question.errors import InputError, require_choice
from trainscout.simulators.predictor.uncertainty import features_of
from trainscout.simulators.predictor.uncertainty.calibration import (
    CORRECTIONS,
    Calibration,
    CalibrationRun,
    calibration_text,
)
from trainscout.simulators.registry import get_simulator

_REASONS_SHOWN = 5
# Measured machines are off by tens of per cent; farther off are milliseconds taken for seconds,
# or one GPU's share for the whole.
LARGEST_CORRECTION = 3.0


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code: 0 written, 1 nothing written because the corrections
    do not help, 2 the runs or options cannot be used."""
    options = _parser().parse_args(arguments)
    wanted = _wanted(options.corrections)
    check_output("--output", options.output, [options.runs])
    rows = read_rows(options.runs)
    catalogue = load_catalogue()
    declared = Declarations(catalogue.gpus, catalogue.frameworks)
    results = replay_with_progress(rows, declared, get_simulator("replay"))
    runs = measured_runs(results)
    times = StepTimes(runs)
    found = identify(times, wanted)
    fit = fit_corrections(times, found)
    check_corrections(fit)
    output = options.output if helps(fit) else None
    if output is not None:
        text = calibration_text(calibration_of(times, fit), _comments(found, fit, options))
        write_output("--output", output, text)
    show(_report(runs, found, fit, output, left_out=len(rows) - len(runs)))
    return FAILURE if output is None else OK


def measured_runs(results: Sequence[Result]) -> tuple[MeasuredRun, ...]:
    """The rows with a measured and a predicted step time.

    Raises:
        InputError: when there is none, or they are of several GPUs.
    """
    runs = tuple(
        MeasuredRun(result.row.id, result.job, result.measured_s)
        for result in results
        if result.job is not None and result.prediction is not None and result.measured_s
    )
    if not runs:
        reasons = dict.fromkeys(result.reason for result in results)
        said = "; ".join(list(reasons)[:_REASONS_SHOWN])
        raise InputError("runs", len(results), f"none can be predicted: {said}")
    gpus = sorted({run.job.gpu.name for run in runs})
    if len(gpus) > 1:
        problem = "are different GPUs, and a calibration is of one"
        raise InputError("runs", ", ".join(gpus), problem, "one file for each GPU")
    return runs


def check_corrections(fit: Fit) -> None:
    """Refuse corrections so large that the runs are hardly in the unit they claim.

    Raises:
        InputError: naming the correction.
    """
    for name, factor in zip(CORRECTIONS, fit.factors, strict=True):
        if not 1 / LARGEST_CORRECTION <= factor <= LARGEST_CORRECTION:
            problem = (
                "is more than machines differ: look at the unit of the measured times "
                "(measured_iter_s is in seconds; docs/validation.md has the columns)"
            )
            raise InputError(name, f"{factor:.3g}", problem, "1/3 to 3")


def helps(fit: Fit) -> bool:
    """Whether runs left out of the fit are predicted better with it than without, on average."""
    before, after = _errors(fit)
    return bool(np.mean(np.abs(after)) < np.mean(np.abs(before)))


def _errors(fit: Fit) -> tuple[Vector, Vector]:
    """Errors of the runs' predictions, as they come and calibrated without the run, (n,) each."""
    # Residuals are of measured over predicted; errors are of predicted over measured.
    return np.expm1(-fit.before), np.expm1(-fit.after)


def calibration_of(times: StepTimes, fit: Fit) -> Calibration:
    """The calibration with the features of every run and its error when left out."""
    features = []
    for number, job in enumerate(times.jobs):
        prediction = times.predict(number, fit.corrections)
        features.append(features_of(job, prediction.step_time_s, prediction.breakdown_s))
    return Calibration(
        gpu=times.jobs[0].gpu.name,
        **{name: float(value) for name, value in zip(CORRECTIONS, fit.factors, strict=True)},
        runs=tuple(
            CalibrationRun(features[number], float(residual))
            for number, residual in zip(times.job_of_run, fit.after, strict=True)
        ),
    )


def _comments(found: Identified, fit: Fit, options: argparse.Namespace) -> dict[str, str]:
    spreads = dict(zip(CORRECTIONS, fit.spreads, strict=True))
    said = {name: f"+- {spreads[name]:.1%}" for name in found.fitted}
    header = f"Written by trainscout calibrate {options.runs.name}"
    fixed = {name: f"fixed: {why}" for name, why in found.fixed.items()}
    return {"header": header, **said, **fixed}


def _report(
    runs: Sequence[MeasuredRun], found: Identified, fit: Fit, output: Path | None, *, left_out: int
) -> RenderableType:
    """``output`` is where the corrections were written, None where they do not help."""
    errors = Table(title="Errors of predicted step times", title_justify="left", box=None)
    for name in ("run", "GPUs", "measured", "as it comes", "calibrated without it"):
        errors.add_column(name, justify="left" if name == "run" else "right")
    before, after = _errors(fit)
    for run, was, now in zip(runs, before, after, strict=True):
        gpus = str(run.job.world_size)
        errors.add_row(
            run.name, gpus, format_seconds(run.measured_s), f"{was:+.1%}", f"{now:+.1%}"
        )
    errors.add_section()
    for name, summary in (("median", np.median), ("mean", np.mean), ("largest", np.max)):
        was, now = (float(summary(np.abs(each))) for each in (before, after))
        errors.add_row(f"{name}, absolute", "", "", f"{was:.1%}", f"{now:.1%}", style="bold")
    lines = ["", "Corrections (factors on predicted times):"]
    for name, factor, spread in zip(CORRECTIONS, fit.factors, fit.spreads, strict=True):
        sure = f"+- {spread:.1%}" if name in found.fitted else f"fixed: {found.fixed[name]}"
        lines.append(f"  {name:13} {factor:.3f}  {sure}")
    if left_out:
        lines.append(f"{left_out} rows have no measured or no predicted step time: left out.")
    if output is None:
        lines.append(
            "Runs left out are predicted no better with corrections than without: nothing written."
        )
    else:
        lines.append(f"Written to {output}; use it with simulator.calibration={output}")
    return Group(errors, Text("\n".join(lines)))


def _wanted(text: str) -> tuple[str, ...]:
    names = tuple(f"{name.strip()}_time" for name in text.split(","))
    for name in names:
        known = [each.removesuffix("_time") for each in CORRECTIONS]
        require_choice("--corrections", name.removesuffix("_time"), known)
    return names


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "calibrate",
        "Fit a few corrections to measured runs of your own machines.",
        "trainscout calibrate ours.csv --output calibration.yaml\n"
        "trainscout calibrate ours.csv --corrections compute",
        "0 written; 1 corrections would not predict left-out runs better (nothing is written), or "
        "an internal failure; 2 wrong input, or what the runs confuse",
    )
    parser.add_argument(
        "runs",
        type=Path,
        help="CSV of measured runs on one kind of GPU (columns: docs/validation.md)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("calibration.yaml"),
        help="where to write the corrections (default calibration.yaml)",
    )
    parser.add_argument(
        "--corrections",
        default=",".join(name.removesuffix("_time") for name in CORRECTIONS),
        help="which to fit, as far as the runs determine them (default %(default)s)",
    )
    return parser
