"""Predict one training job: (model, cluster, training, recipe) -> Prediction."""

from trainscout.simulators.predictor.answer.prediction import (
    Evidence,
    Memory,
    Prediction,
    StageMemory,
)
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import (
    Cluster,
    Gpu,
    Job,
    Mla,
    Model,
    Moe,
    Recipe,
    Training,
)
from trainscout.simulators.predictor.question.validity import check_job, why_invalid
from trainscout.simulators.registry import Simulator, get_simulator, simulator_names

__all__ = [
    "Cluster",
    "Evidence",
    "Framework",
    "Gpu",
    "InputError",
    "Job",
    "Memory",
    "Mla",
    "Model",
    "Moe",
    "Prediction",
    "Recipe",
    "Simulator",
    "StageMemory",
    "Training",
    "check_job",
    "get_simulator",
    "simulator_names",
    "why_invalid",
]
