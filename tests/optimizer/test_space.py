import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.optimizer.fake_simulator import SPACE, toy_question
from tests.samples import GPU
from trainscout.optimizer.enumeration import blocks
from trainscout.optimizer.survey import survey
from trainscout.optimizer.union import compile_space
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.validity import why_invalid

CONF = Path(__file__).parents[2] / "conf" / "space"


def listed_points(space):
    return [tuple(point) for block in blocks(space) for point in block.indices.tolist()]


def shipped(name):
    return yaml.safe_load((CONF / f"{name}.yaml").read_text())


def test_maya_table3_has_1920_raw_points():
    assert compile_space(shipped("maya_table3"), toy_question()).size == 1920


@pytest.mark.parametrize("name", ["megatron", "maya_table3", "moye"])
def test_shipped_spaces_hold_launchable_recipes_only(name):
    question = toy_question()
    surveyed = survey(compile_space(shipped(name), question))
    assert len(surveyed) > 10
    assert all(why_invalid(question.job(recipe)) is None for recipe in surveyed.recipes)
    assert len(set(surveyed.recipes)) == len(surveyed.recipes)


def test_microbatch_multiplier_sets_the_number_of_micro_batches():
    question = toy_question()
    space = compile_space(shipped("maya_table3"), question)
    multiplier = [knob.name for knob in space.knobs].index("multiplier")
    surveyed = survey(space)
    for indices, recipe in zip(surveyed.points, surveyed.recipes, strict=True):
        factor = space.knobs[multiplier].choices[indices[multiplier]]
        assert question.job(recipe).num_micro_batches == factor * recipe.pp


def test_exact_division_rejects_instead_of_rounding():
    spec = {
        "knobs": {"multiplier": {"choices": [1, 3]}},
        "derived": {"micro_batch": "global_batch_size / (dp * multiplier)"},
    }
    surveyed = survey(compile_space(spec, toy_question(batch=64)))
    assert [recipe.micro_batch for recipe in surveyed.recipes] == [4]
    assert surveyed.rejected["derived_micro_batch"].count == 1


def test_a_knob_that_does_not_matter_collapses():
    space = compile_space(SPACE, toy_question())
    names = [knob.name for knob in space.knobs]
    raw = [0] * len(names)
    raw[names.index("sp")] = 1
    raw[names.index("vpp")] = 2
    assert space.canonical(tuple(raw)) == (0,) * len(names)
    assert space.point(tuple(raw))["sp"] is False
    assert space.point(tuple(raw))["vpp"] == 1


@given(st.data())
def test_collapsing_is_idempotent_and_keeps_the_recipe(data):
    space = compile_space(SPACE, toy_question())
    raw = tuple(data.draw(st.integers(0, len(knob.choices) - 1)) for knob in space.knobs)
    once = space.canonical(raw)
    assert space.canonical(once) == once
    assert space.candidate(once) == space.candidate(raw)
    assert space.point(once) == space.point(raw)


def test_points_are_all_raw_points_collapsed():
    space = compile_space(SPACE, toy_question())
    listed = listed_points(space)
    raw = itertools.product(*(range(len(knob.choices)) for knob in space.knobs))
    assert sorted(listed) == sorted({space.canonical(indices) for indices in raw})
    assert len(listed) < space.size == math.prod(len(k.choices) for k in space.knobs)


def test_equal_recipes_are_one_row():
    spec = {
        "knobs": {"recompute": ["full"], "recompute_layers": {"choices": [None, 8]}},
    }
    surveyed = survey(compile_space(spec, toy_question()))
    assert len(surveyed) == 1
    assert len(surveyed.row_of) == 2


def test_nearest_is_itself_then_the_closest_other():
    surveyed = survey(compile_space(SPACE, toy_question()))
    allowed = np.ones(len(surveyed), dtype=bool)
    for row in range(0, len(surveyed), 97):
        assert surveyed.nearest(surveyed.points[row]) == row
        allowed[row] = False
        other = surveyed.nearest(surveyed.points[row], allowed)
        assert other != row
        ranges = [max(1, len(knob.choices) - 1) for knob in surveyed.space.knobs]

        def distance(to, row=row, ranges=ranges):
            pairs = zip(surveyed.points[row], surveyed.points[to], ranges, strict=True)
            return sum(abs(a - b) / scale for a, b, scale in pairs)

        best = min(distance(to) for to in range(len(surveyed)) if allowed[to])
        assert distance(other) == pytest.approx(best)
        allowed[row] = True


def test_a_knob_without_choices_has_those_it_declares():
    space = compile_space({"knobs": {"pp": {}, "sp": {"when": "pp > 1"}}}, toy_question())
    pp, sp = space.knobs
    assert pp.choices[-1] == toy_question().cluster.num_gpus
    assert sp.choices == (False, True)
    assert sp.when is not None


