"""What is to be tracked as plain data, and the file it waits in until it is."""

from __future__ import annotations

import json
import math
import os
import posixpath
import re
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from trainscout.optimizer.tracking.settings import TrackingSettings
from trainscout.simulators.predictor.io.values import recorded

SPOOL = "tracking.json"
"""File of a search's or study's directory that says what is still to be logged, and where."""

RECORD_ID = "record_id"
"""Tag of every run that distinguishes what was tracked at once from all else."""

_FORMAT = 2

_Value = TypeVar("_Value")

Series = Sequence[tuple[int, float]]
"""Values of one metric, each at a step."""


@dataclass(frozen=True)
class Run:
    """One run, ready to be logged. Times are milliseconds since 1970, as MLflow's; ``series`` are
    metrics with a value at each of several steps."""

    name: str
    started_ms: int
    ended_ms: int
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    series: dict[str, Series] = field(default_factory=dict)


@dataclass(frozen=True)
class RunTree:
    """What is tracked of one search or study: a run with its children.

    ``status`` is MLflow's (FINISHED, KILLED); ``directory`` is where all this waits until it is
    logged, and has the ``artifacts``, files that are logged under their own names. With
    ``children_digest``, which equal children have in common, children that the store has already
    are not logged again: the parent is given a tag that names the run that has them.
    """

    parent: Run
    children: tuple[Run, ...]
    directory: Path
    artifacts: tuple[Path, ...] = ()
    status: str = "FINISHED"
    children_digest: str | None = None


@dataclass(frozen=True)
class Spooled:
    """A ``RunTree`` that waits to be logged at ``uri``; ``record_id`` is its own."""

    record_id: str
    uri: str
    experiment: str
    status: str
    parent: Run
    children: tuple[Run, ...]
    artifacts: tuple[str, ...]
    children_digest: str | None


def make_run(
    name: str,
    started_ms: int,
    ended_ms: int,
    *,
    params: Mapping[str, Any],
    metrics: Mapping[str, float],
    tags: Mapping[str, Any],
    series: Mapping[str, Series] | None = None,
) -> Run:
    """A run of values as they come: what is None or not finite is left out, and in names of
    parameters and metrics ``_`` stands for what MLflow refuses there."""
    finite = {key: float(value) for key, value in metrics.items() if math.isfinite(value)}
    return Run(
        name,
        started_ms,
        ended_ms,
        _named(_texts(params)),
        _named(finite),
        _texts(tags),
        _named(series or {}),
    )


def _named(values: Mapping[str, _Value]) -> dict[str, _Value]:
    """Users name targets and what-ifs as they like; MLflow takes names that could be paths."""
    named = {re.sub(r"[^\w./ -]", "_", key): value for key, value in values.items()}
    return {
        key if posixpath.normpath(key) == key else key.replace("/", "_"): value
        for key, value in named.items()
    }


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in values.items() if value is not None}


def spooled(tree: RunTree, settings: TrackingSettings) -> Spooled:
    """The tree as it will wait for the store of ``settings``."""
    return Spooled(
        uuid.uuid4().hex,
        settings.uri,
        settings.experiment,
        tree.status,
        tree.parent,
        tree.children,
        tuple(path.relative_to(tree.directory).as_posix() for path in tree.artifacts),
        tree.children_digest,
    )


def write_spool(directory: Path, waiting: Spooled) -> Path:
    """Leave ``waiting`` in ``directory``, whole or not at all; only its owner may read it, for
    an address may hold a password."""
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

    Whoever shares a directory may have written it in our place: it names files that are sent to
    a server, which may only be those beside it.

    Raises:
        ValueError: when it is something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        written = content.pop("format")
        if written == _FORMAT:
            waiting: Spooled = recorded(Spooled, content)
            _check(waiting, path.parent)
            return waiting
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        problem = f"{path} is no spooled search: {type(error).__name__}: {error}"
        raise ValueError(problem) from error
    raise ValueError(
        f"{path} was left by another version of Trainscout (format {written}, not {_FORMAT}): "
        "let that version flush it, or delete it (the results beside it are kept)"
    )


def _check(waiting: Spooled, directory: Path) -> None:
    TrackingSettings(uri=waiting.uri, experiment=waiting.experiment).check()
    for value in (waiting.record_id, waiting.children_digest):
        if value is not None and not re.fullmatch(r"\w+", value):  # they enter queries
            raise ValueError(f"{value!r} is no identifier")
    for name in waiting.artifacts:
        file = directory / name
        if not file.resolve().is_relative_to(directory.resolve()) or name != Path(name).as_posix():
            raise ValueError(f"{name!r} is no file of {directory}")
