"""Frozen values from plain mappings, and what is refused on the way."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tests.conf.conftest import Compose
from tests.samples import prediction
from trainscout.conf.build import build_question, build_recipe, build_value
from trainscout.optimizer.asked import AskedSearch
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import SearchOptions
from trainscout.reports.evidence import Grade, evidence_of
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.layers import Mla
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training

MODEL: dict[str, Any] = {
    "name": "tiny",
    "num_layers": 4,
    "hidden_size": 64,
    "num_heads": 4,
    "ffn_hidden_size": 256,
    "vocab_size": 1000,
    "sequence_length": 128,
    "source": "test",
}


def refusal(given_: dict[str, Any], cls: type = Model, field: str = "model") -> InputError:
    with pytest.raises(InputError) as caught:
        build_value(cls, field, given_)
    return caught.value


def test_nested_values_become_frozen_dataclasses() -> None:
    moe = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 64}
    mla = {"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    built = build_value(Model, "model", MODEL | {"moe": moe, "mla": mla})
    assert built == Model(**MODEL, moe=Moe(**moe), mla=Mla(**mla))


@given(
    recipe=st.builds(
        Recipe,
        tp=st.integers(1, 64),
        etp=st.none() | st.integers(1, 8),
        sp=st.booleans(),
        recompute=st.sampled_from(["none", "selective", "full"]),
        precision=st.none() | st.just("fp8"),
    )
)
def test_recipe_round_trip(recipe: Recipe) -> None:
    assert build_recipe(dataclasses.asdict(recipe)) == recipe


def test_recipe_left_out_fields_keep_their_default() -> None:
    assert build_recipe({}) == Recipe()


def test_whole_configuration(composed: Compose) -> None:
    cfg = composed("recipe.tp=8", "recipe.pp=12", "training.tokens=1e12")
    parts = build_question(cfg)
    assert (parts.model.name, parts.gpu.name, parts.cluster.name) == (
        "gpt175b",
        "h800",
        "h800_96",
    )
    assert parts.training == Training(global_batch_size=1536, tokens=1e12)
    assert build_recipe(cfg.recipe) == Recipe(tp=8, pp=12)
    plain = OmegaConf.to_container(cfg)
    assert isinstance(plain, dict)
    assert build_question({str(key): value for key, value in plain.items()}) == parts


def test_unknown_field_names_the_nearest() -> None:
    error = refusal(MODEL | {"hiden_size": 3})
    assert (error.field, error.value, error.nearest) == ("model.hiden_size", 3, "hidden_size")
    nested = MODEL | {"moe": {"num_experts": 8, "topk": 2, "ffn_hidden_size": 64}}
    error = refusal(nested)
    assert (error.field, error.value, error.nearest) == ("model.moe.topk", 2, "top_k")


def test_wrong_type_says_what_is_allowed() -> None:
    error = refusal(MODEL | {"num_layers": "many"})
    assert (error.field, error.value, error.allowed) == (
        "model.num_layers",
        "many",
        "a whole number",
    )
    error = refusal(MODEL | {"num_query_groups": 1.5})
    assert error.allowed == "a whole number, or null"
    error = refusal(MODEL | {"gated_mlp": "perhaps"})
    assert error.allowed == "true or false"
    error = refusal(MODEL | {"moe": 3})
    assert error.field == "model.moe"
    assert "num_experts" in str(error.allowed)


def test_missing_field_is_named() -> None:
    incomplete = {key: value for key, value in MODEL.items() if key != "num_heads"}
    assert refusal(incomplete).field == "model.num_heads"
    assert refusal(MODEL | {"num_heads": "???"}).problem == "is missing"
    with pytest.raises(InputError, match="cluster=") as caught:
        build_question({"model": MODEL, "gpu": _gpu(), "training": {}})
    assert caught.value.field == "cluster"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "nan", -1.0, 0])
def test_numbers_that_are_not_figures_are_refused(value: object) -> None:
    with pytest.raises(InputError) as caught:
        build_value(Training, "training", {"global_batch_size": 8, "tokens": value}).check()
    assert caught.value.field == "training.tokens"


def test_nan_is_found_where_check_does_not_look() -> None:
    error = refusal(_gpu() | {"compute_capability": float("nan")}, Gpu, "gpu")
    assert error.field == "gpu.compute_capability"
    error = refusal(_gpu() | {"peak_flops": {"bf16": float("nan")}}, Gpu, "gpu")
    assert error.field == "gpu.peak_flops.bf16"


def test_something_else_than_a_group_is_refused() -> None:
    with pytest.raises(InputError, match="recipe=8") as caught:
        build_recipe(8)  # type: ignore[arg-type]
    assert "tp" in str(caught.value.allowed)


def test_impossible_declarations_are_refused(composed: Compose) -> None:
    for override, field in (
        ("model.num_layers=0", "model.num_layers"),
        ("cluster.num_nodes=-1", "cluster.num_nodes"),
        ("model.num_heads=7", "model.num_heads"),
        ("training.precision=bf15", "training.precision"),
        ("cluster.memory_reserve=1", "cluster.memory_reserve"),
        ("gpu.sms=0", "gpu.sms"),
    ):
        with pytest.raises(InputError) as caught:
            build_question(composed(override))
        assert caught.value.field == field


def test_keys_forced_in_with_plus_are_refused(composed: Compose) -> None:
    with pytest.raises(InputError) as caught:
        build_question(composed("+model.hiden_size=3"))
    assert (caught.value.field, caught.value.nearest) == ("model.hiden_size", "hidden_size")


def test_broken_interpolation_names_the_field(composed: Compose) -> None:
    with pytest.raises(InputError, match="nowhere") as caught:
        build_question(composed("model.num_layers=${nowhere}"))
    assert caught.value.field == "model.num_layers"
    with pytest.raises(InputError) as caught:
        build_recipe(OmegaConf.create({"tp": "${nowhere}"}))
    assert (caught.value.field, caught.value.value) == ("recipe.tp", "${nowhere}")


def test_interpolation_is_resolved(composed: Compose) -> None:
    cfg = composed("model.num_query_groups=${model.num_heads}")
    assert build_question(cfg).model.num_query_groups == 96


def _gpu() -> dict[str, Any]:
    return {
        "name": "test",
        "architecture": "hopper",
        "compute_capability": 9.0,
        "sms": 4,
        "peak_flops": {"bf16": 1e12},
        "memory_bytes": 1,
        "memory_bandwidth_bytes_per_s": 1.0,
        "l2_bytes": 1,
        "nvlink_links": 1,
        "nvlink_bytes_per_s": 1.0,
        "pcie_bytes_per_s": 1.0,
        "price_usd_per_hour": 1.0,
    }


@pytest.mark.parametrize(
    ("override", "own"),
    [
        ("gpu.price_usd_per_hour={price}", True),
        ("++gpu.price_usd_per_hour={price}", True),
        ("gpu.price_usd_per_hour={price}0", True),
        ("gpu=h100", False),
        ("gpu.sms=100", False),
    ],
)
def test_a_price_on_the_command_line_is_given_even_where_it_is_the_declared_one(
    composed: Compose, override: str, own: bool
) -> None:
    config = composed("cluster=h100_64")
    told = override.format(price=config.gpu.price_usd_per_hour)
    hydra = OmegaConf.create({"overrides": {"task": ["cluster=h100_64", told]}})
    question = build_question({**config, "hydra": hydra})
    evidence = evidence_of(prediction(), question.job(Recipe()))
    assert (evidence.price.grade is Grade.GIVEN) is own
    # The question of a search is the same.
    plain = dataclasses.replace(
        question, gpu=dataclasses.replace(question.gpu, sources={"sms": "elsewhere"})
    )
    first, second = (
        AskedSearch(each, {}, Objective(("cost",)), SearchOptions()).identity()
        for each in (question, plain)
    )
    assert first == second
