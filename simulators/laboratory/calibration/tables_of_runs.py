"""Measured runs from tables: those of published runs, or a user's own by our names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.conf.input_errors import meant_setting
from trainscout.optimizer.tracking.runs import client_of, store_is_missing
from trainscout.simulators.laboratory.published.jobs.jobs import Declarations, read_curves
from trainscout.simulators.laboratory.published.reading.rows import (
    check_header,
    csv_lines,
    read_rows,
)
from trainscout.simulators.predictor.question.errors import InputError, nearest_name
from trainscout.simulators.predictor.question.job import Job

from .questions import SETTINGS, job_of_settings
from .runs import MeasuredRun

# Columns that measure a step, and how many seconds (or tokens per second) one unit is.
STEP_TIMES = {"step_time_s": 1.0, "step_time_ms": 1e-3, "step_time_us": 1e-6}
RATES = ("tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s")
MEASURED = (*STEP_TIMES, *RATES)
# Said without a unit, in the words of frameworks and trackers.
_UNITLESS = ("step_time", "iteration_time", "iter_time", "time", "throughput", "tokens")
_NAMES = ("id", "name", "run")
# One says the machines instead of the other.
_MACHINES = {"cluster", "gpus"}
# Said of a row, and read by nobody.
_NOTES = ("note", "notes", "comment", "comments", "date")
_TIME = re.compile(r"(?:step|iter|iteration|elapsed)_time(?:_per_(?:step|iteration))?_(s|ms|us)")
_RATE = re.compile(r"(tokens|samples)(?:/|_per_)s(?:ec|econd)?((?:/|_per_)gpu)?")


def read_table(
    path: Path, stated: Mapping[str, str] = MappingProxyType({})
) -> tuple[tuple[MeasuredRun, ...], tuple[str, ...]]:
    """The measured runs of a CSV file, and why others were left out.

    A table with a column ``cluster`` (or ``gpus``) is one's own: settings by our names, and one of
    ``MEASURED``. Others have the columns of published runs (``docs/validation.md``). What is
    ``stated`` holds for all rows that do not say otherwise.

    Raises:
        InputError: for a file that is neither, or one of published runs beside ``stated``.
    """
    lines = csv_lines(path)
    header = tuple(map(str.strip, lines[0][1])) if lines else ()
    if by_our_names(header, stated):
        if long := [line for line, cells in lines[1:] if len(cells) > len(header)]:
            problem = f"has more cells than columns in line {long[0]}"
            raise InputError("runs", path, problem, f"{len(header)} cells")
        rows = [
            (line, dict(zip(header, map(str.strip, cells), strict=False)))
            for line, cells in lines[1:]
        ]
        return own_runs(header, rows, str(path), stated)
    if len(header) == 1:
        check_header(path, header)
    if header and "gpu" not in header:
        names = ("cluster", "gpus", "gpu")
        found = [(name, near) for name in header if (near := nearest_name(name, names))]
        named, meant = found[0] if found else (path, None)
        problem = "is no column" if found else "has no column that says on which machines"
        allowed = "cluster or gpus beside settings by our names; gpu beside columns as published"
        raise InputError("runs", named, problem, allowed, meant)
    if stated:
        problem = f"is of rows by our names, and {path} has the columns of published runs"
        name, value = next(iter(stated.items()))
        raise InputError("--set", f"{name}={value}", problem, "a column cluster or gpus")
    return _published(path)


def by_our_names(header: Sequence[str], stated: Collection[str] = ()) -> bool:
    """Whether a table's columns are settings by our names: it says on which machines."""
    return bool(_MACHINES & {*map(column_of, header), *stated})


def own_runs(
    header: Sequence[str],
    rows: Sequence[tuple[int, Mapping[str, str]]],
    where: str,
    stated: Mapping[str, str] = MappingProxyType({}),
) -> tuple[tuple[MeasuredRun, ...], tuple[str, ...]]:
    """Runs from rows (each with its line) of settings by our names, and why others were left out.
    ``stated`` are settings of all rows, where they do not say otherwise.

    Raises:
        InputError: for a column that is none, or measurements without a unit.
    """
    names = {name: column_of(name) for name in header}
    _check_header([column_of(name) for name in header], where)
    runs, left = [], []
    for line, entries in rows:
        cells = {names[name]: text for name, text in entries.items()}
        settings = {
            name: text
            for name, text in cells.items()
            if text and name not in (*_NAMES, *_NOTES, *MEASURED)
        }
        said = {*settings, *(_MACHINES if _MACHINES & settings.keys() else ())}
        settings = {key: text for key, text in stated.items() if key not in said} | settings
        name = next((cells[each] for each in _NAMES if cells.get(each)), f"line {line}")
        try:
            job = job_of_settings(settings)
            runs.append(MeasuredRun(name, job, _measured_s(cells, job)))
        except InputError as error:
            at = name if name == f"line {line}" else f"{name} (line {line})"
            left.append(f"{at}: {error}")
    return tuple(runs), tuple(left)


