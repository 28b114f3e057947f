"""What would make a question fit that nothing fits: the nearest changes, each simulated."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainscout.conf.catalogue import load_catalogue
from trainscout.conf.counted_gpus import counted_gpus
from trainscout.optimizer.bounding import BOUNDED_SIMULATOR, BoundingSurvey
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.survey import survey
from trainscout.optimizer.union import compile_space
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.registry import SimulatorSpec, check_simulator, get_simulator

# More nodes than this many times those asked for are no near answer.
_MOST_TIMES = 64
# Bounds are below what is simulated, so the leanest recipe by bound may miss and the next not.
_SIMULATED = 4


@dataclass(frozen=True)
class WouldFit:
    """A change under which ``job``'s recipe was simulated and fits.

    ``settings`` are as on the command line.
    """

    settings: tuple[str, ...]
    job: Job
    prediction: Prediction


def would_fit(
    question: Question,
    space: Mapping[str, Any],
    simulator: SimulatorSpec,
    closest: Recipe | None = None,
) -> tuple[WouldFit, ...]:
    """The nearest change of each kind that makes something fit, where there is one.

    Kinds: other knobs for the recipe that missed least, more nodes of the same kind, a GPU with
    more memory. Nothing is claimed that was not simulated.

    Args:
        question: the question that nothing fits.
        space: the space file's content.
        simulator: who predicts; of others than the replay nothing is known without simulating
            whole spaces, so they are not asked.
        closest: the recipe that missed least.
    """
    if simulator.name != BOUNDED_SIMULATOR:
        return ()
    kinds = [_more_nodes(question, space, simulator)]
    if closest is not None:
        kinds.insert(0, _other_knobs(question, simulator, closest))
        kinds.append(_larger_gpus(question, simulator, closest))
    found = (next(kind, None) for kind in kinds)
    return tuple(each for each in found if each is not None)


def _other_knobs(
    question: Question, simulator: SimulatorSpec, closest: Recipe
) -> Iterator[WouldFit]:
    """Knobs that trade time for memory, one by one and together; then finer layouts."""
    changes: list[dict[str, Any]] = [
        {"recompute": "full", "recompute_layers": None, "recompute_modules": None},
        {"micro_batch": 1},
        {"sp": True},
        {"zero_stage": max(1, closest.zero_stage)},
        {"zero_stage": 3},
    ]
    together = {name: value for change in changes for name, value in change.items()}
    changes.append(together)
    for tp, pp in _finer_layouts(question, closest):
        layout = {"tp": tp, "pp": pp, "sp": tp > 1, "vpp": 1}
        changes += [layout, {**together, **layout, "zero_stage": max(1, closest.zero_stage)}]
    for change in changes:
        recipe = dataclasses.replace(closest, **change)
        fitting = tuple(
            f"space.knobs.{name}={'null' if value is None else str(value).lower()}"
            for name, value in change.items()
            if value != getattr(closest, name)
        )
        if fitting:
            yield from _simulated(fitting, question.job(recipe), simulator)


def _finer_layouts(question: Question, closest: Recipe) -> list[tuple[int, int]]:
    """Tensor- and pipeline-parallel sizes that cut the model into more pieces, fewest first."""
    sizes = [1 << power for power in range(question.cluster.num_gpus.bit_length())]
    tensor = [size for size in sizes if size <= question.cluster.domain]
    pieces = {
        (tp, pp)
        for tp in {*tensor, closest.tp}
        for pp in {*sizes, closest.pp}
        if closest.tp * closest.pp < tp * pp <= question.cluster.num_gpus
    }
    return sorted(pieces, key=lambda each: (each[0] * each[1], each[0]))


def _more_nodes(
    question: Question, space: Mapping[str, Any], simulator: SimulatorSpec
) -> Iterator[WouldFit]:
    """The same cluster two, four, ... times as large, with its leanest recipes."""
    times = 2
    while times <= _MOST_TIMES:
        cluster, setting = _times_as_large(question, times)
        larger = dataclasses.replace(question, cluster=cluster)
        try:
            larger.check()
        except InputError:
            return  # a machine without NICs cannot be one of several
        for recipe in _leanest(larger, space, simulator):
            yield from _simulated((setting,), larger.job(recipe), simulator)
        times *= 2


def _times_as_large(question: Question, times: int) -> tuple[Cluster, str]:
    """The cluster with so many times the GPUs, and the setting that asks for it: of one that was
    stated by its GPUs alone, more of them in their usual servers; else more nodes."""
    cluster, gpu = question.cluster, question.gpu
    number = cluster.num_gpus * times
    with contextlib.suppress(InputError):
        counted, more = (
            counted_gpus("gpus", f"{each}x{gpu.name}", {gpu.name: gpu})[0]
            for each in (cluster.num_gpus, number)
        )
        if cluster == counted:
            return more, f"gpus={number}x{gpu.name}"
    nodes = cluster.num_nodes * times
    return dataclasses.replace(cluster, num_nodes=nodes), f"cluster.num_nodes={nodes}"


def _leanest(
    question: Question, space: Mapping[str, Any], simulator: SimulatorSpec
) -> list[Recipe]:
    """The recipes with the least bounds on memory, of those whose bound is within capacity."""
    try:
        surveyed = survey(compile_space(space, question))
    except InputError:
        return []  # nothing of the space can be launched on so many GPUs
    bounding = BoundingSurvey(surveyed, Objective(("memory",)), simulator)
    rows = _frugal(surveyed.recipes)
    used = bounding.rows(rows.tolist()).used_bytes
    order = np.argsort(used, kind="stable")[:_SIMULATED]
    return [
        surveyed.recipes[int(rows[row])] for row in order if used[row] <= bounding.capacity_bytes
    ]


def _frugal(recipes: RecipeTable) -> NDArray[np.int64]:
    """Rows with the smallest micro-batch and, where the space has it, full recomputation: both
    only ever take less memory, and bounds of all the other rows would cost most of the search."""
    batches = recipes.numbers("micro_batch")
    rows = np.flatnonzero(batches == batches.min())
    full = recipes.take(rows).holds("recompute", lambda value: value == "full")
    return rows[full] if full.any() else rows


def _larger_gpus(
    question: Question, simulator: SimulatorSpec, closest: Recipe
) -> Iterator[WouldFit]:
    """Shipped GPUs with more memory, the least first."""
    gpus = sorted(load_catalogue().gpus.items(), key=lambda item: item[1].memory_bytes)
    for name, gpu in gpus:
        if gpu.memory_bytes > question.gpu.memory_bytes:
            job = dataclasses.replace(question, gpu=gpu).job(closest)
            yield from _simulated((f"gpu={name}",), job, simulator)


def _simulated(
    settings: tuple[str, ...], job: Job, simulator: SimulatorSpec
) -> Iterator[WouldFit]:
    """The change, if its job can be launched and fits."""
    try:
        check_simulator(simulator, job.gpu, job.cluster)
    except InputError:
        return
    if why_invalid(job) is not None:
        return
    prediction = get_simulator(simulator).simulate(job)
    if prediction.fits:
        yield WouldFit(settings, job, prediction)
