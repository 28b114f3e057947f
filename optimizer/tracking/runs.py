"""Spooled searches into an MLflow store: few calls, many values each."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sqlite3
import tempfile
import uuid
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trainscout.optimizer.tracking.spool import RECORD_ID, Run, Spooled, read_spool
from trainscout.simulators.predictor.io.yaml_files import read_yaml

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

EXPERIMENT_TAGS = {
    # Without it MLflow 3 guesses, and shows an empty experiment as a chat application's.
    "mlflow.experimentKind": "custom_model_development",
    # Opened by …/runs?workflowType=machine_learning&viewStateShareKey=trainscout.
    "mlflow.sharedViewState.trainscout": json.dumps(
        read_yaml(Path(__file__).with_name("mlflow_view.yaml"))
    ),
}
"""Tags by which MLflow's pages know."""


# MLflow's own limits for one batch and one value.
_MAX_PARAMS, _MAX_METRICS, _MAX_VALUE, _MAX_TAG = 100, 900, 500, 5000


def open_store(uri: str, experiment: str) -> tuple[MlflowClient, str]:
    """A client of the store at ``uri``, and the id of the experiment, created if need be."""
    if uri.startswith("sqlite:///"):
        path = Path(uri.removeprefix("sqlite:///"))
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _make_sqlite(path)
        _probe_sqlite(path)
    client = client_of(uri)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return client, client.create_experiment(experiment, tags=EXPERIMENT_TAGS)
    # What its users chose stays.
    for name in EXPERIMENT_TAGS.keys() - found.tags.keys():
        client.set_experiment_tag(found.experiment_id, name, EXPERIMENT_TAGS[name])
    return client, found.experiment_id


def store_is_missing(uri: str) -> bool:
    """Whether ``uri`` is a file that is not there: MLflow makes one where it only should read."""
    path = uri.removeprefix("sqlite:///")
    return path != uri and not Path(path).exists()


def client_of(uri: str) -> MlflowClient:
    """A client of the store at ``uri`` that keeps quiet and does not wait for ever."""
    # Defaults wait minutes for a dead server, and report usage over the network.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    # Importing MLflow sets its own levels.
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return MlflowClient(tracking_uri=uri)


def log_spooled(client: MlflowClient, experiment_id: str, path: Path, *, again: bool) -> str:
    """Log the search that waits at ``path`` and remove it from there; the parent run's id.

    ``again``: it may have been tried before. What that left unfinished is deleted, and a search
    that did get through is not logged twice.

    Raises:
        ValueError: when there is no spooled search at ``path``.
        Exception: whatever MLflow raises when its store fails; the search goes on waiting.
    """
    waiting = read_spool(path)
    run_id = _logged_before(client, experiment_id, waiting) if again else None
    if run_id is None:
        run_id = _log(client, experiment_id, path.parent, waiting)
    path.unlink()
    return run_id


def _log(client: MlflowClient, experiment_id: str, directory: Path, waiting: Spooled) -> str:
    tags = {RECORD_ID: waiting.record_id}
    children, more = waiting.children, {}
    if waiting.children_digest is not None:
        more[_DIGEST] = waiting.children_digest
        having = _with_children(client, experiment_id, waiting.children_digest)
        if having is not None:
            children, more = (), {"children_in_run": having}
    parent_id = _log_run(client, experiment_id, waiting.parent, {**tags, **more})
    for child in children:
        child_id = _log_run(client, experiment_id, child, {**tags, _PARENT: parent_id})
        client.set_terminated(child_id, "FINISHED", child.ended_ms)
    for name in waiting.artifacts:
        folder = PurePosixPath(name).parent
        client.log_artifact(
            parent_id, str(directory / name), None if folder == PurePosixPath() else str(folder)
        )
    # Last: a parent that has ended was logged completely.
    client.set_terminated(parent_id, waiting.status, waiting.parent.ended_ms)
    return parent_id


_PARENT, _DIGEST = "mlflow.parentRunId", "children_digest"


def _with_children(client: MlflowClient, experiment_id: str, digest: str) -> str | None:
    """The run that has children of this digest already."""
    words = f"tags.{_DIGEST} = '{digest}' and attributes.status = 'FINISHED'"
    found = client.search_runs([experiment_id], words, max_results=1)
    return str(found[0].info.run_id) if found else None


def _log_run(client: MlflowClient, experiment_id: str, run: Run, more_tags: dict[str, str]) -> str:
    from mlflow.entities import Metric, Param

    tags = {key: value[:_MAX_TAG] for key, value in run.tags.items()}
    run_id: str = client.create_run(
        experiment_id, start_time=run.started_ms, run_name=run.name, tags={**tags, **more_tags}
    ).info.run_id
    params = [Param(key, value[:_MAX_VALUE]) for key, value in run.params.items()]
    metrics = [Metric(key, value, run.ended_ms, 0) for key, value in run.metrics.items()]
    for key, points in run.series.items():
        metrics += [Metric(key, value, run.ended_ms, step) for step, value in points]
    client.log_batch(run_id, metrics[:_MAX_METRICS], params[:_MAX_PARAMS])
    for first in range(_MAX_PARAMS, len(params), _MAX_PARAMS):
        client.log_batch(run_id, params=params[first : first + _MAX_PARAMS])
    for first in range(_MAX_METRICS, len(metrics), _MAX_METRICS):
        client.log_batch(run_id, metrics[first : first + _MAX_METRICS])
    return run_id


def _logged_before(client: MlflowClient, experiment_id: str, waiting: Spooled) -> str | None:
    words = f"tags.{RECORD_ID} = '{waiting.record_id}'"
    found = client.search_runs([experiment_id], words, max_results=1000)
    for run in found:
        if _PARENT not in run.data.tags and run.info.status == waiting.status:
            return str(run.info.run_id)
    for run in found:
        client.delete_run(run.info.run_id)
    return None


def _make_sqlite(path: Path) -> None:
    """Have MLflow make a new store in memory, where its dozens of migrations wait for no disk, and
    put it at ``path`` whole, unless somebody else has by then."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    # What cannot be written here, MLflow is to say of the store itself.
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=memory) as folder:
        made = Path(folder, path.name)
        client_of(f"sqlite:///{made}")
        whole = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with made.open("rb") as content, whole.open("xb") as file:
                shutil.copyfileobj(content, file)
                file.flush()
                os.fsync(file.fileno())
            os.link(whole, path)
        finally:
            whole.unlink(missing_ok=True)


def _probe_sqlite(path: Path) -> None:
    # MLflow retries an unusable database for minutes; SQLite says at once what is wrong.
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA schema_version").fetchone()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