def _published(path: Path) -> tuple[tuple[MeasuredRun, ...], tuple[str, ...]]:
    # Looked up late: it brings all that reads published runs.
    from trainscout.simulators.laboratory.published.replay import replay_with_progress
    from trainscout.simulators.registry import get_simulator

    rows, catalogue = read_rows(path), load_catalogue()
    curves = read_curves(rows, path.parent)
    declarations = Declarations(catalogue.gpus, catalogue.frameworks, curves)
    runs, left = [], []
    for result in replay_with_progress(rows, declarations, get_simulator("replay")):
        if result.job is not None and result.prediction is not None and result.measured_s:
            runs.append(MeasuredRun(result.row.id, result.job, result.measured_s))
        else:
            left.append(f"{result.row.id}: {result.reason}")
    return tuple(runs), tuple(left)


def column_of(name: str) -> str:
    """Our name of a column that says what it measures and in which unit, or is in capitals."""
    if name in SETTINGS or "." in name:
        return name
    plain = re.sub(r"[\s()\[\]]+", "_", name.lower()).strip("_")
    time, rate = _TIME.fullmatch(plain), _RATE.fullmatch(plain)
    if time is not None:
        return f"step_time_{time[1]}"
    if rate is not None:
        return f"{rate[1]}_per_s" + ("_per_gpu" if rate[2] else "")
    return plain if plain in (*SETTINGS, *_NAMES, *_NOTES, *_UNITLESS) else name


def _check_header(header: Sequence[str], where: str) -> None:
    for number, name in enumerate(header):
        if name in header[:number]:
            raise InputError("runs", name, f"is a column of {where} twice", "each column once")
        if name in _UNITLESS:
            allowed = "the unit in its name: " + ", ".join(MEASURED)
            raise InputError("runs", name, f"has no unit in {where}", allowed)
        known = name in (*_NAMES, *_NOTES, *MEASURED) or "." in name or name in SETTINGS
        if not known:
            near = meant_setting(name) or nearest_name(name, [*SETTINGS, *MEASURED])
            allowed = "settings by our names, and one of " + ", ".join(MEASURED)
            raise InputError("runs", name, f"is no column that {where} may have", allowed, near)
    if not set(header) & set(MEASURED):
        problem = "has no column with a measurement"
        raise InputError("runs", where, problem, f"at least one of {', '.join(MEASURED)}")


def _measured_s(cells: Mapping[str, str], job: Job) -> float:
    """The first of ``MEASURED`` that a row has, from which others may differ by a tenth."""
    found = dict(_all_measured_s(cells, job))
    if not found:
        raise InputError("runs", None, "has no measurement", " or ".join(MEASURED))
    if max(found.values()) > 1.1 * min(found.values()):
        times = ", ".join(f"{seconds:.4g} s" for seconds in found.values())
        raise InputError("runs", " and ".join(found), f"are of different steps: {times}")
    return next(iter(found.values()))


def _all_measured_s(cells: Mapping[str, str], job: Job) -> Iterator[tuple[str, float]]:
    for name in MEASURED:
        text = cells.get(name, "")
        if not text:
            continue
        try:
            value = float(text.replace(",", ""))
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise InputError(name, text, "is no time or rate", "a number > 0")
        if name in STEP_TIMES:
            yield name, value * STEP_TIMES[name]
        elif name == "samples_per_s":
            yield name, job.training.global_batch_size / value
        else:
            gpus = job.world_size if name.endswith("_per_gpu") else 1
            yield name, job.tokens_per_step / (value * gpus)


# Predictions that were tracked are no measurements.
_PREDICTED = ("search", "recipe", "study", "cell")
_MOST_RUNS = 1000


def read_experiment(
    name: str, tracking_uri: str | None, stated: Mapping[str, str] = MappingProxyType({})
) -> tuple[tuple[MeasuredRun, ...], tuple[str, ...]]:
    """The runs of an experiment whose parameters and tags are settings by our names and whose
    metrics measure steps (the median of each's history), and why others were left out.

    Raises:
        InputError: without MLflow, or for an experiment that is not there.
    """
    try:
        from mlflow import get_tracking_uri
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        allowed = "pip install mlflow"
        raise InputError("--from-mlflow", name, "needs MLflow", allowed) from error
    uri = tracking_uri or get_tracking_uri()
    if store_is_missing(uri):
        raise InputError("--tracking-uri", uri, "is not there", "the store of that experiment")
    try:
        client = client_of(uri)
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            known = [each.name for each in client.search_experiments()]
            raise InputError("--from-mlflow", name, "is no experiment there", known)
        found = client.search_runs([experiment.experiment_id], max_results=_MOST_RUNS)
    except MlflowException as error:
        raise InputError("--from-mlflow", name, f"cannot be read: {error}") from error
    rows = [
        (number, _run_cells(client, run))
        for number, run in enumerate(found, 1)
        if run.data.tags.get("kind") not in _PREDICTED
    ]
    names = sorted({name for _, cells in rows for name in cells} | {MEASURED[0]})
    return own_runs(names, rows, f"experiment {name}", stated)


def _run_cells(client: Any, run: Any) -> dict[str, str]:
    stated = {**run.data.tags, **run.data.params}
    cells = {
        name: str(value)
        for name, value in stated.items()
        if name in SETTINGS or name.partition(".")[0] in ("recipe", "training", "cluster", "model")
    }
    for name in MEASURED:
        history = client.get_metric_history(run.info.run_id, name)
        if history:
            cells[name] = repr(median(point.value for point in history))
    return cells | {"run": run.info.run_name or run.info.run_id}
