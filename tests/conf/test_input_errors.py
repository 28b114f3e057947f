"""Errors that Hydra 1.3 really raises, each turned into one sentence."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from tests.conf.conftest import Compose
from trainscout.conf.catalogue import load_catalogue
from trainscout.conf.input_errors import explain_hydra_error
from trainscout.simulators.predictor.io.values import unknown_name
from trainscout.simulators.predictor.question.errors import InputError


def explained(composed: Compose, *overrides: str) -> InputError:
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- whatever Hydra raises is the point
        composed(*overrides)
    error = explain_hydra_error(caught.value)
    assert error is not None
    assert "\n" not in str(error)
    return error


@pytest.mark.parametrize(
    ("override", "field", "value", "nearest"),
    [
        ("model=gpt175", "model", "gpt175", "gpt175b"),
        ("cluster=h800", "cluster", "h800", "h800_96"),
        ("gpu=h101", "gpu", "h101", "h100"),
        ("model.hiden_size=3", "model.hiden_size", "3", "hidden_size"),
        ("recipe.tpp=8", "recipe.tpp", "8", "tp"),
        ("sead=3", "sead", "3", "seed"),
        ("modle=gpt175b", "modle", "gpt175b", "model"),
        ("gpu.peak_flops.bf17=1e12", "gpu.peak_flops.bf17", "1e12", "bf16"),
        ("training.global_batch=8", "training.global_batch", "8", "global_batch_size"),
    ],
)
def test_unknown_names(
    composed: Compose, override: str, field: str, value: str, nearest: str
) -> None:
    error = explained(composed, override)
    assert (error.field, error.value, error.nearest) == (field, value, nearest)
    assert nearest in str(error.allowed).split(", ")


def test_a_group_that_is_null_is_filled_by_the_choice_of_its_name(composed: Compose) -> None:
    error = explained(composed, "training.lora.rank=16")
    assert str(error.allowed).startswith("training=lora or training=dpo_lora or")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("h200_64", "64xh200"), ("h100_8", "8xh100"), ("a100_8", "8xa100_80"), ("h200", "8xh200")],
)
def test_a_cluster_called_as_others_are_is_its_gpus_by_their_number(
    composed: Compose, name: str, meant: str
) -> None:
    """And not those of another GPU, whose cluster has the nearest name."""
    assert explained(composed, f"cluster={name}").nearest == meant


def test_the_message_reads_as_one_sentence(composed: Compose) -> None:
    text = str(explained(composed, "model=gpt175"))
    assert text.startswith(
        "model=gpt175: is not a known choice; did you mean 'gpt175b'? (allowed: gpt13b, gpt175b, "
    )
    # Of many names the nearest.
    assert re.search(r"and \d\d more\)$", text)


@pytest.mark.parametrize("name", ["BERT", "bert-large", "claude", "resnet50"])
def test_a_model_unlike_all_that_ship_is_told_what_can_be_asked(
    composed: Compose, name: str
) -> None:
    error = explained(composed, f"model={name}")
    assert error.nearest is None
    for word in ("gpt", "llama", "config.json", "trainscout live"):
        assert word in str(error)
    with pytest.raises(InputError, match=r"families that do: clip, deepseek, .*trainscout live"):
        load_catalogue().models.chosen("model", name)


def test_hydra_itself_is_not_offered(composed: Compose) -> None:
    assert (
        explained(composed, "sead=3").allowed
        == "cluster, framework, gpu, model, recipe, seed, training"
    )


def test_unknown_field_of_a_nested_group(composed: Compose) -> None:
    error = explained(composed, "model=mixtral_8x7b", "model.moe.topk=3")
    assert (error.field, error.nearest) == ("model.moe.topk", "top_k")


@pytest.mark.parametrize("value", ["[9,8,8,7]", "9,8,8,7"])
def test_layers_of_stages_are_asked_for_in_their_form(composed: Compose, value: str) -> None:
    error = explained(composed, f"recipe.pipeline_layout={value}")
    assert error.field == "recipe.pipeline_layout"
    assert "'Et*9|(t*8|)*2t*7L'" in str(error)


@pytest.mark.parametrize(
    ("override", "field", "value", "allowed"),
    [
        ("cluster.num_nodes=many", "cluster.num_nodes", "many", "a whole number"),
        ("cluster.num_nodes=1.5", "cluster.num_nodes", "1.5", "a whole number"),
        ("model.num_layers=nan", "model.num_layers", "nan", "a whole number"),
        ("recipe.tp=null", "recipe.tp", "null", "a whole number"),
        ("recipe.etp=x", "recipe.etp", "x", "a whole number, or null"),
        ("recipe.sp=maybe", "recipe.sp", "maybe", "true or false"),
        ("gpu.peak_flops.bf16=fast", "gpu.peak_flops.bf16", "fast", "a number"),
    ],
)
def test_wrong_types(
    composed: Compose, override: str, field: str, value: str, allowed: str
) -> None:
    error = explained(composed, override)
    assert (error.field, error.value, error.allowed) == (field, value, allowed)


def test_a_degree_that_follows_from_the_others(composed: Compose) -> None:
    assert unknown_name("a.dp", "3", ()).problem == "follows from the other degrees"
    error = explained(composed, "recipe.dp=3")
    assert (error.field, error.value, error.nearest) == ("recipe.dp", "3", None)
    assert error.allowed == "GPUs / (tp x pp x cp)"


@pytest.mark.parametrize("override", ["model.moe.top_k=3", "model.moe={top_k:2,num_experts:8}"])
def test_a_group_that_is_null(composed: Compose, override: str) -> None:
    error = explained(composed, override)
    assert error.field == override.partition("=")[0]
    assert "null" in error.problem


@pytest.mark.parametrize(
    ("override", "field", "value"),
    [
        ("recipe.tp=[1,2", "recipe.tp", "[1,2"),
        ("resume", "command line", "resume"),
        ("recipe.tp=1,2", "recipe.tp", "1,2"),
        ("model=gpt13b,gpt30b", "model", "gpt13b,gpt30b"),
        ("~nothing", "nothing", ""),
        ("~model.name", "model.name", ""),
        ("+model=gpt13b", "configuration", "?"),
        ("space=moye", "command line", "space"),
    ],
)
def test_overrides_that_cannot_be_applied(
    composed: Compose, override: str, field: str, value: str
) -> None:
    error = explained(composed, override)
    assert (error.field, error.value) == (field, value)
    assert error.problem


def test_mistakes_in_a_declaration_file(composed: Compose, extra: Path) -> None:
    (extra / "cluster").mkdir()
    path = extra / "cluster" / "mine.yaml"
    path.write_text("name: mine\nnodes: 4\n")
    error = explained(composed, "cluster=mine")
    assert (error.field, error.nearest) == ("cluster.nodes", "num_nodes")
    path.write_text("name: mine\nnum_nodes: four\n")
    error = explained(composed, "cluster=mine")
    assert (error.field, error.value) == ("cluster.num_nodes", "four")


def test_a_user_file_takes_part(composed: Compose, extra: Path) -> None:
    (extra / "cluster").mkdir()
    (extra / "cluster" / "mine.yaml").write_text(
        "name: mine\nnum_nodes: 4\ngpus_per_node: 8\nnics_per_node: 8\nnic_gbps: 400\n"
        "fabric: roce\nsource: ours\n"
    )
    assert composed("cluster=mine").cluster.num_nodes == 4
    assert explained(composed, "cluster=mien").nearest == "mine"


def test_other_errors_are_not_explained() -> None:
    assert explain_hydra_error(ZeroDivisionError("a bug")) is None


def test_an_input_error_is_its_own_explanation() -> None:
    error = InputError("model.num_layers", 0, "is out of range")
    assert explain_hydra_error(error) is error


def test_the_nearest_name_survives_another_process(composed: Compose) -> None:
    error = explained(composed, "recipe.tpp=8")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.nearest, copy.allowed) == (str(error), "tp", error.allowed)
