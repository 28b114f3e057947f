"""Files that declarations name, and a model's own: found and read where declarations are read."""

from __future__ import annotations

import itertools
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import TypeVar, cast

from trainscout.conf.hub_names import FILE, downloaded
from trainscout.simulators.predictor.collectives.measured import read_measured_collectives
from trainscout.simulators.predictor.moe.popularity import read_histograms
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.model import Model

T = TypeVar("T")


def config_file(name: str) -> Path | None:
    """The ``config.json`` that a name stands for: it, the directory it is in, or what was
    downloaded of a model of the Hub that does not ship; None: neither."""
    path = Path(name).expanduser()
    if name.endswith(".json"):
        return path
    if name.endswith((".yaml", ".yml")):
        return None
    is_path = (bool(name) and isfile(path / FILE)) or name.startswith(("./", "../", "/", "~"))
    return path / FILE if is_path else downloaded(name)


def with_named_files(value: T) -> T:
    """A declaration with what the files that it names, if any, hold.

    Raises:
        InputError: for a file that cannot be read or is no such table, or content given by hand.
    """
    if isinstance(value, Model):
        return cast(T, _with_histogram(value))
    if isinstance(value, Cluster):
        return cast(T, _with_measured_collectives(value))
    return value


def _with_measured_collectives(cluster: Cluster) -> Cluster:
    if cluster.measured_collectives is None and not cluster.measured:
        return cluster
    if cluster.measured_collectives is None or cluster.measured:
        problem, allowed = "is read from a file", "cluster.measured_collectives=FILE"
        raise InputError("cluster.measured", "...", problem, allowed)
    rows = read_measured_collectives(Path(cluster.measured_collectives))
    return replace(cluster, measured=rows)


def _with_histogram(model: Model) -> Model:
    """The model with the routings that ``model.moe.histogram``, if any, counts."""
    moe = model.moe
    if moe is None or not (moe.histogram or moe.measured):
        return model
    if moe.histogram is None or moe.measured:
        problem = "is read from a file"
        raise InputError("model.moe.measured", "...", problem, "model.moe.histogram=FILE")
    try:
        counts = read_histograms(Path(moe.histogram))
    except InputError as error:
        field = "model.moe.histogram"
        raise InputError(field, error.value, error.problem, error.allowed) from error
    if len(counts[0]) != moe.num_experts:
        problem = f"counts routings of {len(counts[0])} experts"
        raise InputError("model.moe.histogram", moe.histogram, problem, f"{moe.num_experts}")
    return replace(model, moe=replace(moe, measured=tuple(itertools.chain(*counts))))
