"""The one place that says whether a recipe can be launched, and why not.

What a knob can be whatever the job, its declaration says (``question.recipe``). What else must
hold are rules: small functions from a job to a reason, or None when they hold. They run in order,
so a later rule may rely on what an earlier one established (degrees divide the world before the
batch is divided among replicas).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from . import model_rules, rules
from .errors import InputError, nearest_name
from .framework import declared_framework
from .job import Job
from .knob import LAYOUT
from .recipe import KNOBS, knobs_entering
from .rules import Broken
from .training import PRECISION_BITS


@dataclass(frozen=True)
class Violation:
    """One broken rule: its name, the recipe field to change, and the reason in words."""

    rule: str
    field: str
    reason: str


@dataclass(frozen=True)
class Rule:
    """What must hold of a job."""

    reads: tuple[str, ...]
    """The fields of the recipe that ``broken`` may read."""
    broken: Callable[[Job], Broken]
    """The field to change and the reason, or None when the rule holds."""


def _value(name: str, job: Job) -> Broken:
    value = getattr(job.recipe, name)
    reason = KNOBS[name].why_not(value)
    return None if reason is None else (name, f"{name}={value} {reason}")


def _framework(job: Job) -> Broken:
    name, declared = job.recipe.framework, declared_framework(job.framework)
    offered = [each.name for each in declared.offered]
    if name is not None and name not in offered:
        return "framework", f"framework={name} is not among the question's: {', '.join(offered)}"
    needed = {
        "experts": job.model.moe is not None,
        "latent_attention": job.model.mla is not None,
        "multi_token_prediction": job.model.num_mtp_layers > 0,
        "fp8": PRECISION_BITS[job.precision] <= 8,
        "quantised_weights": job.frozen_weights != "16bit",
    }
    for what in job.framework.lacks:
        if needed.get(what):
            return "framework", f"{job.framework.name} has no {what.replace('_', ' ')}"
    return None


def _degrees_divide_world(job: Job) -> Broken:
    recipe = job.recipe
    product = recipe.tp * recipe.pp * recipe.cp
    if job.world_size % product:
        partial = {"tp": recipe.tp, "pp": recipe.tp * recipe.pp, "cp": product}
        first = next(name for name, degree in partial.items() if job.world_size % degree)
        return first, (
            f"tp x pp x cp = {recipe.tp} x {recipe.pp} x {recipe.cp} = {product} does not divide "
            f"the {job.world_size} GPUs of {job.cluster.name}"
        )
    return None


def _tensor_parallel_in_domain(job: Job) -> Broken:
    # A launcher can express TP across nodes, but a group that straddles a node boundary
    # unevenly has no regular ring; whole multiples of a node are left to the price model.
    tp, domain = job.recipe.tp, job.cluster.domain
    if domain % tp if tp <= domain else tp % domain:
        return (
            "tp",
            f"tp={tp} does not align with the {domain} GPUs joined by {job.gpu.architecture.link}",
        )
    return None


def _batch_divides(job: Job) -> Broken:
    batch, per_round = job.training.global_batch_size, job.dp * job.recipe.micro_batch
    if batch % per_round:
        return "micro_batch", (
            f"dp x micro_batch = {job.dp} x {job.recipe.micro_batch} does not divide the global "
            f"batch of {batch}"
        )
    return None


_WORLD = ("tp", "pp", "cp")
_LAYOUT = knobs_entering(LAYOUT)
# What says whether no replica shards weights, which then may be kept in fp32.
_KEPT = (*_WORLD, "ep", "etp", "zero_stage")
_EXPERTS = (
    *("tp", "cp", "pp", "vpp", "ep", "etp", "recompute"),
    *("overlap_moe_expert_parallel_comm", "use_tp_pp_dp_mapping"),
)

RULES: dict[str, Rule] = {
    **{
        f"{name}_value": Rule((name,), partial(_value, name))
        for name, knob in KNOBS.items()
        if knob.is_limited
    },
    "framework": Rule(("framework", "precision"), _framework),
    "precision": Rule(("precision",), rules.precision),
    "degrees_divide_world": Rule(_WORLD, _degrees_divide_world),
    "tensor_parallel_in_domain": Rule(("tp",), _tensor_parallel_in_domain),
    "tensor_parallel_divides_model": Rule(("tp",), model_rules.tensor_parallel_divides_model),
    "schedule": Rule(
        ("framework", "schedule", "pp", "vpp", "first_stage_layers", "last_stage_layers"),
        rules.schedule,
    ),
    "pipeline_splits_layers": Rule(_LAYOUT, rules.splits_layers),
    "virtual_stages": Rule(("pp", "vpp"), rules.virtual_stages),
    "sequence_parallel": Rule(
        ("sp", "tp", "cp", "tp_comm_overlap", "etp"), model_rules.sequence_parallel
    ),
    "context_parallel": Rule(
        ("framework", "tp", "cp", "cp_comm_type"), model_rules.context_parallel
    ),
    "experts": Rule(_EXPERTS, model_rules.experts),
    "looking_across": Rule(
        ("framework", "pp", "cp", "recompute_modules"), model_rules.looking_across
    ),
    "pooling": Rule((*_WORLD, "micro_batch"), model_rules.pooling),
    "beside_the_hidden_state": Rule(("tp", "pp"), model_rules.beside_the_hidden_state),
    "batch_divides": Rule((*_WORLD, "micro_batch"), _batch_divides),
    "interleaving_batch": Rule(
        (*_WORLD, "vpp", "schedule", "micro_batch"), rules.enough_micro_batches
    ),
    "recompute": Rule(
        ("recompute", "recompute_modules", "recompute_layers", *_LAYOUT), rules.recompute
    ),
    "packs": Rule(("framework", "micro_batch"), rules.packs),
    "adapters": Rule(
        ("framework", "recompute_modules", "precision", *_KEPT), model_rules.adapters
    ),
    "teacher": Rule(
        (*_EXPERTS, "framework", "cp_comm_type", "sp", "tp_comm_overlap"), model_rules.teacher
    ),
    "offloading": Rule(
        ("framework", "offloaded_layers", "pp", "recompute", "cuda_graphs"), rules.offloading
    ),
    "offloaded_modules": Rule(
        ("framework", "offload_modules", "offloaded_layers", "recompute", "cuda_graphs"),
        rules.offloaded_modules,
    ),
    "optimizer_states": Rule(
        ("framework", "optimizer_states", "precision", *_KEPT), rules.optimizer_states
    ),
    "host_optimizer": Rule(
        ("framework", "optimizer_offload", "optimizer_states", "precision", *_KEPT),
        rules.host_optimizer,
    ),
    "fp8_param_gather": Rule(
        ("fp8_param_gather", "precision", "zero_stage", "optimizer_offload"),
        rules.quantised_parameters,
    ),
    "quantised_products": Rule(
        ("fp8_dot_product_attention", "fp8_output_proj", "precision", "framework"),
        rules.quantised_products,
    ),
    "stored_activations": Rule(
        (
            *("activation_func_fp8_input_store", "framework", "precision"),
            *("recompute", "recompute_modules", *_KEPT),
        ),
        rules.stored_activations,
    ),
    "sharding_group": Rule(
        (*_WORLD, "ep", "etp", "dp_shard", "zero_stage", "use_tp_pp_dp_mapping"),
        rules.sharding_group,
    ),
    "sharding": Rule(
        ("zero_stage", "pp", "overlap_param_gather", "overlap_grad_reduce"), rules.sharding
    ),
}


def why_invalid(job: Job) -> Violation | None:
    """The first rule the job's recipe breaks, or None when it can be launched."""
    for name, rule in RULES.items():
        broken = rule.broken(job)
        if broken is not None:
            return Violation(name, *broken)
    return None


