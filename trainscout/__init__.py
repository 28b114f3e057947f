"""Trainscout: which training recipe to run, what it costs, and how sure that is.

From a model and a cluster to the best recipe::

    import trainscout as ts

    question = ts.question(model="gpt175b", cluster="h800_96")
    print(ts.search(question).best)

``question`` takes names, YAML files or values; ``predict``, ``search``, ``explain`` and ``plan``
answer it. ``models``, ``gpus``, ``clusters``, ``frameworks`` and ``spaces`` are what ships, by
name. Wrong input raises ``InputError``. Nothing is loaded before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainscout.api.answers import CapacityPlan, Explanation, Prediction, SearchResult
    from trainscout.api.ask import explain, plan, predict, search
    from trainscout.api.names import clusters, frameworks, gpus, models, spaces
    from trainscout.api.questions import catalogue, question, simulator
    from trainscout.simulators.predictor.question.cluster import Cluster
    from trainscout.simulators.predictor.question.errors import InputError
    from trainscout.simulators.predictor.question.framework import Framework
    from trainscout.simulators.predictor.question.gpu import Gpu
    from trainscout.simulators.predictor.question.model import Model
    from trainscout.simulators.predictor.question.question import Question
    from trainscout.simulators.predictor.question.recipe import Recipe
    from trainscout.simulators.predictor.question.training import Training

__all__ = [
    "CapacityPlan",
    "Cluster",
    "Explanation",
    "Framework",
    "Gpu",
    "InputError",
    "Model",
    "Prediction",
    "Question",
    "Recipe",
    "SearchResult",
    "Training",
    "catalogue",
    "clusters",
    "explain",
    "frameworks",
    "gpus",
    "models",
    "plan",
    "predict",
    "question",
    "search",
    "simulator",
    "spaces",
]

_QUESTION = "simulators.predictor.question"
_HOMES = {
    "api.answers": ("CapacityPlan", "Explanation", "Prediction", "SearchResult"),
    "api.ask": ("explain", "plan", "predict", "search"),
    "api.names": ("clusters", "frameworks", "gpus", "models", "spaces"),
    "api.questions": ("catalogue", "question", "simulator"),
    f"{_QUESTION}.cluster": ("Cluster",),
    f"{_QUESTION}.errors": ("InputError",),
    f"{_QUESTION}.framework": ("Framework",),
    f"{_QUESTION}.gpu": ("Gpu",),
    f"{_QUESTION}.model": ("Model",),
    f"{_QUESTION}.question": ("Question",),
    f"{_QUESTION}.recipe": ("Recipe",),
    f"{_QUESTION}.training": ("Training",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'trainscout' has no attribute {name!r}")
    return getattr(importlib.import_module(f"trainscout.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
