"""Recipes that say the same thing: knobs without effect have one canonical value.

An overlap switch where nothing is exchanged, a ZeRO stage without replicas, a split that is even
anyway: the launcher takes them all and the step is the same. Where a knob has no effect its
declaration says (``question.recipe``), and what several say together is a rule here; recipes that
end up equal are one question.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from trainscout.pruning.launchable import JobOf
from trainscout.pruning.recipe_table import Column, Mask, RecipeTable, column
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knob import LAYOUT, Knob
from trainscout.simulators.predictor.question.layout import fields_of
from trainscout.simulators.predictor.question.recipe import (
    KNOBS,
    RECIPE_DEFAULTS,
    Recipe,
    knobs_entering,
)
from trainscout.simulators.predictor.question.schedule_file import is_file
from trainscout.simulators.predictor.question.schedules import schedule_kind

SPLIT_FIELDS = (
    *("first_stage_layers", "last_stage_layers", "embedding_as_layer", "loss_as_layer"),
    "pipeline_layout",
)


@dataclass(frozen=True)
class Rule:
    """Where fields have no effect."""

    why: str
    """The reason, in words."""
    reads: tuple[str, ...]
    """The fields that the rule reads, those it rewrites among them."""
    canonical: Callable[[Job], dict[str, Any]]
    """Fields of a launchable job's recipe, and the values they have in the canonical one."""


def _split(job: Job) -> dict[str, Any]:
    """The fewest fields that make the same split; none where the framework makes it anyway."""
    recipe, layers = job.recipe, job.layers_per_chunk
    even = {name: RECIPE_DEFAULTS[name] for name in SPLIT_FIELDS}
    try:
        if replace(job, recipe=replace(recipe, **even)).layers_per_chunk == layers:
            return even
    except InputError:
        pass
    if schedule_kind(job.schedule).ends_meet or is_file(job.schedule):
        # What the fields below make is dealt out down the stages again and again.
        return {}
    dealt = job.framework.balanced_split
    return fields_of(layers, job.model.num_mtp_layers, deal_out=dealt)


def _of_knob(knob: Knob, job: Job) -> dict[str, Any]:
    return {knob.name: knob.canonical_value(job)}


RULES: dict[str, Rule] = {
    **{
        name: Rule(knob.canonical.why, (*knob.canonical.reads, name), partial(_of_knob, knob))
        for name, knob in KNOBS.items()
        if knob.canonical is not None
    },
    "layer_split": Rule("the same layers on every stage", knobs_entering(LAYOUT), _split),
}


def canonical(job: Job) -> Recipe:
    """The one recipe that stands for a launchable job's and all that mean the same."""
    for rule in RULES.values():
        fields = rule.canonical(job)
        if any(getattr(job.recipe, name) != value for name, value in fields.items()):
            job = replace(job, recipe=replace(job.recipe, **fields))
    return job.recipe


def canonicalize(
    table: RecipeTable, job_of: JobOf, without: Collection[str] = ()
) -> tuple[RecipeTable, dict[str, Mask]]:
    """Every launchable row made canonical, and which rows each rule rewrote.

    Args:
        without: fields that are not known yet: rules that read one are left out.
    """
    rewritten: dict[str, Mask] = {}
    for rule_name, rule in RULES.items():
        if not set(without).isdisjoint(rule.reads):
            continue
        changes, found = table.each(rule.reads, partial(_canonical_fields, rule, job_of))
        changed = np.zeros(len(found), dtype=np.bool_)
        columns = dict(table.columns)
        for name in {name for fields in found for name in fields}:
            values = [table.value(name, int(row)) for row in changes.first]
            for index, fields in enumerate(found):
                if name in fields and fields[name] != values[index]:
                    values[index] = fields[name]
                    changed[index] = True
            made = column(values)
            columns[name] = Column(made.values, changes.spread(made.codes))
        if changed.any():
            rewritten[rule_name] = changes.spread(changed).astype(np.bool_)
            table = RecipeTable(columns, len(table))
    return table, rewritten


def _canonical_fields(rule: Rule, job_of: JobOf, recipe: Recipe) -> dict[str, Any]:
    return rule.canonical(job_of(recipe))
