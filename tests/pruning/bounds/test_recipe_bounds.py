"""Nothing the replay predicts is below its bound."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pruning.questions import TEACHER, jobs
from tests.simulators.jobs import GPT175B, LLAMA, MIXTRAL_8X7B, MOE, make_job
from trainscout.pruning.bounds.columns import PASS_FIELDS
from trainscout.pruning.bounds.layouts import Layout
from trainscout.pruning.bounds.recipe_bounds import Bounds
from trainscout.pruning.bounds.step_end import END_FIELDS
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.memory.static import static_of
from trainscout.simulators.predictor.memory.unused import (
    deferred_bytes,
    flattened_bytes,
    gathered_bytes,
    vacated_bytes,
)
from trainscout.simulators.predictor.question.cluster import MeasuredCollective
from trainscout.simulators.predictor.question.knob import HOST
from trainscout.simulators.predictor.question.recipe import KNOBS, knobs_entering
from trainscout.simulators.predictor.question.schedules import SCHEDULES
from trainscout.simulators.predictor.question.tuning import Distillation, Dpo, Lora
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.calibration import Calibration, CalibrationRun
from trainscout.simulators.predictor.uncertainty.factors import FACTORS, Factors
from trainscout.simulators.predictor.uncertainty.posterior import traits_of
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.weights.step_end import update_bytes


def bounds_of(job, **given_):
    return Bounds(lambda recipe: replace(job, recipe=recipe), **given_)(
        RecipeTable.of([job.recipe])
    )


@given(jobs())
def test_bounds_are_admissible(job):
    prediction = ReplaySimulator().without_error_bar(job)
    bounds = bounds_of(job)
    assert bounds.step_time_s[0] <= prediction.step_time_s
    memory = prediction.memory
    assert bounds.memory_bytes[0] <= memory.peak_reserved_bytes
    assert bounds.used_bytes[0] <= memory.capacity_bytes - memory.headroom_bytes


@pytest.mark.parametrize(
    ("model", "recipe", "training"),
    [
        # The ends, a unit of their own, stay gathered between both passes.
        (replace(LLAMA, vocab_size=65536), {"zero_stage": 3}, {"one_root_unit": True}),
        # Each micro-batch's gradients are reduced, and the next backward pass waits for them.
        (MIXTRAL_8X7B, {"overlap_grad_reduce": True}, {"reduces_each_pass": True}),
    ],
)
def test_bounds_are_admissible_where_many_micro_batches_wait_for_exchanges(
    model, recipe, training
):
    job = make_job(model, nodes=4, batch=512, training=training, **recipe)
    job = replace(job, cluster=replace(job.cluster, nic_gbps=4.0))
    step_time_s = ReplaySimulator().without_error_bar(job).step_time_s
    assert 0.9 * step_time_s < bounds_of(job).step_time_s[0] <= step_time_s


LONG = replace(LLAMA, vocab_size=65536, hidden_size=1024, sequence_length=16384)


@pytest.mark.parametrize(
    "tuned",
    [
        {"dpo": Dpo(precomputed=True, kto=True)},
        {"distillation": Distillation(replace(LONG, num_layers=24))},
    ],
)
def test_bounds_know_that_a_frozen_model_that_runs_first_may_hide_the_first_gather(tuned):
    overlap = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    job = make_job(LONG, tp=4, batch=8, training=tuned, zero_stage=1, **overlap)
    step_time_s = ReplaySimulator().without_error_bar(job).step_time_s
    assert 0.99 * step_time_s < bounds_of(job).step_time_s[0] <= step_time_s


def test_bounds_run_frozen_passes_in_their_order():
    """KTO's trained model passes other answers forward first, its reference at last: one head's
    kernels hide launches of layers before the trained ones, and one no longer behind them."""
    model = replace(LLAMA, vocab_size=262144, num_layers=2, sequence_length=64)
    job = make_job(model, tp=8, training={"dpo": Dpo(kto=True), "autocast": True})
    step_time_s = ReplaySimulator().without_error_bar(job).step_time_s
    assert 0.99 * step_time_s < bounds_of(job).step_time_s[0] <= step_time_s


@given(jobs())
def test_passes_alone_and_those_without_recomputation_are_below_whole_bounds(job):
    bounds = Bounds(lambda recipe: replace(job, recipe=recipe))
    table = RecipeTable.of([job.recipe])
    whole = bounds(table)
    held_bytes, step_time_s = bounds.passes(table)
    assert held_bytes[0] <= whole.used_bytes[0]
    assert bounds.least_step_s(table)[0] <= step_time_s[0] <= whole.step_time_s[0]


@given(jobs())
def test_memory_is_exact_where_every_kind_of_stage_is_looked_at(job):
    contents = {tuple(kinds) for kinds in Layout.of(job).kind_of}
    # Bounds take all layers of a kind for offloaded where one is, and leave out what waits for the
    # gradients of weights.
    split = SCHEDULES[job.schedule].splits_backward or job.framework.torch_wrappers
    split = split or job.framework.defers_frees
    plain = len(contents) <= 3 and not job.recipe.offloaded_layers and not split
    if plain and not left_out(job):
        memory, bounds = ReplaySimulator().without_error_bar(job).memory, bounds_of(job)
        assert bounds.memory_bytes[0] == memory.peak_reserved_bytes
        assert bounds.used_bytes[0] == memory.capacity_bytes - memory.headroom_bytes


def left_out(job):
    """Whether a stage has memory that is not there at some moment, which bounds take for never
    there, or places that serve nothing at its peak; or tensors that the optimizer flattens beside
    others that it holds, of which bounds take no fragmentation."""
    stages = build_workload(job).stages
    statics = [static_of(job, stage) for stage in stages]
    return deferred_bytes(job, stages[0]) or any(
        static.comes_and_goes
        or gathered_bytes(job, stage)
        or vacated_bytes(job, stage, static)
        or (flattened_bytes(job, stage) and update_bytes(stage.parameters, job))
        for stage, static in zip(stages, statics, strict=True)
    )


@given(
    jobs(),
    st.lists(st.floats(0.5, 2), min_size=len(FACTORS), max_size=len(FACTORS)),
    st.floats(0.7, 1.5),
)
def test_bounds_follow_a_calibration(job, factors, longer):
    """Stated factors, and runs: one of the job's own traits, one that differs."""
    shares = (0.2, 0.1, 0.2, 0.05, 0.03)
    near, far = traits_of(job), replace(traits_of(job), micro_batch=64, recompute="other")
    runs = (
        CalibrationRun("near", near, shares, 1.0, longer),
        CalibrationRun("far", far, shares, 1.0, 1.3),
    )
    calibration = Calibration((job.gpu.name,), Factors(*factors), runs)
    prediction = ReplaySimulator(calibration).without_error_bar(job)
    assert bounds_of(job, calibration=calibration).step_time_s[0] <= prediction.step_time_s


