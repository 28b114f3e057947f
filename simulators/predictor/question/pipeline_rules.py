"""Rules of pipelines: what must hold of their stages, chunks, schedule and micro-batches.

As the rules of ``question.validity``, which says in which order they run: from a job to the field
to change and the reason, or None when they hold.
"""

from __future__ import annotations

from .errors import InputError
from .job import Job
from .schedule_file import is_file, read_schedule
from .schedules import OWN, schedule_kind

Broken = tuple[str, str] | None


def splits_layers(job: Job) -> Broken:
    try:
        job.layers_per_chunk  # noqa: B018 - the split is the check
    except InputError as error:
        return error.field, error.problem
    return None


def virtual_stages(job: Job) -> Broken:
    recipe = job.recipe
    if recipe.vpp == 1:
        return None
    if recipe.pp == 1:
        return "vpp", "virtual pipeline stages need pp > 1"
    return None


def enough_micro_batches(job: Job) -> Broken:
    recipe, count, kind = job.recipe, job.num_micro_batches, schedule_kind(job.schedule)
    if is_file(job.schedule):
        has = read_schedule(job.schedule).micro_batches
        problem = f"schedule={job.schedule} has {has} micro-batches, and a step has {count}"
        return None if count == has else ("micro_batch", problem)
    if kind.both_ways and count % 2:
        return "schedule", f"{job.schedule} needs an even number of micro-batches ({count})"
    if kind.ends_meet and count < job.least_micro_batches:
        least = f"at least {job.least_micro_batches}, as pp={recipe.pp}"
        return "schedule", f"{job.schedule} needs more micro-batches ({count}): {least}"
    if not kind.ends_meet and count % job.micro_batch_round:
        return "vpp", (
            f"the interleaved schedule needs micro-batches ({count}) in multiples of "
            f"pp={recipe.pp}"
        )
    return None


def schedule(job: Job) -> Broken:
    recipe, name = job.recipe, job.schedule
    if is_file(recipe.schedule):
        return _own_schedule(job)
    kind = schedule_kind(name)
    if name not in job.framework.schedules:
        has = ", ".join(job.framework.schedules)
        return "schedule", f"{job.framework.name} has no schedule {name}, only {has}"
    if kind.ends_meet and recipe.vpp != 2:
        return "vpp", f"schedule={name} has two chunks on each stage: vpp=2"
    if kind.both_ways and recipe.pp % 2:
        return "pp", f"schedule={name} mirrors the stages: an even number of them"
    if name == "zb-h2" and recipe.vpp > 1:
        return "vpp", "schedule=zb-h2 has one chunk on each stage: vpp=1"
    return _ends_or_compiled(job, name)


def _own_schedule(job: Job) -> Broken:
    recipe, name = job.recipe, job.recipe.schedule
    if OWN not in job.framework.schedules:
        return "schedule", f"{job.framework.name} loads no schedules from files"
    file = read_schedule(name)
    if recipe.pp != file.stages:
        return "pp", f"schedule={name} has {file.stages} ranks"
    if recipe.vpp != file.chunks:
        return "vpp", f"schedule={name} has {file.chunks} parts of the model on each rank"
    return _ends_or_compiled(job, name)


def _ends_or_compiled(job: Job, name: str) -> Broken:
    recipe, kind = job.recipe, schedule_kind(name)
    if kind.ends_meet and (recipe.first_stage_layers or recipe.last_stage_layers):
        field = "first_stage_layers" if recipe.first_stage_layers else "last_stage_layers"
        return field, f"under schedule={name} the first stage holds the model's end too"
    if kind.splits_backward and job.framework.fusion == "compiled":
        problem = "does not split backward passes of compiled layers: framework.fusion=eager"
        return "schedule", f"schedule={name}: {job.framework.name} {problem}"
    return None
