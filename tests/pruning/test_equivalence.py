"""Recipes of one spelling are one question: the simulator answers them alike."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.pruning.questions import jobs
from tests.simulators.jobs import make_job
from trainscout.pruning.equivalence import SPELLINGS, canonicalize, plainest
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.question.job import Recipe
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator


@settings(max_examples=80, deadline=None)
@given(jobs())
def test_the_plain_spelling_is_predicted_alike(job):
    plain = plainest(job)
    if plain == job.recipe:
        return
    assert why_invalid(replace(job, recipe=plain)) is None
    simulator = ReplaySimulator()
    given_, spelled = (
        simulator.without_error_bar(replace(job, recipe=r)) for r in (job.recipe, plain)
    )
    assert spelled.step_time_s == pytest.approx(given_.step_time_s, rel=1e-9)
    assert spelled.memory.headroom_bytes == given_.memory.headroom_bytes


@settings(max_examples=100, deadline=None)
@given(jobs())
def test_spelling_is_idempotent_and_the_same_for_tables(job):
    plain = plainest(job)
    assert plainest(replace(job, recipe=plain)) == plain
    table, _ = canonicalize(
        RecipeTable.of([job.recipe]), lambda recipe: replace(job, recipe=recipe)
    )
    assert list(table) == [plain]


@pytest.mark.parametrize(
    ("given", "plain", "rule"),
    [
        ({"tp": 2, "etp": 2, "sp": True}, {"tp": 2, "sp": True}, "etp"),
        ({"precision": "bf16"}, {}, "precision"),
        ({"cp_comm_type": "a2a"}, {}, "cp_comm_type"),
        ({"tp": 8, "zero_stage": 0}, {"tp": 8}, "sharding"),
        ({"tp": 8, "overlap_grad_reduce": True}, {"tp": 8}, "sharding"),
        ({"zero_stage": 3, "overlap_grad_reduce": True}, {"zero_stage": 3}, "sharding"),
        ({"recompute": "full", "recompute_layers": 12}, {"recompute": "full"}, "recompute_layers"),
        ({"pp": 4, "first_stage_layers": 3}, {"pp": 4}, "layer_split"),
        ({"micro_batch": 8, "schedule": "gpipe"}, {"micro_batch": 8}, "schedule"),
        (
            {"recompute": "selective", "recompute_modules": "mlp+core_attn"},
            {"recompute": "selective", "recompute_modules": "core_attn+mlp"},
            "recompute_modules",
        ),
    ],
)
def test_each_rule_rewrites_what_it_names(given, plain, rule):
    job = make_job(**given)
    assert plainest(job) == Recipe(**plain)
    _, rewritten = canonicalize(
        RecipeTable.of([job.recipe, job.recipe]), lambda recipe: replace(job, recipe=recipe)
    )
    assert rewritten == {rule: 2}
    assert len(SPELLINGS) == 8