@pytest.mark.parametrize(
    ("spec", "field", "nearest"),
    [
        ({"knob": {}}, "space", "knobs"),
        ({"knobs": {}}, "space.knobs", None),
        ({"knobs": {"micro_batches": [1, 2]}}, "space.knobs", "micro_batch"),
        ({"knobs": {"tp": {"choice": [1]}}}, "space.knobs.tp", "choices"),
        ({"knobs": {"tp": {"choices": []}}}, "space.knobs.tp.choices", None),
        ({"knobs": {"tp": {"choices": [1, 1]}}}, "space.knobs.tp.choices", None),
        ({"knobs": {"tp": {"choices": [1.5]}}}, "space.knobs.tp", None),
        ({"knobs": {"sp": {"choices": [0, 1]}}}, "space.knobs.sp", None),
        ({"knobs": {"tp": {"divisors_of": "num_gpu"}}}, "space.knobs.tp.divisors_of", "num_gpus"),
        ({"knobs": {"tp": {}, "factor": {}}}, "space.knobs.factor", None),
        ({"knobs": {"sp": {"choices": [True], "when": "tp > 1"}}}, "space.knobs.sp.when", None),
        ({"knobs": {"tp": [1]}, "constants": {"zero": 1}}, "space.constants", "zero_stage"),
        ({"knobs": {"tp": [1]}, "constants": {"tp": 1}}, "space", None),
        ({"knobs": {"tp": [1]}, "constants": {"pp": "x"}}, "space.constants.pp", None),
        ({"knobs": {"tp": [1]}, "derived": {"microbatch": "1"}}, "space.derived", "micro_batch"),
    ],
)
def test_a_wrong_space_is_refused_by_name(spec, field, nearest):
    with pytest.raises(InputError) as refused:
        compile_space(spec, toy_question())
    assert refused.value.field == field
    assert refused.value.nearest == nearest


def test_a_space_without_a_launchable_recipe_says_which_rules_and_what_to_widen():
    spec = {"knobs": {"tp": {"choices": [3, 5]}, "micro_batch": {"choices": [1, 7]}}}
    with pytest.raises(InputError) as refused:
        survey(compile_space(spec, toy_question()))
    assert "all 4 distinct points" in str(refused.value)
    assert "degrees_divide_world rejects 4" in str(refused.value)
    assert "widen tp" in str(refused.value)


def test_a_huge_space_is_refused_by_its_distinct_points(monkeypatch):
    monkeypatch.setattr("trainscout.optimizer.survey.MAX_POINTS", 8)
    conditional = {"choices": [1, 2, 4], "when": "pp > 1"}
    # 3 x 2 x 3 = 18 raw points, but vpp matters for pp = 2 only: 3 x (1 + 3) = 12 distinct.
    spec = {"knobs": {"tp": [1, 2, 4], "pp": [1, 2], "vpp": conditional}}
    with pytest.raises(InputError, match="more than 8 distinct points"):
        survey(compile_space(spec, toy_question()))
    monkeypatch.setattr("trainscout.optimizer.survey.MAX_POINTS", 12)
    assert len(survey(compile_space(spec, toy_question()))) > 0


@pytest.mark.parametrize(("hidden", "graphs"), [(1024, True), (16384, None)])
def test_graphs_are_looked_at_where_dense_products_are_small(hidden, graphs):
    question = toy_question()
    model = dataclasses.replace(question.model, hidden_size=hidden, ffn_hidden_size=4 * hidden)
    gpu = dataclasses.replace(question.gpu, compute_capability=9.0)
    found = survey(
        compile_space(shipped("megatron"), dataclasses.replace(question, model=model, gpu=gpu))
    )
    sharded_little = [each for each in found.recipes if each.zero_stage < 2 and each.tp == 1]
    plain = [each for each in sharded_little if each.recompute == "none" and each.micro_batch == 1]
    assert {each.cuda_graphs for each in plain} == {graphs}


# Knobs that meet no constraint, and what can be launched and is not looked at.
FREE = {
    "megatron": (
        *("recompute", "recompute_layers", "zero_stage", "tp_comm_overlap", "overlap_grad_reduce"),
        *("overlap_param_gather", "recompute_modules", "cuda_graphs", "optimizer_states"),
        *("overlap_moe_expert_parallel_comm", "fp8_param_gather", "dp_shard"),
    ),
    "large": (
        *("recompute", "recompute_layers", "recompute_modules", "recompute_taper", "precision"),
        *("overlap_moe_expert_parallel_comm", "overlap_param_gather", "tp_comm_overlap"),
        "overlap_grad_reduce",
    ),
}
UNLOOKED = {
    "megatron": (
        *("recompute_modules", "recompute_layers", "zero_stage", "sequence_length", "dp_shard"),
        *("micro_batch", "counted_ends"),
    ),
    "large": (),
}


