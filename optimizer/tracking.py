"""Searches as MLflow runs: one parent run, one child per recipe worth keeping.

MLflow takes seconds to import and to open a store, so both happen on a thread beside the
search. Everything is logged when the search is over, under one deadline: a server that is
down or silent costs a warning, never the search.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from optimizer.trial import SearchResult, Trial
from simulators.errors import InputError, require_choice, require_positive
from simulators.prediction import Prediction

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

URI_SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")

# MLflow's own limits for one batch and one value.
_MAX_PARAMS, _MAX_VALUE = 100, 500


@dataclass(frozen=True)
class TrackingSettings:
    """``name``: mlflow or none. ``uri``: any MLflow tracking URI. ``timeout_s``: the longest the
    end of a search waits for the tracking store, in seconds."""

    name: str = "mlflow"
    uri: str = "sqlite:///mlflow.db"
    experiment: str = "trainscout"
    timeout_s: float = 30.0

    def check(self) -> None:
        """Refuse what can be known to be wrong without opening the store.

        Raises:
            InputError: naming the field.
        """
        require_choice("tracking.name", self.name, ("mlflow", "none"))
        require_positive("tracking.timeout_s", self.timeout_s)
        if not self.experiment.strip():
            raise InputError("tracking.experiment", self.experiment, "is empty", "a name")
        scheme = self.uri.partition(":")[0].partition("+")[0]
        if ":" not in self.uri or scheme not in URI_SCHEMES:
            raise InputError("tracking.uri", self.uri, "has no known scheme", URI_SCHEMES)


@dataclass(frozen=True)
class SearchRecord:
    """What is logged of one search.

    ``kept`` pairs each trial that gets a child run with its recipe as parameters; ``params``
    is the flattened configuration; ``artifacts`` are files, logged under their own names.
    """

    name: str
    result: SearchResult
    kept: Sequence[tuple[Trial, Mapping[str, Any]]]
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    artifacts: Sequence[Path] = field(default=())


class TrackingError(Exception):
    """The search could not be tracked; the text is one line."""


class Tracker(Protocol):
    """Keeps searches. ``record`` says where it put this one (None: nowhere)."""

    def record(self, record: SearchRecord) -> str | None:
        """Log the search.

        Raises:
            TrackingError: when the store is unreachable, refuses, or takes too long.
        """
        ...


class NoTracker:
    """``tracking=none``."""

    def record(self, record: SearchRecord) -> None:
        return None


class MlflowTracker:
    """Opens the store on a background thread as soon as it is built."""

    def __init__(self, settings: TrackingSettings) -> None:
        self._settings = settings
        self._opening = _Background(lambda: _open(settings))

    def record(self, record: SearchRecord) -> str:
        timeout_s, uri = self._settings.timeout_s, self._settings.uri
        deadline_s = time.monotonic() + timeout_s
        try:
            client, experiment_id = self._opening.result(timeout_s)
            logging_ = _Background(lambda: _log_search(client, experiment_id, record))
            run_id = logging_.result(max(0.1, deadline_s - time.monotonic()))
        except TimeoutError:
            raise TrackingError(f"{uri} did not answer within {timeout_s:g} s") from None
        except Exception as error:
            raise TrackingError(f"{uri}: {_root_cause(error)}") from error
        return f"{uri}, experiment {self._settings.experiment}, run {run_id}"


def make_tracker(settings: TrackingSettings) -> Tracker:
    """The tracker that checked ``settings`` ask for."""
    return NoTracker() if settings.name == "none" else MlflowTracker(settings)


def prediction_metrics(prediction: Prediction) -> dict[str, float]:
    """The numbers of a prediction under names that carry their units."""
    metrics = {
        name: getattr(prediction, name)
        for name in (
            "step_time_s",
            "mfu",
            "hfu",
            "tokens_per_s",
            "tokens_per_s_per_gpu",
            "cost_per_step_usd",
            "cost_per_billion_tokens_usd",
            "cost_of_run_usd",
        )
    }
    if prediction.interval_s is not None:
        metrics["step_time_low_s"], metrics["step_time_high_s"] = prediction.interval_s
    for name in ("peak_allocated_bytes", "peak_reserved_bytes", "headroom_bytes"):
        metrics[f"memory/{name}"] = getattr(prediction.memory, name)
    for part, seconds in prediction.breakdown_s.items():
        metrics[f"breakdown/{part.removesuffix('_s')}_s"] = seconds
    for kind, share in prediction.evidence_share.items():
        metrics[f"evidence/{kind}_share"] = share
    return metrics


T = TypeVar("T")


class _Background:
    """One call on a daemon thread: a store that never answers must not keep the process."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._outcome = call()
        except BaseException as error:
            self._error = error

    def result(self, timeout_s: float) -> Any:
        """The call's value, or its exception.

        Raises:
            TimeoutError: when it has not ended after ``timeout_s`` seconds.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._outcome


def _root_cause(error: BaseException) -> str:
    """The innermost reason in one line: what the socket or the database said."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _open(settings: TrackingSettings) -> tuple[MlflowClient, str]:
    # Defaults wait minutes for a dead server, and report usage over the network.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if settings.uri.startswith("sqlite:///"):
        _probe_sqlite(Path(settings.uri.removeprefix("sqlite:///")))
    from mlflow.tracking import MlflowClient

    # Importing MLflow sets its own levels.
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    client = MlflowClient(tracking_uri=settings.uri)
    experiment = client.get_experiment_by_name(settings.experiment)
    if experiment is not None:
        return client, experiment.experiment_id
    return client, client.create_experiment(settings.experiment)