def test_bounds_of_a_table_wait_for_data():
    """What a loader takes is the same to the last digit: no recipe is left that only ties."""
    job = make_job(nodes=2, training={"loader_samples_per_s": 0.5})
    table = RecipeTable.of([replace(job.recipe, tp=tp, pp=pp) for tp in (1, 4) for pp in (1, 2)])
    bounds = Bounds(lambda recipe: replace(job, recipe=recipe))
    waits = [8.0, 16.0, 32.0, 64.0]
    assert bounds(table).step_time_s.tolist() == bounds.passes(table)[1].tolist() == waits
    assert bounds.least_step_s(table).tolist() == waits
    assert [ReplaySimulator().simulate(bounds.job(each)).step_time_s for each in table] == waits


def test_bounds_of_a_table_follow_what_recipes_differ_in():
    job = make_job(GPT175B, nodes=12, batch=1536, tp=8, pp=12, sp=True)
    recipes = [
        replace(job.recipe, recompute=recompute, micro_batch=micro_batch)
        for recompute in ("none", "full")
        for micro_batch in (1, 2, 4)
    ]
    shares = (0.1, 0.1, 0.1, 0.0, 0.03)
    runs = tuple(
        CalibrationRun("x", traits_of(replace(job, recipe=recipe)), shares, 1.0, longer)
        for recipe, longer in zip(recipes, [1.04] * 3 + [0.96] * 3, strict=True)
    )
    calibration = Calibration((job.gpu.name,), runs=runs)
    table = RecipeTable.of(recipes)
    found = Bounds(lambda recipe: replace(job, recipe=recipe), calibration)(table).step_time_s
    plain = Bounds(lambda recipe: replace(job, recipe=recipe))(table).step_time_s
    simulator = ReplaySimulator(calibration)
    predicted = [
        simulator.without_error_bar(replace(job, recipe=recipe)).step_time_s for recipe in recipes
    ]
    assert (found <= predicted).all()
    longer = found / plain
    assert longer[0] > 1 > longer[-1]


@pytest.mark.parametrize(
    ("knob", "values", "precision"),
    [("etp", (1, None), "bf16"), ("fp8_param_gather", (True, False), "fp8")],
)
def test_scales_of_a_table_follow_what_decides_whether_anything_is_sharded(
    knob, values, precision
):
    """Without replicas ZeRO 0 is ZeRO 1, unless experts have some or weights are of 8 bits."""
    job = make_job(MOE, tp=8, sp=True, zero_stage=0, training={"precision": precision})
    each = [replace(job, recipe=replace(job.recipe, **{knob: value})) for value in values]
    assert [traits_of(one).zero_stage for one in each] == [0, 1]
    runs = tuple(
        CalibrationRun("x", traits_of(one), (0.1, 0.1, 0.1, 0.0, 0.03), 1.0, longer)
        for one, longer in [(each[0], 1.08), (each[1], 0.92)] * 4
    )
    calibration = Calibration((job.gpu.name,), runs=runs)
    table = RecipeTable.of([one.recipe for one in each])
    found = Bounds(lambda recipe: replace(job, recipe=recipe), calibration)(table).step_time_s
    assert found.tolist() == [
        bounds_of(one, calibration=calibration).step_time_s[0] for one in each
    ]