@pytest.mark.parametrize(
    ("space", "layers", "nodes", "experts", "mtp"),
    [
        *(("megatron", 126, 4, 0, 0), ("megatron", 61, 8, 0, 0), ("megatron", 96, 12, 0, 0)),
        *(("megatron", 7, 3, 0, 0), ("megatron", 24, 2, 8, 0)),
        *(("large", 30, 4, 0, 0), ("large", 13, 2, 8, 1)),
        pytest.param("large", 32, 3, 0, 0, marks=pytest.mark.deep),
    ],
)
def test_the_constraints_of_spaces_lose_no_launchable_recipe(space, layers, nodes, experts, mtp):
    question = toy_question()
    moe = Moe(experts, 2, 512) if experts else None
    model = dataclasses.replace(question.model, num_layers=layers, moe=moe, num_mtp_layers=mtp)
    cluster = dataclasses.replace(question.cluster, num_nodes=nodes)
    question = dataclasses.replace(question, model=model, cluster=cluster)
    spec = shipped(space)
    for name in FREE[space]:
        del spec["knobs"][name]
    spec["constraints"] = [
        each for each in spec["constraints"] if not any(name in each for name in UNLOOKED[space])
    ]
    free = {key: value for key, value in spec.items() if key != "constraints"}
    narrow, wide = (survey(compile_space(each, question)) for each in (spec, free))
    assert set(narrow.recipes) == set(wide.recipes)
    assert narrow.distinct_points < wide.distinct_points


def test_the_large_space_has_a_million_points_on_a_large_cluster():
    question = toy_question()
    model = dataclasses.replace(question.model, num_layers=96, num_heads=96, hidden_size=12288)
    model = dataclasses.replace(model, ffn_hidden_size=49152, sequence_length=2048)
    cluster = dataclasses.replace(question.cluster, num_nodes=1024)
    training = dataclasses.replace(question.training, global_batch_size=512)
    question = dataclasses.replace(
        question, model=model, gpu=GPU, cluster=cluster, training=training
    )
    surveyed = survey(compile_space(shipped("large"), question))
    assert len(surveyed) > 1_000_000
    for row in range(0, len(surveyed), 50_000):
        assert why_invalid(question.job(surveyed.recipes[row])) is None
        assert surveyed.point_of(surveyed.recipes[row]) == surveyed.points[row]


def test_divisors_go_up_to_what_is_said():
    spec = {"knobs": {"micro_batch": {"divisors_of": "global_batch_size", "up_to": 12}}}
    training = dataclasses.replace(toy_question().training, global_batch_size=36)
    space = compile_space(spec, dataclasses.replace(toy_question(), training=training))
    assert space.knobs[0].choices == (1, 2, 3, 4, 6, 9, 12)
    spec["knobs"]["micro_batch"]["up_to"] = "batch"
    with pytest.raises(InputError) as refused:
        compile_space(spec, toy_question())
    assert refused.value.field == "space.knobs.micro_batch.up_to"


@pytest.mark.parametrize(
    ("layers", "experts", "recipe"),
    [
        (8, 0, {"micro_batch": 6}),
        (8, 0, {"recompute": "full", "recompute_layers": 5}),
        (8, 8, {"ep": 8, "recompute": "selective", "recompute_modules": "layernorm+moe_act"}),
        (8, 8, {"pp": 2, "vpp": 2, "ep": 8, "micro_batch": 3}),
        (61, 8, {"pp": 2, "vpp": 8, "pipeline_layout": "balanced", "loss_as_layer": False}),
    ],
)
def test_the_shipped_space_holds_what_people_ran(layers, experts, recipe):
    question = toy_question()
    moe = Moe(experts, 2, 512) if experts else None
    question = dataclasses.replace(
        question,
        model=dataclasses.replace(question.model, num_layers=layers, moe=moe),
        training=dataclasses.replace(question.training, global_batch_size=192),
    )
    recipes = survey(compile_space(shipped("megatron"), question)).recipes
    held = {tuple(getattr(each, name) for name in recipe) for each in recipes}
    assert tuple(recipe.values()) in held