def _probe_sqlite(path: Path) -> None:
    # MLflow retries an unusable database for minutes; SQLite says at once what is wrong.
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA schema_version").fetchone()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


def _log_search(client: MlflowClient, experiment_id: str, record: SearchRecord) -> str:
    result = record.result
    ended_ms = int(time.time() * 1000)
    parent_id = _log_run(
        client,
        experiment_id,
        name=record.name,
        started_ms=ended_ms - int(result.wall_s * 1000),
        params=record.params,
        metrics=_search_metrics(result),
        tags=record.tags,
    )
    for rank, (trial, recipe) in enumerate(record.kept, start=1):
        on_front = trial.number in {t.number for t in result.pareto}
        child_tags = {
            **record.tags,
            "mlflow.parentRunId": parent_id,
            "trainscout.rank": str(rank),
            "trainscout.trial": str(trial.number),
            "trainscout.pareto": str(on_front).lower(),
        }
        assert trial.prediction is not None  # kept trials were simulated
        child_id = _log_run(
            client,
            experiment_id,
            name=f"{record.name} #{rank}",
            started_ms=ended_ms - int(trial.duration_s * 1000),
            params=recipe,
            metrics=prediction_metrics(trial.prediction),
            tags=child_tags,
        )
        client.set_terminated(child_id, "FINISHED", ended_ms)
    for path in record.artifacts:
        client.log_artifact(parent_id, str(path))
    status = "KILLED" if result.stopped == "interrupted" else "FINISHED"
    client.set_terminated(parent_id, status, ended_ms)
    return parent_id


def _search_metrics(result: SearchResult) -> dict[str, float]:
    metrics: dict[str, float] = {f"trials/{s}": n for s, n in result.counts().items()}
    metrics |= {"wall_s": result.wall_s, "space_size": result.space_size}
    if result.best and result.best[0].prediction is not None:
        best = prediction_metrics(result.best[0].prediction)
        metrics |= {f"best/{name}": value for name, value in best.items()}
    return metrics


def _log_run(
    client: MlflowClient,
    experiment_id: str,
    *,
    name: str,
    started_ms: int,
    params: Mapping[str, Any],
    metrics: Mapping[str, float],
    tags: Mapping[str, str],
) -> str:
    from mlflow.entities import Metric, Param

    run = client.create_run(
        experiment_id,
        start_time=started_ms,
        run_name=name,
        tags={"mlflow.source.name": "optimize.py", **tags},
    )
    run_id: str = run.info.run_id
    logged = [Param(key, str(value)[:_MAX_VALUE]) for key, value in params.items()]
    for first in range(0, len(logged), _MAX_PARAMS):
        client.log_batch(run_id, params=logged[first : first + _MAX_PARAMS])
    now_ms = int(time.time() * 1000)
    client.log_batch(
        run_id,
        metrics=[
            Metric(key, float(value), now_ms, 0)
            for key, value in metrics.items()
            if math.isfinite(value)
        ],
    )
    return run_id


def flat_params(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested configuration as dotted names, for a run's parameters."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flat_params(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
