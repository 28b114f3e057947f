"""Which layers jobs need, what they share, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulators.jobs import LLAMA, MLA_MOE, MOE, TINY, make_job
from tests.simulators.virtual_cluster.traced.layer_cases import HYBRID
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layers import Mamba2, Mixer
from trainscout.simulators.virtual_cluster.traced.layer_spec import (
    HEAD,
    LAYER,
    MOE_LAYER,
    check_traceable,
    layer_specs_of,
)

LONGER = Mixer(mamba2=Mamba2(heads=128, head_dim=64, state=128, groups=8, chunk=256))


def kinds(job: Job) -> list[str]:
    return [spec.kind for spec in layer_specs_of(job)]


def test_a_dense_model_is_three_specs() -> None:
    assert kinds(make_job(TINY)) == ["embedding", "layer", "head"]


def test_dense_and_expert_layers_are_specs_of_their_own() -> None:
    assert kinds(make_job(MLA_MOE, ep=2)) == ["embedding", "layer", "moe_layer", "head"]


def test_halves_of_layers_are_specs_of_their_own() -> None:
    found = layer_specs_of(make_job(HYBRID, ep=2))
    assert [(spec.kind, spec.model.layers) for spec in found[1:-1]] == [
        ("mamba_layer", "mamba/none"),
        ("none_layer", "none/dense"),
        ("layer", "attention/none"),
        ("none_moe_layer", "none/moe"),
    ]


def test_modules_of_experts_are_no_business_of_other_layers() -> None:
    modules = {"recompute": "selective", "recompute_modules": "layernorm+moe_act"}
    found = layer_specs_of(make_job(HYBRID, ep=2, **modules))
    assert [spec.modules for spec in found[1:-1]] == ["layernorm"] * 3 + ["layernorm+moe_act"]
    only = layer_specs_of(make_job(HYBRID, ep=2, recompute="selective", recompute_modules="moe"))
    assert [spec.recompute for spec in only[1:-1]] == ["none"] * 3 + ["selective"]


@pytest.mark.parametrize("name", ["fused_router", "fused_rope"])
def test_what_a_framework_fuses_is_in_the_spec(name: str) -> None:
    for fused in (True, False):
        found = layer_specs_of(make_job(LLAMA, training={name: fused}))
        assert [getattr(spec, name) for spec in found] == [fused] * len(found)


def test_layers_that_a_chunk_leaves_plain_are_traced_too() -> None:
    job = make_job(TINY, pp=2, recompute="full", recompute_layers=2)
    assert [(p.kind, p.recompute) for p in layer_specs_of(job)] == [
        ("embedding", "none"),
        (LAYER, "full"),
        (LAYER, "none"),
        (HEAD, "none"),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"pp": 2},
        {"pp": 2, "vpp": 2},
        {"zero_stage": 0},
        {"overlap_grad_reduce": True},
        {"tp_comm_overlap": True},
    ],
)
def test_what_no_layer_sees_does_not_make_new_specs(change: dict[str, Any]) -> None:
    assert layer_specs_of(make_job(tp=2, sp=True, **change)) == layer_specs_of(
        make_job(tp=2, sp=True)
    )


@pytest.mark.parametrize(
    "change",
    [{"tp": 4}, {"cp": 2}, {"sp": False}, {"micro_batch": 2}, {"recompute": "full"}],
)
def test_what_a_layer_sees_makes_new_specs(change: dict[str, Any]) -> None:
    before = {spec for spec in layer_specs_of(make_job(tp=2, sp=True)) if spec.kind == LAYER}
    after = layer_specs_of(make_job(**{"tp": 2, "sp": True, **change}))
    assert before.isdisjoint(after)


def test_the_number_of_layers_and_the_name_do_not_matter() -> None:
    renamed = replace(TINY, name="other", source="elsewhere", num_layers=24)
    assert layer_specs_of(make_job(renamed)) == layer_specs_of(make_job(TINY))


def test_ends_do_not_depend_on_experts() -> None:
    one, other = (layer_specs_of(make_job(MOE, ep=ep)) for ep in (2, 4))
    assert (one[0], one[-1]) == (other[0], other[-1])
    assert one[1] != other[1]
    assert one[1].kind == MOE_LAYER


def test_a_recipes_dispatcher_is_its_layers() -> None:
    one, other = (layer_specs_of(make_job(MOE, ep=2, moe_dispatcher=d)) for d in (None, "deepep"))
    assert (one[0], one[-1]) == (other[0], other[-1])
    assert one[1] != other[1]
    # A rank that has all experts exchanges nothing.
    assert layer_specs_of(make_job(MOE, moe_dispatcher="deepep")) == layer_specs_of(make_job(MOE))


def test_groups_fit_in_the_fewest_ranks() -> None:
    spec = next(p for p in layer_specs_of(make_job(MOE, ep=8, etp=1)) if p.kind == MOE_LAYER)
    assert spec.world_size == 8
    spec = layer_specs_of(make_job(TINY, tp=2, cp=2))[1]
    assert spec.world_size == 4


@pytest.mark.parametrize(
    ("field", "model", "given"),
    [
        ("framework.fusion", TINY, {"training": {"fusion": "eager"}}),
        ("framework.cross_entropy", TINY, {"training": {"cross_entropy": "eager"}}),
        ("framework.masked_attention", TINY, {"training": {"masked_attention": True}}),
        (
            "framework.fused_experts",
            MOE,
            {"ep": 2, "training": {"precision": "mxfp8", "fused_experts": True}},
        ),
        ("recipe.zero_stage", TINY, {"zero_stage": 3}),
        ("recipe.recompute_modules", TINY, {"recompute": "selective", "recompute_modules": "qkv"}),
        (
            "recipe.overlap_moe_expert_parallel_comm",
            MOE,
            {"ep": 2, "overlap_moe_expert_parallel_comm": True},
        ),
        ("recipe.offloaded_layers", TINY, {"offloaded_layers": 2}),
        ("recipe.offload_modules", TINY, {"offload_modules": "core_attn"}),
        ("model.qkv_bias", replace(TINY, qkv_bias=False), {}),
        ("model.num_mtp_layers", replace(LLAMA, num_mtp_layers=1), {}),
        ("training.precision", TINY, {"training": {"precision": "tf32"}}),
        ("recipe.etp", MOE, {"tp": 2, "ep": 2, "etp": 2, "moe_dispatcher": "deepep"}),
        ("model.layers", replace(HYBRID, kinds={"mamba": LONGER}), {"ep": 2}),
        ("recipe.recompute", HYBRID, {"ep": 2, "recompute": "full"}),
    ],
)
def test_what_is_not_megatrons_is_refused_by_name(
    field: str, model: Any, given: dict[str, Any]
) -> None:
    with pytest.raises(InputError) as refused:
        check_traceable(make_job(model, **given))
    assert refused.value.field == field


def test_uneven_experts_are_refused() -> None:
    assert MOE.moe is not None
    uneven = replace(MOE, moe=replace(MOE.moe, load_imbalance=1.5))
    with pytest.raises(InputError, match=r"evenly loaded"):
        check_traceable(make_job(uneven))
