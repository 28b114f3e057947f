"""Measured runs that an MLflow experiment holds."""

from __future__ import annotations

from statistics import median
from typing import Any

from trainscout.simulators.laboratory.calibration.questions import SETTINGS
from trainscout.simulators.laboratory.calibration.runs import MeasuredRun
from trainscout.simulators.laboratory.calibration.tables import MEASURED, own_runs
from trainscout.simulators.predictor.question.errors import InputError

# Predictions that were tracked are no measurements.
_PREDICTED = ("search", "recipe", "study", "cell")
_MOST_RUNS = 1000


def read_experiment(
    name: str, tracking_uri: str | None
) -> tuple[tuple[MeasuredRun, ...], tuple[str, ...]]:
    """The runs of an experiment whose parameters and tags are settings by our names and whose
    metrics measure steps (the median of each's history), and why others were left out.

    Raises:
        InputError: without MLflow, or for an experiment that is not there.
    """
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        allowed = "pip install mlflow"
        raise InputError("--from-mlflow", name, "needs MLflow", allowed) from error
    client = MlflowClient(tracking_uri)
    try:
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            known = [each.name for each in client.search_experiments()]
            raise InputError("--from-mlflow", name, "is no experiment there", known)
        found = client.search_runs([experiment.experiment_id], max_results=_MOST_RUNS)
    except MlflowException as error:
        raise InputError("--from-mlflow", name, f"cannot be read: {error}") from error
    rows = [
        (number, _cells(client, run))
        for number, run in enumerate(found, 1)
        if run.data.tags.get("kind") not in _PREDICTED
    ]
    names = sorted({name for _, cells in rows for name in cells} | {MEASURED[0]})
    return own_runs(names, rows, f"experiment {name}")


def _cells(client: Any, run: Any) -> dict[str, str]:
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
