"""What every knob owes its readers, whatever the framework.

A change of a knob changes the words of the recipe. It also changes what is launched, or the launch
says that the framework does otherwise, or the knob has no effect there and is canonicalised away;
so recipes that launch alike are predicted alike.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

from tests.knobs import values_of
from tests.simulators.jobs import GPT175B, MIXTRAL_8X7B, MLA_MOE, make_job
from trainscout.conf.catalogue import load_catalogue
from trainscout.pruning.bounds.recipe_bounds import Bounds
from trainscout.pruning.equivalence import canonical
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.reports.launch.directory import FRAMEWORKS
from trainscout.reports.launch.launch import Launch
from trainscout.reports.wording import format_recipe
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import KNOBS, Recipe
from trainscout.simulators.predictor.question.schedules import SCHEDULES
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator

CATALOGUE = load_catalogue()
# Wide enough for gradients to fill several buckets, few layers that divide in many ways.
GPT = replace(GPT175B, name="gpt", num_layers=12)
EXPERTS = replace(MIXTRAL_8X7B, name="experts", num_layers=12)
LLAMA = replace(EXPERTS, name="llama", moe=None)
BASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "alone": (LLAMA, {"tp": 8, "sp": True}),
    "ddp": (LLAMA, {"zero_stage": 0}),
    "zero1": (GPT, {"overlap_grad_reduce": True}),
    "zero2": (LLAMA, {"zero_stage": 2}),
    "zero3": (LLAMA, {"zero_stage": 3}),
    "eight bits": (LLAMA, {"precision": "fp8"}),
    "tensor": (GPT, {"tp": 2, "sp": True}),
    "context": (LLAMA, {"cp": 2, "nodes": 2}),
    "context alone": (LLAMA, {"cp": 4, "tp": 2, "sp": True}),
    "pipeline": (LLAMA, {"pp": 4, "tp": 2, "nodes": 2}),
    "one pass": (LLAMA, {"pp": 2, "micro_batch": 16}),
    "pipeline of replicas": (GPT, {"pp": 2, "zero_stage": 0}),
    "interleaved": (LLAMA, {"pp": 2, "vpp": 2, "overlap_grad_reduce": True}),
    "full recomputation": (LLAMA, {"pp": 4, "recompute": "full"}),
    "some layers": (LLAMA, {"pp": 2, "vpp": 3, "recompute": "full", "recompute_layers": 2}),
    "selective recomputation": (LLAMA, {"recompute": "selective"}),
    "experts": (EXPERTS, {"ep": 4, "nodes": 2}),
    "tensor and experts": (EXPERTS, {"tp": 2, "sp": True, "ep": 2, "pp": 2, "vpp": 2, "nodes": 2}),
    "whole experts": (EXPERTS, {"tp": 2, "sp": True, "recompute": "selective"}),
    "latent attention": (MLA_MOE, {"ep": 2, "recompute": "selective"}),
    "two frameworks": (LLAMA, {"framework": "one"}),
}
ONE = Framework(
    name="one",
    launch=("megatron_lm", "megatron_bridge"),
    host_optimizer="pipelined",
    alternatives=(
        Framework(
            name="other",
            launch=("torchtitan", "deepspeed"),
            fusion="eager",
            host_optimizer="serial",
        ),
    ),
)


@functools.cache
def neighbours_of(name: str) -> list[Job]:
    """The base of that name and all launchable jobs that differ from it in one knob."""
    base = base_job(name)
    recipes = [
        replace(base.recipe, **{knob: value})
        for knob, declared in KNOBS.items()
        for value in values_of(declared)
    ]
    jobs = [replace(base, recipe=recipe) for recipe in dict.fromkeys([base.recipe, *recipes])]
    return [job for job in jobs if why_invalid(job) is None]


def base_job(name: str) -> Job:
    model, recipe = BASES[name]
    job = make_job(model, **recipe)
    if job.recipe.framework is not None:
        job = replace(job, framework=ONE)
    assert why_invalid(job) is None
    return job


def without_comments(name: str, text: str) -> str:
    """A launch file without its title, which repeats the recipe's words."""
    if name.endswith(".py"):
        before, _, text = text.split('"""', 2)
        assert not before
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def launched(launch: Launch) -> object:
    """What a launch does and says; equal ones cannot be distinguished. None: there is none."""
    texts = {name: without_comments(name, text) for name, text in launch.files.items()}
    return (tuple(texts.items()), launch.unsupported) if texts else None