def check_job(job: Job) -> None:
    """Refuse a job that cannot be launched."""
    for part in (job.model, job.gpu, job.cluster, job.training):
        part.check()
    job.training.check_for(job.model)
    violation = why_invalid(job)
    if violation is not None:
        field, value = f"recipe.{violation.field}", getattr(job.recipe, violation.field, None)
        if violation.field == "precision" and value is None:
            field, value = "training.precision", job.precision
        if violation.field == "framework" and value is None:
            name = job.framework.name
            allowed = f"another{', as huggingface' * (name != 'huggingface')}, or model="
            raise InputError("framework", name, violation.reason, allowed)
        batch = job.training.global_batch_size
        if violation.field == "micro_batch" and batch % job.dp:
            allowed = f"a multiple of {job.dp}, or a larger tp, pp or cp for fewer replicas"
            raise InputError("training.global_batch_size", batch, violation.reason, allowed)
        knob, nearest = KNOBS.get(violation.field), None
        if knob is not None and knob.kind is str and knob.choices and value not in knob.choices:
            nearest = nearest_name(str(value), map(str, knob.choices))
        raise InputError(field, value, violation.reason, would_do(job, violation), nearest)


def would_do(job: Job, violation: Violation) -> str | None:
    """In words, what the field that a rule complains of could be for the rest to hold; None where
    nothing would do."""
    name = violation.field
    if name not in KNOBS:
        return None
    knob, held = KNOBS[name], []
    numbers = [None] * knob.optional + list(range(knob.least, 17)) + [2**n for n in range(5, 15)]
    if name == "micro_batch":  # of a contrastive loss the batch at once
        numbers = sorted({*numbers, job.training.global_batch_size // job.dp})
    for value in knob.choices or ((False, True) if knob.kind is bool else numbers):
        other = replace(job, recipe=replace(job.recipe, **{name: value}))
        if knob.kind is not str or knob.choices:
            held += [] if why_invalid(other) else ["null" if value is None else str(value)]
    if held:
        more = ", ..." if len(held) > _MOST_SHOWN else ""
        return f"here {', '.join(held[:_MOST_SHOWN])}{more}"
    if knob.kind is str and not knob.choices and knob.own_words:
        return knob.own_words
    allowed = knob.allowed if knob.is_limited else "true or false"
    return f"{allowed}; here other settings must change first"


_MOST_SHOWN = 8
