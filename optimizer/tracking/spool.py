"""A finished search as the plain data that will be logged, and the file it waits in."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from optimizer.tracking.metrics import prediction_metrics, search_metrics
from optimizer.tracking.settings import TrackingSettings
from optimizer.trial import SearchResult, Trial

SPOOL = "tracking.json"
"""File of a search's directory that says what is still to be logged, and where."""

_FORMAT = 1


@dataclass(frozen=True)
class SearchRecord:
    """What is logged of one search.

    ``kept`` pairs each trial that gets a child run with its recipe as parameters; ``params``
    is the flattened configuration; ``directory`` is where the record waits until it is logged,
    and has the ``artifacts``, files that are logged under their own names. ``metrics`` are more
    of some trials' child runs, by number.
    """

    name: str
    result: SearchResult
    kept: Sequence[tuple[Trial, Mapping[str, Any]]]
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    directory: Path
    artifacts: Sequence[Path] = field(default=())
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One run, ready to be logged. Times are milliseconds since 1970, as MLflow's."""

    name: str
    started_ms: int
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]


@dataclass(frozen=True)
class Spooled:
    """A search that waits to be logged; ``search_id`` tells it from every other one."""

    search_id: str
    uri: str
    experiment: str
    status: str
    ended_ms: int
    parent: Run
    children: tuple[Run, ...]
    artifacts: tuple[str, ...]


def spooled(record: SearchRecord, settings: TrackingSettings) -> Spooled:
    """The record as plain data."""
    result, ended_ms = record.result, int(time.time() * 1000)
    search_id = uuid.uuid4().hex
    tags = {**record.tags, "trainscout.search": search_id}
    front = {trial.number for trial in result.pareto}
    children = []
    for rank, (trial, recipe) in enumerate(record.kept, start=1):
        if trial.prediction is None:
            raise ValueError(f"trial {trial.number} was not simulated")
        more = dict(record.metrics.get(trial.number, {}))
        own = {
            "trainscout.rank": str(rank),
            "trainscout.trial": str(trial.number),
            "trainscout.pareto": str(trial.number in front).lower(),
        }
        children.append(
            Run(
                f"{record.name} #{rank}",
                ended_ms - int(trial.duration_s * 1000),
                _texts(recipe),
                _finite(prediction_metrics(trial.prediction) | more),
                {**tags, **own},
            )
        )
    return Spooled(
        search_id,
        settings.uri,
        settings.experiment,
        "KILLED" if result.stopped == "interrupted" else "FINISHED",
        ended_ms,
        Run(
            record.name,
            ended_ms - int(result.wall_s * 1000),
            _texts(record.params),
            _finite(search_metrics(result)),
            tags,
        ),
        tuple(children),
        tuple(path.name for path in record.artifacts),
    )


def write_spool(directory: Path, waiting: Spooled) -> Path:
    """Leave ``waiting`` in ``directory``, whole or not at all; only its owner may read it, for
    an address may hold a password.

    Raises:
        OSError: when the directory cannot be written.
    """
    handle, temporary = tempfile.mkstemp(dir=directory, prefix=f".{SPOOL}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({"format": _FORMAT, **asdict(waiting)}, file)
        file.flush()
        os.fsync(file.fileno())
    path = directory / SPOOL
    os.replace(temporary, path)
    return path


def read_spool(path: Path) -> Spooled:
    """What ``write_spool`` wrote.

    Raises:
        ValueError: when it is something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("format") != _FORMAT:
            raise ValueError("written by another version")
        content["parent"] = Run(**content["parent"])
        content["children"] = tuple(Run(**child) for child in content["children"])
        content["artifacts"] = tuple(content["artifacts"])
        return Spooled(**content)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is no spooled search: {error}") from error


def _texts(params: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in params.items()}


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {key: float(value) for key, value in metrics.items() if math.isfinite(value)}
