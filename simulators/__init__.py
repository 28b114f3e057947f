"""Predict one training job: (model, cluster, training, recipe) -> Prediction."""

from simulators.base import Simulator, get_simulator, simulator_names
from simulators.errors import InputError
from simulators.framework import Framework
from simulators.job import Cluster, Gpu, Job, Mla, Model, Moe, Recipe, Training
from simulators.prediction import Evidence, Memory, Prediction, StageMemory
from simulators.validity import check_job, why_invalid

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