def predicted(job: Job) -> tuple[float, int]:
    prediction = ReplaySimulator().without_error_bar(job)
    return prediction.step_time_s, prediction.memory.peak_reserved_bytes


def changes(recipe: Recipe, base: Recipe) -> dict[str, Any]:
    return {
        name: getattr(recipe, name)
        for name in KNOBS
        if getattr(recipe, name) != getattr(base, name)
    }


@pytest.mark.parametrize("name", BASES)
def test_every_change_is_in_the_words(name: str) -> None:
    jobs = neighbours_of(name)
    assert len({format_recipe(job.recipe, job.dp) for job in jobs}) == len(jobs)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", BASES)
def test_what_is_launched_alike_means_the_same(name: str, framework: str) -> None:
    base = base_job(name)
    alike: dict[object, list[Job]] = {}
    named = base.recipe.framework is not None
    for job in neighbours_of(name):
        if named and job.recipe.framework is None:
            continue  # any may be tried; a search names it
        alike.setdefault(launched(FRAMEWORKS[framework](job)), []).append(job)
    alike.pop(None, None)
    for jobs in alike.values():
        changed = [changes(job.recipe, base.recipe) for job in jobs]
        assert len({canonical(job) for job in jobs}) == 1, changed


@pytest.mark.parametrize("name", BASES)
def test_what_means_the_same_is_predicted_alike(name: str) -> None:
    base = base_job(name)
    same: dict[Recipe, list[Job]] = {}
    for job in neighbours_of(name):
        same.setdefault(canonical(job), []).append(job)
    for jobs in same.values():
        times, sizes = zip(*map(predicted, jobs), strict=True)
        changed = [changes(job.recipe, base.recipe) for job in jobs]
        assert times == pytest.approx([times[0]] * len(jobs), rel=1e-12), changed
        assert set(sizes) == {sizes[0]}, changed


@pytest.mark.parametrize("name", BASES)
def test_a_knob_enters_what_it_declares(name: str) -> None:
    """Recipes of one table are bounded once per value of what enters a bound: as each alone."""
    jobs = {job.recipe: job for job in neighbours_of(name)}
    together = Bounds(jobs.__getitem__)(RecipeTable.of([*jobs]))
    for row, job in enumerate(jobs.values()):
        alone = Bounds(jobs.__getitem__)(RecipeTable.of([job.recipe]))
        changed = changes(job.recipe, base_job(name).recipe)
        time_s, size = together.step_time_s[row], together.memory_bytes[row]
        assert time_s == pytest.approx(alone.step_time_s[0], rel=1e-12), changed
        assert size == alone.memory_bytes[0], changed


def test_every_knob_is_varied() -> None:
    varied = {
        name
        for base in BASES
        for job in neighbours_of(base)
        for name in changes(job.recipe, base_job(base).recipe)
    }
    assert varied == set(KNOBS)


def test_the_exchange_of_experts_is_in_the_words() -> None:
    job = base_job("experts")
    changed = replace(job.recipe, overlap_moe_expert_parallel_comm=True)
    assert format_recipe(changed, job.dp).endswith("overlap=ep")


@pytest.mark.parametrize(
    "framework", [each for each in CATALOGUE.frameworks.values() if each.launch]
)
def test_a_framework_declares_the_schedules_that_its_launch_files_have(
    framework: Framework,
) -> None:
    chunks = {name: 2 if SCHEDULES[name].ends_meet else 1 for name in SCHEDULES}
    for schedule in (name for name in SCHEDULES if name in framework.schedules):
        recipe = {"pp": 2, "vpp": chunks[schedule], "schedule": schedule}
        job = replace(make_job(LLAMA, **recipe), framework=framework)
        launch = FRAMEWORKS[framework.launch[0]](job)
        assert not any("schedule" in lack for lack in launch.unsupported)


@pytest.mark.parametrize(
    ("name", "change"),
    [("zero1", {"schedule": "gpipe"}), ("zero2", {"overlap_grad_reduce": True})],
)
def test_one_command_is_one_prediction(name: str, change: dict[str, Any]) -> None:
    job = base_job(name)
    changed = replace(job, recipe=replace(job.recipe, **change))
    for launch in FRAMEWORKS.values():
        assert launched(launch(changed)) == launched(launch(job))
    assert predicted(changed) == predicted(job)
