"""Recipes that mean the same are one question: the simulator answers them alike."""

from dataclasses import replace

import pytest
from hypothesis import given

from tests.pruning.questions import jobs
from tests.simulators.jobs import LLAMA, MOE, make_job
from trainscout.pruning.equivalence import RULES, canonical, canonicalize
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.tuning import Distillation, Lora
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator

GRADIENTS = "overlap_grad_reduce"


@given(jobs())
def test_the_canonical_recipe_is_predicted_alike(job):
    found = canonical(job)
    if found == job.recipe:
        return
    assert why_invalid(replace(job, recipe=found)) is None
    simulator = ReplaySimulator()
    given_, made = (
        simulator.without_error_bar(replace(job, recipe=r)) for r in (job.recipe, found)
    )
    assert made.step_time_s == pytest.approx(given_.step_time_s, rel=1e-9)
    assert made.memory.headroom_bytes == given_.memory.headroom_bytes


@pytest.mark.parametrize("grad_dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("facts", [{"reduce_grads_fp32": True}, {"accumulate_grads_fp32": False}])
def test_gradients_of_fp32_weights_are_fp32_whatever_a_recipe_says(grad_dtype, facts):
    facts = {"torch_wrappers": True, "precision": "tf32", **facts}
    job = make_job(LLAMA, zero_stage=3, training=facts)
    other = replace(job, recipe=replace(job.recipe, grad_dtype=grad_dtype))
    assert canonical(other) == job.recipe
    one, same = (ReplaySimulator().without_error_bar(each) for each in (job, other))
    assert (one.step_time_s, one.memory) == (same.step_time_s, same.memory)


@given(jobs())
def test_it_is_its_own_and_the_same_for_tables(job):
    found = canonical(job)
    assert canonical(replace(job, recipe=found)) == found
    table, _ = canonicalize(
        RecipeTable.of([job.recipe]), lambda recipe: replace(job, recipe=recipe)
    )
    assert list(table) == [found]


@pytest.mark.parametrize(
    ("given", "found", "rule"),
    [
        ({"tp": 2, "etp": 2, "sp": True}, {"tp": 2, "sp": True}, "etp"),
        ({"precision": "bf16"}, {}, "precision"),
        ({"cp_comm_type": "a2a"}, {}, "cp_comm_type"),
        ({"tp": 8, "zero_stage": 0}, {"tp": 8}, "zero_stage"),
        ({"tp": 8, "overlap_grad_reduce": True}, {"tp": 8}, "overlap_grad_reduce"),
        *(
            ({"zero_stage": stage, "overlap_grad_reduce": True}, {"zero_stage": stage}, GRADIENTS)
            for stage in (2, 3)
        ),
        (
            {"zero_stage": 3, "overlap_param_gather": True},
            {"zero_stage": 3},
            "overlap_param_gather",
        ),
        ({"schedule": "gpipe"}, {}, "schedule"),
        ({"use_tp_pp_dp_mapping": True}, {}, "use_tp_pp_dp_mapping"),
        ({"recompute": "full", "recompute_layers": 12}, {"recompute": "full"}, "recompute_layers"),
        ({"pp": 4, "first_stage_layers": 3}, {"pp": 4}, "layer_split"),
        (
            {"micro_batch": 16, "pp": 2, "schedule": "gpipe"},
            {"micro_batch": 16, "pp": 2},
            "schedule",
        ),
        (
            {"recompute": "selective", "recompute_modules": "mlp+core_attn"},
            {"recompute": "selective", "recompute_modules": "core_attn+mlp"},
            "recompute_modules",
        ),
    ],
)
def test_each_rule_rewrites_what_it_names(given, found, rule):
    job = make_job(**given)
    assert canonical(job) == Recipe(**found)
    _, rewritten = canonicalize(
        RecipeTable.of([job.recipe, job.recipe]), lambda recipe: replace(job, recipe=recipe)
    )
    assert {name: rows.tolist() for name, rows in rewritten.items()} == {rule: [True, True]}
    assert rule in RULES


@pytest.mark.parametrize("software", [{"torch_wrappers": True}, {"flattens_gradients": True}])
def test_stages_of_sharding_differ_without_replicas_where_software_does(software):
    job = make_job(tp=8, zero_stage=2, overlap_grad_reduce=True, training=software)
    assert canonical(job).zero_stage == 2
    assert canonical(make_job(tp=8, zero_stage=0)).zero_stage == 1


def test_only_sharded_optimizers_keep_weights_in_8_bits_without_replicas_too():
    software = {"fp8_param_gather": ("fp8",)}
    stages = [
        canonical(
            make_job(tp=8, zero_stage=stage, precision=precision, training=software)
        ).zero_stage
        for precision in ("fp8", "bf16")
        for stage in (0, 1, 2)
    ]
    assert stages == [0, 1, 1, 1, 1, 1]
    # Weights that no optimizer updates are in 8 bits whatever it shards.
    adapters = make_job(
        tp=8, zero_stage=0, precision="fp8", training=software | {"lora": Lora(8, ("linear_qkv",))}
    )
    assert canonical(adapters).zero_stage == 1


def test_buckets_that_wait_for_each_other_are_two_without_replicas_too():
    recipe = {"tp": 8, "overlap_grad_reduce": True}
    assert canonical(
        make_job(**recipe, training={"gradient_bucket": "gradient"})
    ).overlap_grad_reduce
    assert not canonical(make_job(**recipe)).overlap_grad_reduce


def test_breadth_first_stays_where_1f1b_needs_more_micro_batches():
    given_ = {"micro_batch": 16, "pp": 2, "vpp": 2}
    job = make_job(**given_, schedule="gpipe")
    assert job.num_micro_batches == 1
    assert why_invalid(job) is None
    assert why_invalid(make_job(**given_)) is not None
    assert canonical(job) == job.recipe


def test_a_teachers_experts_have_the_dispatcher_that_a_recipe_names():
    taught = {"distillation": Distillation(MOE)}
    assert canonical(make_job(LLAMA, moe_dispatcher="deepep", training=taught)).moe_dispatcher
    assert not canonical(make_job(LLAMA, moe_dispatcher="deepep")).moe_dispatcher
