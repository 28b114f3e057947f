"""A job as JSON and back, for the process that traces a rank of it."""

from __future__ import annotations

import dataclasses
from typing import Any

from simulators.framework import Framework
from simulators.job import Cluster, Gpu, Job, Recipe, Training
from simulators.model import Mla, Model, Moe


def job_json(job: Job) -> dict[str, Any]:
    """What ``json`` can write."""
    return dataclasses.asdict(job)


def read_job(given: dict[str, Any]) -> Job:
    """The job that ``job_json`` described; raises TypeError for other fields."""
    model = dict(given["model"])
    moe, mla = model["moe"], model["mla"]
    model["moe"] = None if moe is None else Moe(**moe)
    model["mla"] = None if mla is None else Mla(**mla)
    return Job(
        Model(**model),
        Gpu(**given["gpu"]),
        Cluster(**given["cluster"]),
        Training(**given["training"]),
        Recipe(**given["recipe"]),
        Framework(**given["framework"]),
    )