@pytest.mark.parametrize(("capacity", "dispatchers"), [(None, {None, "deepep"}), (1.0, {None})])
def test_padded_experts_are_not_sent_by_deepep(capacity, dispatchers):
    question = toy_question()
    moe = Moe(8, 2, 512, capacity_factor=capacity)
    question = dataclasses.replace(question, model=dataclasses.replace(question.model, moe=moe))
    spec = {"knobs": {"ep": {}, "moe_dispatcher": shipped("megatron")["knobs"]["moe_dispatcher"]}}
    recipes = survey(compile_space(spec, question)).recipes
    assert {each.moe_dispatcher for each in recipes} == dispatchers


def test_the_shipped_space_offers_nothing_without_effect():
    surveyed = survey(compile_space(shipped("megatron"), toy_question()))
    alone = [r for r in surveyed.recipes if toy_question().job(r).dp * r.cp == 1]
    assert alone
    assert {(recipe.zero_stage, recipe.overlap_grad_reduce) for recipe in alone} == {(1, False)}


def test_choices_spelt_out_replace_computed_ones():
    spec = {"knobs": {"tp": {"powers_of_two_up_to": "nvlink_domain", "choices": [2]}}}
    assert compile_space(spec, toy_question()).knobs[0].choices == (2,)


def test_a_precision_the_gpu_lacks_is_refused_unless_the_space_sets_it():
    question = toy_question()
    question = dataclasses.replace(
        question, training=dataclasses.replace(question.training, precision="tf32")
    )
    with pytest.raises(InputError) as refused:
        compile_space({"knobs": {"tp": [1, 2]}}, question)
    assert refused.value.field == "training.precision"
    compile_space({"knobs": {"tp": [1, 2]}, "constants": {"precision": "bf16"}}, question)


def test_a_declared_precision_that_the_gpu_lacks_is_refused_whatever_else_it_has():
    question = toy_question()
    assert not question.gpu.architecture.microscaling
    gpu = dataclasses.replace(question.gpu, peak_flops={**question.gpu.peak_flops, "fp8": 2e15})
    training = dataclasses.replace(question.training, precision="mxfp8")
    question = dataclasses.replace(question, gpu=gpu, training=training)
    both = {"tp": [1, 2], "precision": {"choices": [None, "fp8"]}}
    with pytest.raises(InputError, match="blocks of 32") as refused:
        compile_space({"knobs": both}, question)
    assert refused.value.field == "training.precision"
    assert "fp8_current" in str(refused.value)
    assert "mxfp8" not in str(refused.value).split("allowed")[1]
    only = {"tp": [1, 2], "precision": {"choices": ["fp8"]}}
    assert compile_space({"knobs": only}, question).size == 2


def test_a_way_of_scaling_is_arithmetic_of_its_operands():
    question = toy_question()
    gpu = dataclasses.replace(question.gpu, peak_flops={**question.gpu.peak_flops, "fp8": 2e15})
    training = dataclasses.replace(question.training, precision="fp8_current")
    space = compile_space(SPACE, dataclasses.replace(question, gpu=gpu, training=training))
    assert len(survey(space))


def test_a_point_outside_a_constraint_says_so():
    spec = {"knobs": {"tp": [1, 2], "pp": [1, 2]}, "constraints": ["tp >= pp"]}
    space = compile_space(spec, toy_question())
    assert listed_points(space) == [(0, 0), (1, 0), (1, 1)]
    violation = space.candidate((0, 1)).violation
    assert violation is not None
    assert violation.rule == "constraint"
    assert "tp >= pp" in violation.reason
    assert space.candidate((1, 1)).violation is None


@pytest.mark.parametrize(
    ("constraints", "field"),
    [
        ("tp > 1", "space.constraints"),
        (["tpp > 1"], r"space.constraints\[0\]"),
        (["num_gpus > 1"], r"space.constraints\[0\]"),
    ],
)
def test_a_wrong_constraint_is_refused(constraints, field):
    with pytest.raises(InputError, match=field):
        compile_space({"knobs": {"tp": [1, 2]}, "constraints": constraints}, toy_question())


@pytest.mark.parametrize(
    ("constraints", "stated"),
    [
        (["tp > 8"], r"=tp > 8: no choice of the knobs meets it \(other choices of tp\)"),
        # The others could be met: they are not what stands in the way.
        (["pp > 1", "tp * pp > 8", "tp > 1"], r"=tp \* pp > 8: no choice .* of pp, tp\)"),
        (["tp > 1", "pp > 1", "tp < 2"], r"=tp > 1; tp < 2; pp > 1: leave no point together"),
    ],
)
def test_constraints_that_leave_nothing_are_named(constraints, stated):
    knobs = {"tp": [1, 2], "pp": {"choices": [1, 2], "when": "tp > 1", "otherwise": 1}}
    with pytest.raises(InputError, match=stated) as refused:
        survey(compile_space({"knobs": knobs, "constraints": constraints}, toy_question()))
    assert refused.value.field == "space.constraints"
