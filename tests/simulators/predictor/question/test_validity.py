"""Every rule fires for its own case, and what passes all of them has an integral layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.knobs import impossible_value
from tests.simulators.jobs import (
    CROSSING,
    DELTA,
    JOINED,
    LLAMA,
    MLA_MOE,
    MODELS,
    MOE,
    PAIRS,
    SHARING,
    TINY,
    TRANSLATING,
    make_job,
)
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.layers import Mixer
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import KNOBS
from trainscout.simulators.predictor.question.tuning import Distillation, Lora
from trainscout.simulators.predictor.question.validity import RULES, check_job, why_invalid

UNALIGNED = {"tp": 16, "nodes": 3, "gpus_per_node": 16, "domain": 24}
GROUPS_OF_3 = replace(LLAMA, num_heads=24, head_dim=8, num_query_groups=3)
NARROW = replace(TINY, hidden_size=252, head_dim=32)
PAIRED = "overlap_moe_expert_parallel_comm"
NF4 = Lora(8, frozen_weights="nf4")
BY_OPERATION = {"recompute": "selective", "recompute_modules": "operations"}
SHALLOW = replace(LLAMA, num_layers=6)
DELTAS = replace(LLAMA, layers=f"{LLAMA.num_layers}*x/dense", kinds={"x": Mixer(delta=DELTA)})
KIMIS = replace(DELTAS, kinds={"x": Mixer(delta=replace(DELTA, gate="vector"))})
_TWO_CHUNKS = {"pp": 2, "vpp": 2}
_UNEVEN_V = {**_TWO_CHUNKS, "schedule": "zb-v", "last_stage_layers": 4}
_CUTS_DELTAS = {"cuts_delta_rules": True}
_COMPILED, _PLAIN = {"fusion": "compiled"}, {"schedules": ("1f1b", "gpipe")}
SHARED_60 = replace(MOE, moe=Moe(8, 2, 128, 60))
# rule, field, model, job arguments: each breaks one rule.
BROKEN: list[tuple[str, str, Model, dict[str, Any]]] = [
    ("vpp_value", "vpp", TINY, {"vpp": 1.5}),
    ("framework", "framework", TINY, {"framework": "another"}),
    ("framework", "framework", TINY, {"training": {"lora": NF4, "lacks": ("quantised_weights",)}}),
    ("precision", "precision", TINY, {"precision": "fp32"}),
    ("looking_across", "pp", CROSSING, {"pp": 2}),
    ("looking_across", "pp", TRANSLATING, {"pp": 2}),
    ("looking_across", "cp", JOINED, {"cp": 32, "nodes": 4}),
    ("looking_across", "recompute_modules", JOINED, BY_OPERATION),
    ("looking_across", "framework", JOINED, {"training": {"attention": "unfused"}}),
    ("pooling", "pp", PAIRS, {"pp": 2}),
    ("pooling", "cp", PAIRS, {"cp": 2}),
    ("pooling", "micro_batch", PAIRS, {"batch": 64, "nodes": 1}),
    ("adapters", "tp", TINY, {"tp": 4, "training": {"lora": Lora(6)}}),
    (
        *("adapters", "recompute_modules", TINY),
        {**BY_OPERATION, "training": {"lora": Lora(8)}},
    ),
    ("adapters", "precision", TINY, {"precision": "fp8", "training": {"lora": NF4}}),
    (
        *("packs", "micro_batch", TINY),
        {"micro_batch": 2, "training": {"packed_lengths": (16,), "lacks": ("several_packs",)}},
    ),
    ("teacher", "pp", TINY, {"pp": 4, "training": {"distillation": Distillation(SHALLOW)}}),
    ("optimizer_states", "optimizer_states", TINY, {"zero_stage": 0, "optimizer_states": "bf16"}),
    ("optimizer_states", "framework", TINY, {"training": {"optimizer": "adam_8bit"}}),
    (
        "optimizer_states",
        "optimizer_states",
        TINY,
        {"optimizer_states": "remainders", "training": {"optimizer": "adam_pure_bf16"}},
    ),
    *(
        ("quantised_products", name, TINY, {name: True, **more})
        for name, more in (
            ("fp8_output_proj", {"precision": "fp8"}),
            ("fp8_dot_product_attention", {"precision": "fp8_block"}),
            (
                "fp8_dot_product_attention",
                {"precision": "fp8", "training": {"attention": "unfused"}},
            ),
        )
    ),
    *(
        (
            "stored_activations",
            "activation_func_fp8_input_store",
            *(model, {"activation_func_fp8_input_store": True, **more}),
        )
        for model, more in (
            (TINY, {}),
            (LLAMA, {"training": {"fusion": "eager"}}),
            (MOE, {"recompute": "selective", "recompute_modules": "moe_act"}),
        )
    ),
    *(
        ("fp8_param_gather", "fp8_param_gather", TINY, {"fp8_param_gather": True, **more})
        for more in (
            {"precision": "fp8", "zero_stage": 0},
            {
                "precision": "fp8_block",
                "optimizer_offload": 50,
                "training": {"host_optimizer": "pipelined"},
            },
        )
    ),
    ("host_optimizer", "optimizer_offload", TINY, {"optimizer_offload": 50}),
    *(
        ("host_optimizer", "optimizer_offload", TINY, {"optimizer_offload": 50, **more})
        for more in (
            {"training": {"host_optimizer": "pipelined"}, "zero_stage": 2},
            {"training": {"host_optimizer": "pipelined"}, "optimizer_states": "bf16"},
            {"training": {"host_optimizer": "pipelined", "optimizer": "sgd"}},
            {"training": {"host_optimizer": "serial"}, "zero_stage": 0},
            {"training": {"host_optimizer": "serial"}, "zero_stage": 1},
            {"training": {"host_optimizer": "serial"}, "zero_stage": 2},
        )
    ),
    *(
        ("offloaded_modules", "offload_modules", TINY, {"offload_modules": "core_attn", **more})
        for more in (
            {"offload_modules": "core_attn+core"},
            {"offload_modules": "attn_proj"},
            {"offload_modules": "mlp_norm", "cuda_graphs": True},
            {"recompute": "full"},
            {"offloaded_layers": 2},
        )
    ),
    ("offloading", "offloaded_layers", TINY, {"pp": 2, "offloaded_layers": 2}),
    ("offloading", "offloaded_layers", TINY, {"recompute": "full", "offloaded_layers": 2}),
    ("offloading", "offloaded_layers", TINY, {"offloaded_layers": 12}),
    (
        *("offloading", "offloaded_layers", TINY),
        {"recompute": "full", "offloaded_layers": 13, "training": {"offloads_inputs": True}},
    ),
    ("offloading", "offloaded_layers", TINY, {"offloaded_layers": 2, "cuda_graphs": True}),
    ("sharding_group", "dp_shard", TINY, {"zero_stage": 3, "dp_shard": 3}),
    ("sharding_group", "dp_shard", TINY, {"zero_stage": 0, "dp_shard": 2}),
    ("sharding_group", "dp_shard", MOE, {"zero_stage": 3, "ep": 4, "dp_shard": 2}),
    ("precision", "precision", TINY, {"precision": "mxfp8"}),
    ("precision", "precision", TINY, {"precision": "nvfp4"}),
    ("degrees_divide_world", "pp", TINY, {"pp": 3}),
    ("degrees_divide_world", "tp", TINY, {"tp": 3, "pp": 2}),
    ("degrees_divide_world", "cp", TINY, {"tp": 2, "cp": 3}),
    ("tensor_parallel_in_domain", "tp", replace(TINY, num_heads=16), UNALIGNED),
    ("tensor_parallel_divides_model", "tp", replace(TINY, num_heads=4), {"tp": 8}),
    ("tensor_parallel_divides_model", "tp", GROUPS_OF_3, {"tp": 8}),
    ("tensor_parallel_divides_model", "tp", replace(TINY, ffn_hidden_size=1020), {"tp": 8}),
    ("tensor_parallel_divides_model", "tp", NARROW, {"tp": 8}),
    ("tensor_parallel_divides_model", "tp", SHARED_60, {"tp": 8, "sp": True}),
    ("pipeline_splits_layers", "pp", TINY, {"pp": 8}),
    ("pipeline_splits_layers", "first_stage_layers", TINY, {"first_stage_layers": 2}),
    ("pipeline_splits_layers", "last_stage_layers", TINY, {"last_stage_layers": 2}),
    ("pipeline_splits_layers", "first_stage_layers", TINY, {"pp": 4, "first_stage_layers": 11}),
    ("pipeline_splits_layers", "last_stage_layers", TINY, {"pp": 4, "last_stage_layers": 2}),
    ("virtual_stages", "vpp", TINY, {"vpp": 2}),
    ("pipeline_splits_layers", "vpp", TINY, {"pp": 4, "vpp": 2}),
    ("sequence_parallel", "sp", TINY, {"sp": True}),
    ("sequence_parallel", "sp", TINY, {"tp": 8, "sp": True, "training": {"sequence_length": 60}}),
    ("sequence_parallel", "tp_comm_overlap", TINY, {"tp": 2, "tp_comm_overlap": True}),
    ("sequence_parallel", "sp", MOE, {"tp": 2}),
    ("sequence_parallel", "sp", MOE, {"tp": 2, "etp": 1}),
    ("context_parallel", "cp", TINY, {"cp": 8, "training": {"sequence_length": 56}}),
    ("context_parallel", "cp", TINY, {"cp": 2, "training": {"attention": "unfused"}}),
    ("context_parallel", "cp", DELTAS, {"cp": 2}),
    ("context_parallel", "cp", KIMIS, {"cp": 2, "training": _CUTS_DELTAS}),
    ("context_parallel", "cp", DELTAS, {"cp": 16, "nodes": 2, "training": _CUTS_DELTAS}),
    ("context_parallel", "cp_comm_type", LLAMA, {"cp": 4, "cp_comm_type": "a2a"}),
    ("context_parallel", "cp_comm_type", MLA_MOE, {"cp": 4, "cp_comm_type": "all_gather"}),
    ("experts", "ep", TINY, {"ep": 2}),
    ("experts", "etp", TINY, {"tp": 2, "etp": 1}),
    ("experts", "ep", MOE, {"ep": 3}),
    ("experts", "etp", replace(MOE, moe=Moe(8, 2, 124)), {"tp": 8, "sp": True}),
    ("experts", "ep", MOE, {"ep": 8, "pp": 2}),
    ("experts", PAIRED, TINY, {PAIRED: True}),
    ("experts", PAIRED, MOE, {PAIRED: True}),
    ("experts", PAIRED, MOE, {PAIRED: True, "ep": 2, "recompute": "full"}),
    ("experts", PAIRED, MOE, {PAIRED: True, "ep": 2, "pp": 2}),
    ("beside_the_hidden_state", "tp", SHARING, {"tp": 2}),
    ("beside_the_hidden_state", "tp", replace(LLAMA, inner_norms=True), {"tp": 2}),
    ("beside_the_hidden_state", "pp", SHARING, {"pp": 2}),
    ("beside_the_hidden_state", "pp", replace(SHARING, per_layer_input=None), {"pp": 2}),
    ("batch_divides", "micro_batch", TINY, {"micro_batch": 3}),
    ("interleaving_batch", "vpp", TINY, {"pp": 2, "vpp": 2, "batch": 12}),
    *(
        ("interleaving_batch", "schedule", TINY, {**_TWO_CHUNKS, "schedule": name, "batch": 8})
        for name in ("dualpipe", "dualpipe-v")
    ),
    ("schedule", "schedule", TINY, {"pp": 2, "schedule": "zb-h1", "training": _COMPILED}),
    ("schedule", "schedule", TINY, {"pp": 2, "schedule": "zb-h1", "training": _PLAIN}),
    ("schedule", "vpp", TINY, {"pp": 2, "schedule": "zb-v"}),
    ("schedule", "vpp", TINY, {"pp": 2, "vpp": 2, "schedule": "zb-h2"}),
    ("schedule", "pp", TINY, {"pp": 3, "vpp": 2, "nodes": 3, "schedule": "dualpipe"}),
    ("schedule", "last_stage_layers", TINY, _UNEVEN_V),
    ("recompute", "recompute_taper", TINY, {"recompute_taper": 1, "pp": 2}),
    ("recompute", "recompute_taper", TINY, {"recompute_taper": 1, "recompute": "full"}),
    ("recompute", "recompute_layers", TINY, {"recompute_layers": 2}),
    ("recompute", "recompute_layers", TINY, {"recompute": "full", "recompute_layers": 13}),
    ("sharding", "zero_stage", TINY, {"pp": 2, "zero_stage": 2}),
    ("sharding", "overlap_param_gather", TINY, {"zero_stage": 0, "overlap_param_gather": True}),
    ("sharding", "overlap_param_gather", TINY, {"zero_stage": 1, "overlap_param_gather": True}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "field", "model", "arguments"), BROKEN)
def test_each_rule_fires_for_its_case_alone(
    rule: str, field: str, model: Model, arguments: dict[str, Any]
) -> None:
    domain = arguments.get("domain")
    job = make_job(model, **{key: value for key, value in arguments.items() if key != "domain"})
    if domain is not None:
        job = replace(job, cluster=replace(job.cluster, nvlink_domain=domain))
    violation = why_invalid(job)
    assert violation is not None
    assert (violation.rule, violation.field) == (rule, field)
    with pytest.raises(InputError) as caught:
        check_job(job)
    value = getattr(job.recipe, field)
    shown = f"recipe.{field}={value}"
    if (field, value) == ("framework", None):
        shown = f"framework={job.framework.name}"  # as it was given
    assert str(caught.value).startswith(f"{shown}: {violation.reason}")
    # What is offered instead would do; where nothing would, the words say so.
    offered = caught.value.allowed.removeprefix("here ")
    if offered != caught.value.allowed:
        for text in offered.removesuffix(", ...").split(", "):
            other = {"null": None, "True": True, "False": False}.get(text, text)
            other = int(text) if text.isdecimal() else other
            held = replace(job, recipe=replace(job.recipe, **{field: other}))
            assert why_invalid(held) is None


def test_a_precision_from_the_training_is_refused_there() -> None:
    job = make_job(TINY)
    with pytest.raises(InputError) as caught:
        check_job(replace(job, training=replace(job.training, precision="fp32")))
    assert (caught.value.field, caught.value.value) == ("training.precision", "fp32")
    assert "only bf16" in caught.value.problem


@pytest.mark.parametrize("name", [name for name, knob in KNOBS.items() if knob.is_limited])
def test_a_knob_is_one_of_its_values(name: str) -> None:
    knob = KNOBS[name]
    violation = why_invalid(make_job(TINY, **{name: impossible_value(knob)}))
    assert violation is not None
    assert (violation.rule, violation.field) == (f"{name}_value", name)
    assert knob.allowed in violation.reason


def test_every_rule_has_a_case() -> None:
    limits = {f"{name}_value" for name in KNOBS}
    assert {rule for rule, *_ in BROKEN} - limits == set(RULES) - limits


VALID: list[tuple[Model, dict[str, Any]]] = [
    (TINY, {}),
    (TINY, {"tp": 8, "sp": True, "tp_comm_overlap": True}),
    (TINY, {"tp": 2, "pp": 2, "vpp": 3, "recompute": "full", "recompute_layers": 2}),
    (TINY, {"pp": 4, "first_stage_layers": 2, "last_stage_layers": 2}),
    (TINY, {"pp": 2, "first_stage_layers": 4, "last_stage_layers": 8}),
    (TINY, {"pp": 4, "schedule": "gpipe", "zero_stage": 0}),
    (TINY, {"pp": 2, "vpp": 2, "schedule": "gpipe"}),
    (TINY, {"cp": 4, "zero_stage": 3}),
    (TINY, {"tp": 2, "cp": 4, "cp_comm_type": "a2a"}),
    (MLA_MOE, {"cp": 4, "cp_comm_type": "a2a"}),
    (DELTAS, {"tp": 2, "cp": 4, "training": _CUTS_DELTAS}),
    (TINY, {"zero_stage": 1, "overlap_grad_reduce": True, "overlap_param_gather": True}),
    (TINY, {"zero_stage": 2, "overlap_param_gather": True}),
    (LLAMA, {"tp": 8}),
    (MOE, {"tp": 4, "ep": 8, "etp": 1, "sp": True}),
    (MOE, {"ep": 8}),
    (MOE, {"ep": 4, "etp": 2}),
    (MOE, {"ep": 8, PAIRED: True}),
    (MOE, {"ep": 2, "pp": 2, "vpp": 2, PAIRED: True}),
    (MOE, {"tp": 2, "sp": True}),
    (MLA_MOE, {"nodes": 2, "tp": 2, "ep": 4, "sp": True, "pp": 2}),
    (TINY, {"nodes": 4, "tp": 8, "pp": 4, "precision": "fp8"}),
]


@pytest.mark.parametrize(("model", "arguments"), VALID)
def test_valid_recipes_pass(model: Model, arguments: dict[str, Any]) -> None:
    job = make_job(model, **arguments)
    assert why_invalid(job) is None
    check_job(job)


@given(
    model=st.sampled_from(MODELS),
    nodes=st.sampled_from([1, 2, 3, 4, 6]),
    tp=st.sampled_from([1, 2, 3, 4, 8]),
    pp=st.sampled_from([1, 2, 3, 4, 6]),
    cp=st.sampled_from([1, 2]),
    ep=st.sampled_from([1, 2, 4, 8]),
    etp=st.sampled_from([None, 1, 2]),
    vpp=st.sampled_from([1, 2, 3]),
    micro_batch=st.sampled_from([1, 2, 3]),
    sp=st.booleans(),
)
def test_what_passes_has_an_integral_layout(
    model: Model, nodes: int, micro_batch: int, **recipe: Any
) -> None:
    job = make_job(model, nodes=nodes, batch=96, micro_batch=micro_batch, **recipe)
    if why_invalid(job) is not None:
        return
    r = job.recipe
    assert job.dp * r.tp * r.pp * r.cp == job.world_size
    assert job.dp * r.micro_batch * job.num_micro_batches == job.training.global_batch_size
    assert job.num_micro_batches >= 1
    assert sum(job.layers_per_stage) == model.num_layers
    assert all(layers % r.vpp == 0 for layers in job.layers_per_stage)
    assert model.num_heads % r.tp == 0
    assert job.sequence_length % (r.cp * (r.tp if r.sp else 1)) == 0
    if model.moe is not None:
        assert job.expert_dp * job.etp * r.ep * r.pp == job.world_size
        assert model.moe.num_experts % r.ep == 0
        assert model.moe.ffn_hidden_size % job.etp == 0


def test_a_wrong_declaration_is_met_before_the_recipe() -> None:
    job = make_job(replace(TINY, num_layers=0), tp=0)
    with pytest.raises(InputError, match=r"^model\.num_layers"):
        check_job(job)
