"""Recipes that say the same thing: knobs without effect get one spelling.

An overlap switch where nothing is exchanged, a ZeRO stage without replicas, a split that is even
anyway: the launcher takes them all and the step is the same. Each rule below rewrites one group of
fields; recipes that end up equal are one question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from trainscout.pruning.launchable import LAYER_SPLIT, JobOf
from trainscout.pruning.recipe_table import FIELDS, Column, RecipeTable
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import DEFAULT_RECOMPUTE_MODULES, Job, Recipe

_REPLICAS = ("tp", "pp", "cp", "ep", "etp")


@dataclass(frozen=True)
class Spelling:
    """One rule: the fields it ``reads``, and the ones among them that ``plain`` gives a launchable
    job's recipe, as (field, value) pairs. ``why`` says when the fields have no effect."""

    name: str
    why: str
    reads: tuple[str, ...]
    plain: Callable[[Job], dict[str, Any]]


def _replicated(job: Job) -> bool:
    return max(job.dp * job.recipe.cp, job.expert_dp) > 1


def _etp(job: Job) -> dict[str, Any]:
    return {"etp": None} if job.recipe.etp == job.recipe.tp else {}


def _precision(job: Job) -> dict[str, Any]:
    return {"precision": None} if job.recipe.precision == job.training.precision else {}


def _cp_comm_type(job: Job) -> dict[str, Any]:
    return {"cp_comm_type": FIELDS["cp_comm_type"]} if job.recipe.cp == 1 else {}


def _modules(job: Job) -> dict[str, Any]:
    modules = job.recipe.recompute_modules
    if modules is None:
        return {}
    ordered = "+".join(sorted(set(modules.split("+"))))
    return {"recompute_modules": None if ordered == DEFAULT_RECOMPUTE_MODULES else ordered}


def _schedule(job: Job) -> dict[str, Any]:
    return {"schedule": FIELDS["schedule"]} if job.num_micro_batches == 1 else {}


def _sharding(job: Job) -> dict[str, Any]:
    recipe = job.recipe
    if recipe.zero_stage == 3:
        # Sharded by layers in any case, as it is needed.
        return {"overlap_grad_reduce": False, "overlap_param_gather": False}
    if _replicated(job):
        return {}
    return {"zero_stage": 1, "overlap_grad_reduce": False, "overlap_param_gather": False}


def _split(job: Job) -> dict[str, Any]:
    """Nothing where the layers lie evenly anyway, counts where the ends take places of layers."""
    recipe, layers = job.recipe, job.layers_per_chunk
    even: dict[str, Any] = {"first_stage_layers": None, "last_stage_layers": None}
    even |= {"embedding_as_layer": False, "loss_as_layer": False}
    spellings = [even]
    if recipe.embedding_as_layer or recipe.loss_as_layer:
        first, last = job.layers_per_stage[0], job.layers_per_stage[-1]
        if first and last:
            spellings.append(even | {"first_stage_layers": first, "last_stage_layers": last})
    for fields in spellings:
        try:
            if replace(job, recipe=replace(recipe, **fields)).layers_per_chunk == layers:
                return fields
        except InputError:
            continue
    return {}


def _layers(job: Job) -> dict[str, Any]:
    everything = job.recipe.recompute_layers == job.largest_chunk
    return {"recompute_layers": None} if everything else {}


SPELLINGS: tuple[Spelling, ...] = (
    Spelling("etp", "etp is tp when left out", ("tp", "etp"), _etp),
    Spelling("precision", "it is the training's when left out", ("precision",), _precision),
    Spelling(
        "cp_comm_type", "nothing to exchange with cp=1", ("cp", "cp_comm_type"), _cp_comm_type
    ),
    Spelling("recompute_modules", "a set, in one order", ("recompute_modules",), _modules),
    Spelling(
        "schedule",
        "one micro-batch has one order",
        ("tp", "pp", "cp", "micro_batch", "schedule"),
        _schedule,
    ),
    Spelling(
        "sharding",
        "no replicas to shard over or reduce among; ZeRO 3 always overlaps",
        (*_REPLICAS, "zero_stage", "overlap_grad_reduce", "overlap_param_gather"),
        _sharding,
    ),
    Spelling("layer_split", "the same layers on every stage", LAYER_SPLIT, _split),
    Spelling(
        "recompute_layers",
        "every layer when left out",
        (*LAYER_SPLIT, "recompute_layers"),
        _layers,
    ),
)


def _canonical_fields(rule: Spelling, job_of: JobOf, recipe: Recipe) -> dict[str, Any]:
    return rule.plain(job_of(recipe))


def plainest(job: Job) -> Recipe:
    """The one spelling of a launchable job's recipe."""
    for rule in SPELLINGS:
        job = replace(job, recipe=replace(job.recipe, **rule.plain(job)))
    return job.recipe


def canonicalize(table: RecipeTable, job_of: JobOf) -> tuple[RecipeTable, dict[str, int]]:
    """Every launchable row in its one spelling, and how many rows each rule rewrote."""
    rewritten: dict[str, int] = {}
    for rule in SPELLINGS:
        changes, found = table.each(rule.reads, partial(_canonical_fields, rule, job_of))
        changed = np.zeros(len(found), dtype=np.bool_)
        columns = dict(table.columns)
        for name in {name for fields in found for name in fields}:
            values = [table.value(name, int(row)) for row in changes.first]
            for index, fields in enumerate(found):
                if name in fields and fields[name] != values[index]:
                    values[index] = fields[name]
                    changed[index] = True
            known: dict[tuple[type, Any], int] = {}
            codes = [known.setdefault((type(value), value), len(known)) for value in values]
            spread = changes.spread(np.array(codes, dtype=np.int32))
            columns[name] = Column(tuple(value for _, value in known), spread)
        if changed.any():
            rewritten[rule.name] = int(changes.spread(changed).sum())
            table = RecipeTable(columns, len(table))
    return table, rewritten
