"""Calibrate the predictor to your own machines: ``trainscout calibrate --help``."""

from __future__ import annotations

import argparse
import datetime
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from trainscout.reports.wording import format_seconds
from trainscout.simulators.predictor.io.command_line import FAILURE, OK, command_parser
from trainscout.simulators.predictor.io.output import check_output, write_output
from trainscout.simulators.predictor.io.terminal import plain_table, show
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.uncertainty.calibration import (
    Calibration,
    CalibrationRun,
    calibration_text,
    columns_of,
)
from trainscout.simulators.predictor.uncertainty.factors import AS_IT_COMES, FACTORS, SHARES
from trainscout.simulators.predictor.uncertainty.posterior import Posterior, Vector

from .calibration.logs import read_log
from .calibration.profiled import OPTION, read_profiled
from .calibration.questions import job_of_settings, settings_of
from .calibration.runs import MeasuredRun, check_runs, equal_jobs, with_predictions
from .calibration.support import left_out, relative, supported
from .calibration.tables_of_runs import read_table

_LEFT_SHOWN = 5
_FURTHER = {
    "suggest": "which runs to measure next",
    "watch": "whether a run is still as it was",
    "evidence": "what calibrating published runs is worth",
}


@dataclass(frozen=True)
class Sources:
    """Runs that can be used, beside their predictions; their jobs as numbers; where they come
    from; what is to be said of them; and what a profile states, which predictions know."""

    runs: tuple[CalibrationRun, ...]
    jobs: np.ndarray
    origin: str
    notes: tuple[str, ...]
    stated: Calibration | None = None


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code: 0 written, 1 nothing written because what runs say
    of others does not hold, 2 the runs or options cannot be used."""
    if arguments and arguments[0] in _FURTHER:
        room = "trainscout.simulators.laboratory.calibration"
        further = importlib.import_module(f"{room}.{arguments[0]}_command")
        code: int = further.main(arguments[1:])
        return code
    options = _parser().parse_args(arguments)
    profile = options.from_profile
    read = [*options.runs, *options.from_log, *([profile] if profile else [])]
    check_output("--output", options.output, read)
    stated = None if profile is None else read_profiled(profile)
    named = options.runs or options.from_log or options.from_mlflow
    if stated is not None and not named:
        return _write_stated(stated, options.output)
    found = read_sources(options, stated)
    errors = np.array([run.log_residual for run in found.runs])
    expected, certain = left_out(columns_of(found.runs), errors, found.jobs)
    share = float(supported(errors, expected))
    if found.stated is not None and not share:
        return _write_stated(found.stated, options.output)
    calibration = calibration_of(found, share or 1.0)
    if share:
        text = calibration_text(calibration, _comments(calibration))
        write_output("--output", options.output, text)
    show(_report(found, calibration, certain, options.output if share else None))
    return OK if share else FAILURE


def _write_stated(stated: Calibration, output: Path) -> int:
    """A calibration by a profile alone, which leaves error bars as they are: nothing of runs."""
    calibration = replace(stated, made=f"{_made_today()}, from {stated.made}")
    write_output("--output", output, calibration_text(calibration))
    show(
        Text(
            f"{calibration.words}. Error bars stay as they are: runs beside it narrow them.\n"
            f"Written to {output}; use it with cluster.calibration={output}"
        )
    )
    return OK


def measured_runs(
    options: argparse.Namespace, *, recent: bool = False
) -> tuple[tuple[MeasuredRun, ...], str, tuple[str, ...]]:
    """The runs that a command line names (``add_sources``), of logs the whole or as they are by
    ``recent`` steps, where they are from, and notes.

    Raises:
        InputError: when there is none, or for one that cannot be read.
    """
    runs: list[MeasuredRun] = []
    notes: list[str] = []
    origins: list[Path | str] = []
    for field, paths in (("runs", options.runs), ("--from-log", options.from_log)):
        for number, path in enumerate(paths):
            if path.resolve() in [before.resolve() for before in paths[:number]]:
                raise InputError(field, path, "is given twice", "each file once")
    settings = settings_of(options.settings, "--set")
    for path in options.runs:
        found, left = read_table(path, settings)
        _some("runs", path, found, left)
        runs += found
        origins.append(path.name)
        notes += _left_out("rows", left)
    for path, launch in zip(options.from_log, _launches(options), strict=True):
        job = job_of_settings(settings, launch)
        steps = read_log(path, job, recent=recent)
        notes += [f"{path.name}: {each}" for each in steps.notes]
        runs.append(MeasuredRun(path.name, job, steps.step_time_s))
        origins.append(f"{path.name} ({steps.framework}, {steps.kept} steps)")
    if options.from_mlflow is not None:
        from .calibration.tables_of_runs import read_experiment

        found, left = read_experiment(options.from_mlflow, options.tracking_uri, settings)
        _some("--from-mlflow", options.from_mlflow, found, left)
        runs += found
        origins.append(f"MLflow experiment {options.from_mlflow}")
        notes += _left_out("runs", left)
    if not runs:
        allowed = "a table, --from-log LOG --given LAUNCH, or --from-mlflow EXPERIMENT"
        raise InputError("runs", None, "is missing", allowed)
    return tuple(runs), ", ".join(map(str, origins)), tuple(notes)


def _some(field: str, source: object, found: Sequence[MeasuredRun], left: Sequence[str]) -> None:
    if not found and not left:
        raise InputError(field, source, "has no runs")
    if not found:
        raise InputError(field, source, f"none can be predicted: {_reasons(left)}")


def _left_out(what: str, left: Sequence[str]) -> list[str]:
    if not left:
        return []
    return [f"{len(left)} {what} left out: {_reasons(left)}"]


def _reasons(left: Sequence[str]) -> str:
    """Why runs (``line 2: ...``) are left out, each reason once."""
    runs: dict[str, list[str]] = {}
    for run, _, why in (each.partition(": ") for each in left):
        runs.setdefault(why, []).append(run)
    shown = [
        f"{', '.join(names[:_LEFT_SHOWN])}{', ...' * (len(names) > _LEFT_SHOWN)}: {why}"
        for why, names in runs.items()
    ]
    return "; ".join(shown[:_LEFT_SHOWN]) + "; ..." * (len(shown) > _LEFT_SHOWN)


def read_sources(options: argparse.Namespace, stated: Calibration | None = None) -> Sources:
    """The runs that a command line names, beside their predictions. What a profile has ``stated``
    is kept where these are, on average, nearer with it.

    Raises:
        InputError: as ``measured_runs``, and for measurements that cannot be meant.
    """
    runs, origin, statement = measured_runs(options)
    notes = list(statement)
    predicted, jobs = with_predictions(runs), equal_jobs(runs)
    if stated is not None:
        informed = with_predictions(runs, stated)
        was, now = (
            np.mean([abs(run.log_residual) for run in each]) for each in (predicted, informed)
        )
        if now < was:
            predicted = informed
            origin = f"{origin}, {stated.made}"
        else:
            notes.append(f"{stated.made} is left out: without it runs are predicted better")
            stated = None
    used = check_runs(predicted, jobs)
    strange = [run for row, run in enumerate(predicted) if row not in used]
    notes += [
        f"{run.name} is left out: it took {np.exp(run.log_residual):.3g} times what is predicted"
        for run in strange
    ]
    kept = tuple(predicted[row] for row in used)
    return Sources(kept, jobs[list(used)], origin, tuple(notes), stated)


def _launches(options: argparse.Namespace) -> list[str | None]:
    """What was launched for each log: one for all, or one each."""
    launches: list[str | None] = list(options.given)
    logs = len(options.from_log)
    if launches and not logs:
        raise InputError(
            "--given", launches[0], "says what a log is of", "--from-log LOG beside it"
        )
    if len(launches) not in (0, 1, logs):
        problem = f"is there {len(launches)} times beside {logs} logs"
        raise InputError("--given", ", ".join(map(str, launches)), problem, "once, or one each")
    return launches if len(launches) == logs else (launches or [None]) * logs


def calibration_of(found: Sources, share: float) -> Calibration:
    """The calibration that runs make, of which so much is applied."""
    return Calibration(
        gpus=tuple(sorted({run.traits.gpu for run in found.runs})),
        factors=AS_IT_COMES if found.stated is None else found.stated.factors,
        runs=found.runs,
        share=share,
        made=f"{_made_today()}, from {found.origin}",
    )


def _made_today() -> str:
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return f"trainscout {version('trainscout')} on {today}"


@dataclass(frozen=True)
class FactorRow:
    """How much longer a part of the step takes on some machines, and a standard error of that."""

    name: str
    factor: float
    spread: float


def factor_rows(calibration: Calibration) -> tuple[FactorRow, ...]:
    """The factors of a calibration, on top of each other: of whole steps by GPU and software,
    then of the parts of a step."""
    columns = columns_of(calibration.runs)
    errors = np.array([run.log_residual for run in calibration.runs])
    posterior = Posterior(columns, errors)
    scales = np.array(calibration.scales_of([run.traits for run in calibration.runs]))
    unknown = posterior.spreads(columns)
    kinds: dict[str, list[int]] = {}
    for row, run in enumerate(calibration.runs):
        kinds.setdefault(f"{run.traits.gpu}, {run.traits.software}", []).append(row)
    rows = [
        FactorRow(
            f"whole steps on {kind}", float(np.median(scales[of])), float(np.median(unknown[of]))
        )
        for kind, of in kinds.items()
    ]
    parts = zip(SHARES, calibration.part_logs, posterior.part_spreads, strict=True)
    words = {name: name.removesuffix("_time").replace("_", " ") for name in FACTORS}
    rows += [FactorRow(words[name], float(np.exp(part)), float(s)) for name, part, s in parts]
    return tuple(rows)


def _comments(calibration: Calibration) -> tuple[str, ...]:
    rows = factor_rows(calibration)
    return (
        "How measured runs differ from their predictions. What they say of a job is worked out",
        "when it is predicted; times of these runs, the parts on top of the whole:",
        *(f"  {row.name}: x {row.factor:.3f} +- {row.spread:.1%}" for row in rows),
    )


def _report(
    found: Sources, calibration: Calibration, certain: Vector, output: Path | None
) -> RenderableType:
    """``certain``: what would be applied to each run by the others. ``output`` is where the
    calibration was written, None where it does not hold."""
    columns = ("#GPUs", "#measured", "#as it comes", "#calibrated without it")
    table = plain_table("run", *columns, title="Errors of predicted step times")
    errors = np.array([run.log_residual for run in found.runs])
    before, after = relative(errors), relative(errors, calibration.share * certain)
    for run, was, now in zip(found.runs, before, after, strict=True):
        gpus, measured = str(run.traits.num_gpus), format_seconds(run.measured_s)
        table.add_row(run.name, gpus, measured, f"{was:+.1%}", f"{now:+.1%}")
    table.add_section()
    for name, summary in (("median", np.median), ("mean", np.mean), ("largest", np.max)):
        was, now = (float(summary(np.abs(each))) for each in (before, after))
        table.add_row(f"{name}, absolute", "", "", f"{was:.1%}", f"{now:.1%}", style="bold")
    lines = ["", "Times as these runs have them (the parts on top of the whole):"]
    lines += [
        f"  {row.name:40} x {row.factor:.3f}  +- {row.spread:.1%}"
        for row in factor_rows(calibration)
    ]
    lines += [f"{note}." for note in found.notes]
    if calibration.share < 1:
        lines.append(
            f"{calibration.share:.0%} of what runs say is applied: so runs left out are predicted "
            "best."
        )
    if output is not None:
        lines.append(f"Written to {output}; use it with simulator.calibration={output}")
    elif len(set(found.jobs.tolist())) == 1:
        lines.append("One run says nothing of others: nothing written. Measure another layout.")
    else:
        lines.append(
            "Runs left out are predicted no better with what the others say: nothing written."
        )
    return Group(table, Text("\n".join(lines)))


def add_sources(parser: argparse.ArgumentParser) -> None:
    """The options that ``read_sources`` reads."""
    parser.add_argument(
        "runs",
        type=Path,
        nargs="*",
        default=[],
        help="CSV of measured runs: by our names (a column cluster, recipe fields, step_time_s or "
        "tokens_per_s), or with the columns of docs/validation.md",
    )
    parser.add_argument(
        "--from-log",
        type=Path,
        action="append",
        default=[],
        metavar="LOG",
        help="a training's own log; may be repeated",
    )
    parser.add_argument(
        "--given",
        action="append",
        default=[],
        metavar="LAUNCH",
        help="its launch script, configuration or arguments, as trainscout explain reads them",
    )
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="what logs and rows are of besides: model=, cluster=, framework=, recipe.tp=, ...",
    )
    parser.add_argument("--from-mlflow", metavar="EXPERIMENT", help="runs of an MLflow experiment")
    parser.add_argument("--tracking-uri", metavar="URI", help="where MLflow keeps it")


def _parser() -> argparse.ArgumentParser:
    further = "; ".join(f"trainscout calibrate {name}: {what}" for name, what in _FURTHER.items())
    parser = command_parser(
        "calibrate",
        f"Learn from measured runs how your machines differ from predictions.\n\n{further}.",
        "trainscout calibrate ours.csv --output calibration.yaml\n"
        "trainscout calibrate --from-log train.log --given launch.sh \\\n"
        "    --set cluster=h100_64\n"
        "trainscout calibrate --from-profile kept/observed_factors.json",
        "0 written; 1 what runs say of runs left out does not hold (nothing is written), or an "
        "internal failure; 2 wrong input",
    )
    add_sources(parser)
    parser.add_argument(
        OPTION,
        type=Path,
        metavar="FILE",
        help="observed_factors.json of a profile, or a file of trainscout measure: how its "
        "kernels differ from their prices, alone or beside runs",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("calibration.yaml"),
        help="where to write the calibration (default calibration.yaml)",
    )
    return parser
