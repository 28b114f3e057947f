"""What a ``config.json`` says that no model here can be, refused by its field."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conf.released import RELEASED, config_of, imported
from trainscout.conf.catalogue import load_catalogue
from trainscout.conf.config_json import model_fields, read_config
from trainscout.simulators.predictor.question.errors import InputError


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("openai/gpt-oss-20b", {"model_type": "longt5"}, "model_type"),
        ("openai/gpt-oss-20b", {"model_type": None}, "model_type"),
        ("openai/gpt-oss-20b", {"hidden_size": None}, "hidden_size"),
        ("openai/gpt-oss-20b", {"hidden_size": "wide"}, "hidden_size"),
        ("openai/gpt-oss-20b", {"num_hidden_layers": 25}, "layer_types"),
        ("openai/gpt-oss-20b", {"layer_types": ["full"] * 24}, "layer_types"),
        ("openai/gpt-oss-20b", {"sliding_window": None}, "layer_types"),
        ("deepseek-ai/DeepSeek-V3.1", {"mlp_layer_types": ["moe"] * 61}, "mlp_layer_types"),
        (
            "nvidia/Nemotron-H-8B-Base-8K",
            {"hybrid_override_pattern": "M-X"},
            "hybrid_override_pattern",
        ),
        ("tiiuae/Falcon-H1-7B-Base", {"projectors_bias": True}, "projectors_bias"),
        ("inclusionAI/Ling-3.0-tiny", {"num_shared_experts": 2}, "n_shared_experts"),
        ("moonshotai/Kimi-Linear-48B-A3B-Base", {"linear_attn_config": {}}, "layer_types"),
    ],
)
def test_what_cannot_be_said_is_refused_by_its_field(
    name: str, changes: dict[str, object], field: str
) -> None:
    with pytest.raises(InputError) as caught:
        imported(config_of(name, **changes))
    assert caught.value.field == f"config.json: {field}"


def test_a_number_in_quotes_is_shown_as_it_stands() -> None:
    with pytest.raises(InputError, match='num_hidden_layers="12": is no whole number'):
        model_fields({"model_type": "gpt_neo", "num_layers": "12"}, "read")


@pytest.mark.parametrize(
    ("kind", "changes", "field"),
    [
        ("opt", {"word_embed_proj_dim": 512}, "word_embed_proj_dim"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before"),
        ("mpt", {"expansion_ratio": 2}, "expansion_ratio"),
        ("solar_open", {"first_k_dense_replace": 1}, "first_k_dense_replace"),
        ("gpt_neo", {"attention_types": [[["global", "local"], 11]]}, "attention_types"),
        ("gpt_neo", {"attention_types": [[["global", "else"], 12]]}, "layer_types"),
    ],
)
def test_what_a_family_fixes_is_refused_otherwise(kind, changes, field) -> None:
    with pytest.raises(InputError) as refused:
        model_fields({"model_type": kind, **changes}, "read")
    assert refused.value.field == f"config.json: {field}"


def test_diffusion_transformers_are_refused_in_words() -> None:
    given = {"_class_name": "WanTransformer3DModel", "num_layers": 40, "num_attention_heads": 40}
    with pytest.raises(InputError, match=r"those that ship .*flux1_dev"):
        model_fields(given, "wan")


def test_other_models_of_images_are_refused_with_what_would_do() -> None:
    given = {"model_type": "blip", "text_config": {"model_type": "bert"}, "vision_config": {}}
    with pytest.raises(InputError, match="text_config in a file of its own"):
        model_fields(given, "llama")
    given = {"model_type": "llava", "text_config": {}, "vision_config": {"model_type": "eva"}}
    with pytest.raises(InputError, match=r"vision_config\.model_type"):
        model_fields(given, "llava")


@given(
    st.sampled_from(sorted(RELEASED)),
    st.sampled_from(["num_hidden_layers", "hidden_size", "layer_types", "num_attention_heads"]),
    st.one_of(st.none(), st.integers(-3, 10**9), st.text(), st.lists(st.text()), st.booleans()),
)
def test_damaged_configurations_are_models_or_refusals(name: str, field: str, value: Any) -> None:
    with contextlib.suppress(InputError):
        imported(config_of(name, **{field: value}))


def test_files_that_are_no_configuration_are_refused(tmp_path: Path) -> None:
    for name, text in {"a.json": "{", "b.json": "[]", "c.json": "[" * 10_000}.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError):
            load_catalogue().models.chosen("model", str(tmp_path / name))
    with pytest.raises(InputError, match=r"did you mean .meta-llama/Llama-3\.1-8B"):
        load_catalogue().models.chosen("model", "meta-llama/Llama-3.1-9B")


def test_a_file_that_is_none_is_refused_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for content, problem in ((b"{" * 2_000_000, "is too large"), (b"\xff{}", "cannot be read")):
        file.write_bytes(content)
        with pytest.raises(InputError, match=problem) as refused:
            read_config(file)
        assert str(refused.value).count("model=") == 1
