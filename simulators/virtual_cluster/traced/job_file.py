"""A job as JSON and back, for the process that traces a rank of it."""

from __future__ import annotations

import dataclasses
from typing import Any

from trainscout.simulators.predictor.io.values import typed_value
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training


def job_json(job: Job) -> dict[str, Any]:
    """What ``json`` can write."""
    return dataclasses.asdict(job)


def read_job(given: dict[str, Any]) -> Job:
    """The job that ``job_json`` described; raises TypeError or InputError for other fields."""
    framework = given["framework"]
    return Job(
        read_model(given["model"]),
        typed_value(Gpu, "gpu", given["gpu"]),
        Cluster(**given["cluster"]),
        Training(**given["training"]),
        Recipe(**given["recipe"]),
        # As it was declared: the recipe chooses again.
        typed_value(Framework, "framework", framework.get("declared", framework)),
    )


def read_model(given: dict[str, Any]) -> Model:
    """A model that ``dataclasses.asdict`` took apart; raises TypeError for other fields."""
    return typed_value(Model, "model", given)
