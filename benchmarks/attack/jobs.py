"""Random jobs: launchable recipes of random sizes, whose predictions must hold together."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.pruning.bounds.recipe_bounds import Bounds
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import KNOBS, Recipe
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator

# Knobs whose values are text of their own: laid out by hand, not drawn.
_DRAWN = [name for name, knob in KNOBS.items() if knob.choices or knob.kind is not str]


def attack(seed: int, count: int) -> tuple[int, list[str]]:
    """What was wrong with the predictions of ``count`` random jobs, a line each."""
    simulator = ReplaySimulator()
    wrong = []
    for number, job in zip(range(count), jobs(random.Random(seed)), strict=False):
        try:
            found = problems(job, simulator.simulate(job))
        except Exception as error:  # whatever a prediction raises is what is looked for
            found = [f"{type(error).__name__}: {error}"]
        wrong += [f"job {number} of seed {seed}: {each}: {job.recipe}" for each in found]
    return count, wrong


def jobs(chosen: random.Random) -> Iterator[Job]:
    """Launchable jobs without end."""
    catalogue = load_catalogue()
    models, clusters = list(catalogue.models), list(catalogue.clusters)
    while True:
        model = _sized(catalogue.models[chosen.choice(models)], chosen)
        cluster, gpu = catalogue.machines(chosen.choice(clusters))
        training = replace(
            catalogue.trainings["default"],
            global_batch_size=2 ** chosen.randrange(4, 11),
            sequence_length=chosen.choice([None, 512, 2048, 8192, 131072]),
        )
        cluster = replace(cluster, num_nodes=chosen.choice([1, 1, 2, 4, 8, cluster.num_nodes]))
        framework = catalogue.frameworks[chosen.choice(list(catalogue.frameworks))]
        question = Question(model, gpu, cluster, training, framework)
        try:
            question.check()
        except InputError:  # several nodes of a cluster without a network, say
            continue
        for _ in range(50):
            job = question.job(Recipe(**_knobs(chosen)))
            if why_invalid(job) is None:
                yield job
                break


def _sized(model: Model, chosen: random.Random) -> Model:
    layers = chosen.choice([4, 8, 12, 24, min(model.num_layers, 96)])
    least = 1 if model.moe is None else model.moe.num_dense_layers + model.moe.layer_period
    return replace(model, num_layers=max(layers, least))


def _knobs(chosen: random.Random) -> dict[str, Any]:
    """Most knobs as they come, a few at random: all at random can seldom be launched."""
    fields: dict[str, Any] = {
        name: 2 ** chosen.choice([0, 0, 1, 2, 3]) for name in ("tp", "pp", "micro_batch")
    }
    fields["sp"] = fields["tp"] > 1 and chosen.random() < 0.8
    for name in chosen.sample(_DRAWN, chosen.randrange(6)):
        knob = KNOBS[name]
        numbers = (None,) * knob.optional + (knob.least, 1, 2, 3, 4, 8)
        fields[name] = chosen.choice(
            knob.choices or ((False, True) if knob.kind is bool else numbers)
        )
    return fields


def problems(job: Job, prediction: Prediction) -> list[str]:
    """What does not hold of a prediction."""
    found = []
    step_s, parts = prediction.step_time_s, prediction.breakdown_s
    if not all(math.isfinite(each) for each in (step_s, prediction.mfu, *parts.values())):
        found.append("is not finite")
    if not step_s > 0 or not 0 < prediction.mfu < math.inf:
        found.append(f"takes {step_s} s")
    if abs(sum(parts.values()) - step_s) > 1e-6 * step_s:
        found.append(f"has parts of {sum(parts.values())} s in a step of {step_s} s")
    if prediction.memory.peak_allocated_bytes > prediction.memory.peak_reserved_bytes:
        found.append("allocates more than it reserves")
    bounds = Bounds(lambda recipe: replace(job, recipe=recipe))(RecipeTable.of([job.recipe]))
    if bounds.step_time_s[0] > step_s * (1 + 1e-9):
        found.append(f"takes {step_s} s, below its bound of {bounds.step_time_s[0]} s")
    if bounds.memory_bytes[0] > prediction.memory.peak_reserved_bytes:
        found.append("reserves less memory than its bound")
    return found
