"""Hold predictions against measured runs: ``trainscout validate --help``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.collectives.measured import read_measured_collectives
from trainscout.simulators.predictor.io.command_line import FAILURE, OK, command_parser
from trainscout.simulators.predictor.io.output import check_output, json_text, write_output
from trainscout.simulators.predictor.io.terminal import progress_bar, show
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.uncertainty.calibration import read_calibration
from trainscout.simulators.registry import Simulator, SimulatorSpec, get_simulator

from .calibration.tables_of_runs import by_our_names, read_table
from .published.jobs.jobs import read_curves, shipped_declarations
from .published.page.plots import validation_html
from .published.page.terminal_tables import validation_tables
from .published.published import add_runs, read_peer_predictions
from .published.reading.rows import QUALITIES, Row, csv_lines, read_rows, unread_columns
from .published.regularity import mark_extrapolated, with_doubtful_states
from .published.replay import Result, replay_with_progress
from .published.report import validation_report


def main(arguments: Sequence[str]) -> int:
    """Run the command: 0, or 1 when nothing is predicted."""
    options = _parser().parse_args(arguments)
    grades = _grades(options.quality)
    check_output("--json", options.json, [options.runs])
    check_output("--html", options.html, [options.runs, options.json])
    calibration = None if options.calibration is None else read_calibration(options.calibration)
    spec = SimulatorSpec(options.simulator, calibration)
    report, results = predict(options.runs, grades, spec, options.measured_collectives)
    if options.json is not None:
        write_output("--json", options.json, json_text(report, 1))
    if options.html is not None:
        write_output("--html", options.html, validation_html(report))
    show(validation_tables(report, results))
    return OK if report["rows"] else FAILURE


def predict(
    runs: Path,
    grades: Sequence[str],
    simulator: SimulatorSpec | str,
    measured_collectives: Path | None = None,
) -> tuple[dict[str, Any], tuple[Result, ...]]:
    """The report on the measured runs of a CSV file, and its rows; ``measured_collectives``: what
    was measured on the cluster of them all.

    Raises:
        InputError: for a file that is not a table of measured runs, none of whose rows can be
            read, or an unknown simulator.
    """
    spec = SimulatorSpec.of(simulator)
    lines = csv_lines(runs)
    if lines and by_our_names([*map(str.strip, lines[0][1])]):
        results = _own_results(runs, where_it_holds(spec), measured_collectives)
        return validation_report(results, grades, ()), results
    rows = mark_extrapolated(read_rows(runs))
    if all(row.fault for row in rows):
        raise InputError("runs", runs, f"has no row that can be read; {rows[0].fault}")
    declarations = shipped_declarations()
    curves = read_curves(rows, runs.parent)
    if measured_collectives is not None:
        found = read_measured_collectives(measured_collectives, "--measured-collectives")
        curves[str(measured_collectives)] = found
        declarations = replace(declarations, measured_collectives=str(measured_collectives))
    declarations = replace(declarations, curves=curves)
    results = replay_with_progress(rows, declarations, where_it_holds(spec))
    results = with_doubtful_states(results)
    peers = read_peer_predictions()
    return validation_report(results, grades, peers, unread_columns(runs)), results


def _own_results(
    table: Path, simulator: Simulator, measured_collectives: Path | None
) -> tuple[Result, ...]:
    """Rows by our names (``trainscout calibrate``) as those that are published."""
    field, file = "cluster.measured_collectives", measured_collectives
    runs, left = read_table(table, {} if file is None else {field: str(file)})
    results = []
    with progress_bar("predicting", len(runs)) as advance:
        for run in runs:
            job = run.job
            row = Row(
                id=run.name,
                gpu=job.gpu.name,
                source=table.name,
                num_gpus=job.world_size,
                model=job.model.name,
                num_experts=job.model.moe.num_experts if job.model.moe else None,
                dtype=job.precision,
            )
            found = simulator.simulate(job)
            results.append(Result(row, job, found, run.measured_s, None, found.assumptions, ""))
            advance()
    for name, _, why in (each.partition(": ") for each in left):
        results.append(
            Result(Row(name, "", table.name, fault=why), None, None, None, None, (), why)
        )
    return tuple(results)


def where_it_holds(spec: SimulatorSpec) -> Simulator:
    """The simulator, with its calibration on the GPUs that were measured and none on others."""
    return get_simulator(spec) if spec.calibration is None else _WhereMeasured(spec)


class _WhereMeasured:
    """A calibrated simulator beside the same as it comes."""

    def __init__(self, spec: SimulatorSpec) -> None:
        assert spec.calibration is not None
        self.name, self._gpus = spec.name, spec.calibration.gpus
        self._measured = get_simulator(spec)
        self._as_it_comes = get_simulator(replace(spec, calibration=None))

    def simulate(self, job: Job) -> Prediction:
        if job.gpu.name in self._gpus:
            return self._measured.simulate(job)
        found = self._as_it_comes.simulate(job)
        stated = f"not calibrated: that is of {', '.join(self._gpus)}"
        return replace(found, assumptions=(*found.assumptions, stated))


def _grades(text: str) -> tuple[str, ...]:
    grades = tuple(grade.strip().upper() for grade in text.split(","))
    for grade in grades:
        if grade not in QUALITIES:
            raise InputError("--quality", text, "is not a list of grades", ",".join(QUALITIES))
    return grades


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "validate",
        "Predict measured training runs and report the errors.",
        "trainscout validate                         # the published rows\n"
        "trainscout validate ours.csv --html ours.html --json ours.json",
        "0 done; 1 nothing could be predicted, or an internal failure; 2 wrong input",
    )
    add_runs(parser)
    parser.add_argument("--json", type=Path, help="write summaries and every row to this file")
    parser.add_argument("--html", type=Path, help="write a page to browse, without any server")
    parser.add_argument(
        "--quality",
        default="A,B",
        help="grades that enter the summaries (default A,B; other rows are listed only)",
    )
    parser.add_argument("--simulator", default="replay", help="which simulator predicts")
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="corrections of trainscout calibrate"
    )
    parser.add_argument(
        "--measured-collectives",
        type=Path,
        metavar="FILE",
        help="collectives measured on the cluster of the rows (columns: docs/collectives.md)",
    )
    return parser
