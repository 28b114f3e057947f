"""Which of many recipes can be launched: the rules of ``question.validity``, once each per
combination of the fields they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from trainscout.pruning.recipe_table import FIELDS, Mask, RecipeTable
from trainscout.simulators.predictor.question.job import Job, Recipe
from trainscout.simulators.predictor.question.validity import RULES, Rule, Violation

JobOf = Callable[[Recipe], Job]

_WORLD = ("tp", "pp", "cp")
LAYER_SPLIT = (
    "pp",
    "vpp",
    "first_stage_layers",
    "last_stage_layers",
    "embedding_as_layer",
    "loss_as_layer",
)
# The recipe fields a rule may read; one that is missing here is checked recipe by recipe.
RULE_FIELDS: dict[str, tuple[str, ...]] = {
    "degrees_positive": (
        *("tp", "pp", "cp", "ep", "vpp", "micro_batch", "etp", "recompute_layers"),
        *("first_stage_layers", "last_stage_layers", "nccl_max_channels"),
    ),
    "known_choices": (
        *("recompute", "schedule", "cp_comm_type", "precision", "zero_stage", "nccl_algo"),
    ),
    "degrees_divide_world": _WORLD,
    "tensor_parallel_in_domain": ("tp",),
    "tensor_parallel_divides_model": ("tp",),
    "pipeline_splits_layers": LAYER_SPLIT,
    "virtual_stages": ("pp", "vpp", "schedule"),
    "sequence_parallel": ("sp", "tp", "cp", "tp_comm_overlap", "etp"),
    "context_parallel": ("tp", "cp", "cp_comm_type"),
    "experts": (
        *("tp", "cp", "pp", "vpp", "ep", "etp", "recompute"),
        *("overlap_moe_expert_parallel_comm", "use_tp_pp_dp_mapping"),
    ),
    "batch_divides": (*_WORLD, "micro_batch"),
    "interleaving_batch": (*_WORLD, "vpp", "micro_batch"),
    "recompute": (
        *("recompute", "recompute_modules", "recompute_layers", "recompute_taper"),
        *LAYER_SPLIT,
    ),
    "sharding": ("zero_stage", "pp", "overlap_param_gather", "overlap_grad_reduce"),
}


@dataclass(frozen=True)
class Rejected:
    """Recipes broken by one validity rule: how many, and the first as an example."""

    count: int
    example: Violation


def find_launchable(table: RecipeTable, job_of: JobOf) -> tuple[Mask, dict[str, Rejected]]:
    """Which rows break no rule, and by the first rule they break how many do.

    Args:
        table: recipes of one declared question.
        job_of: completes a recipe to the job it stands for.
    """
    valid = np.ones(len(table), dtype=np.bool_)
    rejected: dict[str, Rejected] = {}
    for name, rule in RULES.items():
        left = np.flatnonzero(valid)
        # In order, and on what is left: a rule relies on those before it.
        found, reasons = table.take(left).each(
            RULE_FIELDS.get(name, tuple(FIELDS)), partial(_reason, rule, job_of)
        )
        broken = found.spread([reason is not None for reason in reasons]).astype(np.bool_)
        if broken.any():
            example = next(reason for reason in reasons if reason is not None)
            rejected[name] = Rejected(int(broken.sum()), Violation(name, *example))
            valid[left[broken]] = False
    return valid, rejected


def _reason(rule: Rule, job_of: JobOf, recipe: Recipe) -> tuple[str, str] | None:
    return rule(job_of(recipe))