@pytest.mark.parametrize("software", ["torch_wrappers", "flattens_gradients"])
def test_bounds_of_a_table_know_whose_gradients_come_with_the_backward_pass(software):
    facts = {software: True, "accumulate_grads_fp32": False, "fused_wgrad": False}
    job = make_job(replace(LLAMA, vocab_size=65536), batch=64, zero_stage=1, training=facts)
    recipes = [replace(job.recipe, micro_batch=size) for size in (1, 8)]
    found = Bounds(lambda recipe: replace(job, recipe=recipe))(RecipeTable.of(recipes))
    for recipe, bound_bytes in zip(recipes, found.memory_bytes, strict=True):
        memory = ReplaySimulator().without_error_bar(replace(job, recipe=recipe)).memory
        assert bound_bytes <= memory.peak_reserved_bytes


@pytest.mark.parametrize("facts", [{"host_unit_s": 1e-2}, {"precision": "fp8_current"}])
def test_bounds_of_a_table_know_what_passes_do_for_what_is_sharded(facts):
    """Hooks on layers from ZeRO 2 on, weights quantised in every pass under ZeRO 3."""
    job = make_job(LLAMA, batch=64, training=facts)
    recipes = [replace(job.recipe, zero_stage=stage) for stage in (3, 2, 1, 0)]
    found = Bounds(lambda recipe: replace(job, recipe=recipe))(RecipeTable.of(recipes))
    for recipe, bound_s in zip(recipes, found.step_time_s, strict=True):
        step_time_s = ReplaySimulator().without_error_bar(replace(job, recipe=recipe)).step_time_s
        assert 0.9 * step_time_s < bound_s <= step_time_s


def test_bounds_of_a_table_know_which_adapters_have_replicas():
    facts = {"fp32_adapters": True, "autocast": True, "lora": Lora(8)}
    job = make_job(LLAMA, batch=64, training=facts, zero_stage=1)
    recipes = [replace(job.recipe, pp=stages, tp=2) for stages in (4, 2)]
    for table in (recipes, recipes[::-1]):
        found = Bounds(lambda recipe: replace(job, recipe=recipe))(RecipeTable.of(table))
        alone = [bounds_of(replace(job, recipe=recipe)).step_time_s[0] for recipe in table]
        np.testing.assert_allclose(found.step_time_s, alone, rtol=1e-12)


def test_bounds_of_a_table_know_how_a_pipeline_cuts_a_teacher():
    job = make_job(LLAMA, batch=64, training={"distillation": Distillation(TEACHER)})
    cuts = ((1, 1), (2, 1), (4, 1), (2, 2))
    recipes = [replace(job.recipe, pp=pp, vpp=vpp) for pp, vpp in cuts]
    found = Bounds(lambda recipe: replace(job, recipe=recipe))(RecipeTable.of(recipes))
    for row, recipe in enumerate(recipes):
        alone = bounds_of(replace(job, recipe=recipe))
        assert found.step_time_s[row] == pytest.approx(alone.step_time_s[0], rel=1e-12)
        assert found.used_bytes[row] == alone.used_bytes[0]


SLOW = tuple(
    MeasuredCollective(kind, nodes, 2**30, 60 / nodes, 200 / nodes, 10 / nodes)
    for kind in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
    for nodes in (1, 2, 8)
)


@given(jobs())
def test_bounds_follow_measured_collectives(job):
    cluster = replace(job.cluster, oversubscription=1.0, measured_collectives="x", measured=SLOW)
    slow = replace(job, cluster=cluster)
    prediction = ReplaySimulator().without_error_bar(slow)
    assert bounds_of(slow).step_time_s[0] <= prediction.step_time_s


def test_bounds_of_some_rows_are_those_of_all_to_the_last_digit():
    job = make_job(GPT175B, nodes=12, batch=1536, tp=8, pp=4, sp=True)
    table = RecipeTable.of(
        [
            replace(job.recipe, pp=pp, vpp=vpp, micro_batch=micro_batch, recompute=recompute)
            for pp, vpp in ((1, 1), (4, 1), (4, 3), (6, 4), (12, 1), (12, 2))
            for micro_batch in (1, 2, 4)
            for recompute in ("none", "selective", "full")
        ]
    )

    def of(rows):
        return Bounds(lambda recipe: replace(job, recipe=recipe))(table.take(rows))

    whole = of(np.arange(len(table)))
    for rows in (np.array([7]), np.arange(0, len(table), 5), np.arange(20, 33)):
        some = of(rows)
        np.testing.assert_array_equal(some.step_time_s, whole.step_time_s[rows])
        np.testing.assert_array_equal(some.used_bytes, whole.used_bytes[rows])


