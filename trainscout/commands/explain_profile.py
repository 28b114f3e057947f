"""``trainscout explain profile.file=``: a recipe's prediction beside a profile of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainscout.commands.explanation_plan import ExplanationPlan
from trainscout.commands.output_choice import OutputChoice
from trainscout.commands.schemas import ProfileChoice
from trainscout.conf.build import hydra_catalogue
from trainscout.reports.profile.figures import class_lines, sentence
from trainscout.reports.profile.page import profile_page
from trainscout.reports.profile.report import profile_report
from trainscout.simulators.predictor.io.command_line import OK
from trainscout.simulators.predictor.io.output import json_text, show_text
from trainscout.simulators.predictor.io.terminal import show
from trainscout.simulators.predictor.kernels.measured_rows import match_gpu
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.step_program import step_program
from trainscout.simulators.predictor.workload.ranks import place_of
from trainscout.simulators.registry import get_simulator, measured_table
from trainscout.simulators.virtual_cluster.profiles.comparison import Comparison, compare_step
from trainscout.simulators.virtual_cluster.profiles.measured import MeasuredProfile, read_profiles
from trainscout.simulators.virtual_cluster.profiles.observed import (
    kept_files,
    observed_classes,
    observed_record,
    write_files,
)
from trainscout.simulators.virtual_cluster.profiles.predicted import predicted_operations

FILE = "profile.file"
PAGE, COMPARISON = "profile.html", "comparison.json"


def explain_profile(plan: ExplanationPlan, choice: ProfileChoice, output: OutputChoice) -> int:
    """Compare, show, and write what ``choice`` asks for.

    Raises:
        InputError: for profiles that cannot be read, or are not of the recipe.
    """
    if choice.file is None:
        raise InputError("profile.directory", choice.directory, "has no profile", f"{FILE}= too")
    if plan.other is not None or plan.search_best:
        problem = "is compared with one recipe"
        raise InputError(FILE, choice.file, problem, "no against=, no b.*")
    if output.format == "csv":
        raise InputError("format", "csv", f"has no columns for {FILE}=", "table or json")
    assert plan.first is not None
    job = plan.question.job(plan.first.recipe)
    profiles = read_profiles(FILE, Path(choice.file))
    for profile in profiles:
        _check(profile, job)
    found = compare_profiles(plan, job, profiles)
    operations = [each for profile in profiles for each in profile.operations]
    observed = observed_classes(operations, sum(each.steps for each in profiles), job.gpu)
    seen = observed_record(profiles, job.gpu, job.cluster, found)
    record = comparison_record(found) | {"observed": seen}
    if choice.directory is not None:
        title = f"{job.model.name} on {job.gpu.name}: profile and prediction"
        page = profile_page(title, found, observed)
        texts = kept_files(seen, operations, job.gpu)
        texts |= {PAGE: page, COMPARISON: json_text({"ranks": record["ranks"]})}
        write_files("profile.directory", Path(choice.directory), texts)
    if output.format == "json":
        show_text(json_text(record))
    elif output.verbosity == "quiet":
        show(sentence(found[0], observed))
    else:
        show(profile_report(found, observed, everything=output.verbosity == "verbose"))
    return OK


def compare_profiles(
    plan: ExplanationPlan, job: Job, profiles: Sequence[MeasuredProfile]
) -> list[Comparison]:
    """Every rank's profile beside what is predicted of its pipeline stage."""
    spec = plan.simulator
    simulator = get_simulator(spec)
    workload = simulator.workload(job) if isinstance(simulator, ReplaySimulator) else None
    measured = measured_table(spec.measured_kernels)
    step = step_program(job, None, spec.calibration, measured, workload, spec.network)
    prediction = simulator.simulate(job)
    found = []
    for profile in profiles:
        rank = profile.rank or 0
        stage = place_of(job, rank).stage
        predicted = predicted_operations(step, stage)
        found.append(compare_step(profile, (rank, stage), predicted, prediction))
    return found


def comparison_record(found: Sequence[Comparison]) -> dict[str, Any]:
    """A comparison as plain values: of each rank, its classes and operations."""
    return {
        "ranks": [
            {
                "file": each.profile.path.name,
                "rank": each.rank,
                "stage": each.stage,
                "steps": each.profile.steps,
                "steps_found": each.profile.found,
                "passes": each.passes,
                "absent": each.absent,
                "matched_by_shape": each.by_shape,
                "matched_in_turn": each.by_turn,
                "matched_by_place": each.by_place,
                "classes": [
                    asdict(line) | {"error": line.error} for line in class_lines(each, {})
                ],
                "operations": [asdict(row) for row in each.operations],
                "collectives": [asdict(row) for row in each.collectives],
            }
            for each in found
        ]
    }


def _check(profile: MeasuredProfile, job: Job) -> None:
    """Refuse a profile of another GPU or of a job of another size."""
    gpus = {**hydra_catalogue().gpus, job.gpu.name: job.gpu}
    name = match_gpu(profile.gpu, gpus)[0] if profile.gpu else ""
    if name and name != job.gpu.name:
        problem = f"was taken on {profile.gpu} ({name}), the question is about {job.gpu.name}"
        raise InputError(FILE, profile.path, problem, f"a cluster of {name}, or gpu={name}")
    if profile.world_size not in (None, job.world_size):
        problem = f"is of a job of {profile.world_size} ranks, the question of {job.world_size}"
        allowed = "cluster.num_nodes= and cluster.gpus_per_node= as profiled"
        raise InputError(FILE, profile.path, problem, allowed)
