"""One measured run as a job to predict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.laboratory.published.reading.rows import Row
from trainscout.simulators.laboratory.published.reading.words import statement_of
from trainscout.simulators.predictor.collectives.measured import read_measured_collectives
from trainscout.simulators.predictor.question.cluster import MeasuredCollective
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.validity import check_job

from .clusters import cluster_of
from .degrees import degrees_of
from .era import Era, era_of
from .frameworks import dated, framework_of, recomputes_modules
from .gpus import gpu_of, with_desktop_lanes
from .models import model_of
from .outcome import CannotReplayError, NotReplayable, Replayable
from .recipes import batch_of, heavier_recomputation, picked_recomputation, precision_of, recipe_of
from .sharding import deepest_sharding
from .tuning import training_of


@dataclass(frozen=True)
class Declarations:
    """What a row may refer to: declared GPUs and frameworks by name; measured collectives by the
    file they were read from; and the file that holds for rows that name none (None: no file)."""

    gpus: Mapping[str, Gpu]
    frameworks: Mapping[str, Framework]
    curves: Mapping[str, tuple[MeasuredCollective, ...]] = field(default_factory=dict)
    measured_collectives: str | None = None


def shipped_declarations() -> Declarations:
    """Those of the project; no curves."""
    catalogue = load_catalogue()
    # Every label of a row is looked for in all of them, and a group lists its files each time.
    return Declarations(dict(catalogue.gpus), catalogue.frameworks)


def read_curves(rows: Iterable[Row], folder: Path) -> dict[str, tuple[MeasuredCollective, ...]]:
    """What was measured on the clusters of rows, by the file in ``folder`` that the rows name.

    Raises:
        InputError: for a file that is missing or no table of measured collectives.
    """
    return {
        name: read_measured_collectives(folder / name, "measured_collectives")
        for name in {row.measured_collectives for row in rows} - {""}
    }


def job_of(row: Row, declarations: Declarations) -> Replayable | NotReplayable:
    """The job a row describes with every assumption made, or why there is none."""
    try:
        return _replayable(row, declarations)
    except CannotReplayError as error:
        return NotReplayable(str(error))
    except InputError as error:
        return NotReplayable(error.problem if error.field == "recipe" else str(error))


def _replayable(row: Row, declarations: Declarations) -> Replayable:
    if row.fault:
        raise CannotReplayError(row.fault)
    statement = statement_of(row)
    era = era_of(row, statement)
    if statement.says("power"):
        raise CannotReplayError("a lowered power limit is not modelled")
    gpu, about_gpu = gpu_of(row.gpu, declarations.gpus)
    if held_tflops := statement.get("products"):
        # Measured on the row's own board, as ``measured_collectives`` are on its cluster.
        fraction = float(held_tflops) * 1e12 / gpu.peak("bf16")
        gpu = replace(gpu, sustained_fraction=fraction)
    degrees, about_degrees = degrees_of(row)
    gpu, about_lanes = with_desktop_lanes(gpu, row, degrees.num_gpus, statement)
    about_gpu += about_lanes
    model, about_model = model_of(row, statement)
    default = "bf16" if "bf16" in gpu.peak_flops else "fp16"
    precision, about_precision = precision_of(row, statement, era, degrees, default)
    cluster, about_cluster = cluster_of(
        row, statement, dated(statement, era), gpu, degrees.num_gpus
    )
    if curve := row.measured_collectives or declarations.measured_collectives:
        if curve not in declarations.curves:
            raise CannotReplayError(f"measured_collectives={curve} was not read")
        cluster = replace(cluster, measured_collectives=curve, measured=declarations.curves[curve])
    has_experts = model.moe is not None
    framework, about_framework = framework_of(
        row, statement, era, gpu, precision, has_experts, declarations.frameworks
    )
    batch = batch_of(row)
    about_framework += (_software(framework, era),)
    recipe, about_recipe = recipe_of(row, statement, era, degrees, model, framework, batch)
    training, about_training = training_of(statement, batch, precision)
    job = Job(
        model=model,
        gpu=gpu,
        cluster=cluster,
        training=training,
        recipe=recipe,
        framework=framework,
    )
    check_job(job)
    more = heavier_recomputation(row, statement, model, recipe)
    if recomputes_modules(framework, era):
        more, picking = (), picked_recomputation(row, statement, model, recipe)
    elif "recompute" in row.inferred:
        more, picking = (), more
    else:
        picking = ()
    inferred: tuple[str, ...] = ()
    if row.inferred_fields:
        inferred = (f"inferred by the collector of the row: {row.inferred_fields}",)
    if row.readings:
        inferred += (f"cells read as: {row.readings}",)
    return Replayable(
        job,
        about_gpu
        + about_model
        + about_degrees
        + about_precision
        + about_cluster
        + about_framework
        + about_recipe
        + about_training
        + inferred,
        deepest_sharding=deepest_sharding(row, degrees, framework),
        heavier=more,
        picking=picking,
    )


def _software(framework: Framework, era: Era) -> str:
    """Which declaration of ``conf/framework`` the row's software was read as, and of when."""
    year = "of today" if era.year is None else f"of {era.year:.1f}"
    return f"software: {framework.name}, {year} (year: {era.why})"