def test_bounds_of_a_table_know_what_nccl_is_told():
    job = make_job(LLAMA, nodes=4, batch=64, zero_stage=1)
    told = [{}, {"nccl_max_channels": 2}, {"nccl_algo": "tree"}, {"nccl_algo": "ring"}]
    recipes = [replace(job.recipe, **each) for each in told]
    found = Bounds(lambda recipe: replace(job, recipe=recipe))(RecipeTable.of(recipes))
    alone = [bounds_of(replace(job, recipe=recipe)).step_time_s[0] for recipe in recipes]
    np.testing.assert_allclose(found.step_time_s, alone, rtol=1e-12)
    assert len(set(alone)) > 2


CASES = [
    (GPT175B, {"tp": 8, "pp": 12, "sp": True, "recompute": "selective"}, 12, 1536),
    (GPT175B, {"tp": 8, "pp": 12, "sp": True, "recompute": "selective", "vpp": 4}, 12, 1536),
    (GPT175B, {"tp": 8, "pp": 6, "sp": True, "recompute": "full", "vpp": 2}, 12, 1536),
    (GPT175B, {"tp": 8, "pp": 4, "sp": True, "overlap_grad_reduce": True}, 64, 512),
    (MIXTRAL_8X7B, {"tp": 1, "pp": 4, "ep": 8, "micro_batch": 2}, 8, 512),
]


@pytest.mark.parametrize(("model", "recipe", "nodes", "batch"), CASES)
def test_bounds_of_published_models_are_tight(model, recipe, nodes, batch):
    job = make_job(model, nodes=nodes, batch=batch, **recipe)
    simulated = ReplaySimulator().without_error_bar(job).step_time_s
    assert 0.97 * simulated <= bounds_of(job).step_time_s[0] <= simulated


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("ep", [1, 4, 8])
def test_bounds_know_how_exchanges_beside_every_pass_slow_it(zero, ep):
    recipe = {"tp": 1, "pp": 1, "ep": ep, "micro_batch": 2, "zero_stage": zero}
    job = make_job(MIXTRAL_8X7B, nodes=8, batch=1024, recompute="full", **recipe)
    simulated = ReplaySimulator().without_error_bar(job).step_time_s
    assert 0.97 * simulated <= bounds_of(job).step_time_s[0] <= simulated


def test_a_large_table_is_bounded_in_bulk():
    job = make_job(GPT175B, nodes=12, batch=1536, tp=8, pp=12, sp=True)
    recipes = [
        replace(job.recipe, recompute=recompute, vpp=vpp, micro_batch=micro_batch, zero_stage=zero)
        for recompute in ("none", "selective", "full")
        for vpp in (1, 2, 4, 8)
        for micro_batch in (1, 2, 4)
        for zero in (0, 1)
    ]
    bounds = Bounds(lambda recipe: replace(job, recipe=recipe))(RecipeTable.of(recipes))
    assert np.isfinite(bounds.step_time_s).all()
    for row in range(0, len(recipes), 7):
        alone = bounds_of(replace(job, recipe=recipes[row]))
        assert bounds.step_time_s[row] == pytest.approx(alone.step_time_s[0], rel=1e-12)
        assert bounds.used_bytes[row] == alone.used_bytes[0]
    # More recomputation takes longer and needs less memory, all else equal.
    none, _, full = np.split(np.arange(len(recipes)), 3)
    assert (bounds.step_time_s[none] < bounds.step_time_s[full]).all()
    assert (bounds.memory_bytes[none] > bounds.memory_bytes[full]).all()


@given(jobs(), st.sampled_from([True, False]))
def test_what_the_host_takes_enters_no_pass_and_no_memory(job, graphs):
    assert knobs_entering(HOST) == ("cuda_graphs",)
    other = replace(job, recipe=replace(job.recipe, cuda_graphs=graphs))
    # But for the search for NaN that graphs of whole steps leave out.
    assert _without_finish(other) == _without_finish(job)
    bounds, others = bounds_of(job), bounds_of(other)
    assert bounds.used_bytes == others.used_bytes
    assert bounds.memory_bytes == others.memory_bytes


def _without_finish(job):
    return [(stage.chunks, stage.optimizer) for stage in build_workload(job).stages]


def test_every_field_of_a_recipe_enters_a_bound():
    """One that a bound does not know would be bounded like its neighbours."""
    assert {*PASS_FIELDS, *END_FIELDS} == set(KNOBS)
