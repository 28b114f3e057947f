"""Configurations of released models: as many parameters as Transformers counts."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trainscout as ts
from tests.conf.released import RELEASED, TYPES, config_of, imported
from tests.in_process import command
from trainscout.commands.listing import parameters
from trainscout.conf.catalogue import load_catalogue
from trainscout.conf.config_json import model_fields
from trainscout.conf.encoders import SOUNDS, TOWERS, WITH_IMAGES
from trainscout.conf.families import families, transformers_defaults
from trainscout.conf.sampled_sound import SAMPLED
from trainscout.simulators.predictor.question.errors import InputError


@pytest.mark.parametrize("name", RELEASED)
def test_parameters_are_those_that_transformers_builds(name: str) -> None:
    counted = parameters(replace(imported(config_of(name)), vocab_multiple=1))
    assert counted == pytest.approx(RELEASED[name]["parameters"], rel=1e-4)


def test_every_type_of_transformers_is_counted_as_it_is_built_or_refused() -> None:
    equal = set()
    for kind, row in TYPES.items():
        with contextlib.suppress(InputError):
            counted = parameters(replace(imported(row["config"]), vocab_multiple=1))
            assert counted == pytest.approx(row["parameters"], rel=1e-4), kind
            equal.add(kind)
    assert equal >= {"qwen3_5_moe", "ernie4_5_moe", "olmoe", "phimoe", "kimi_k25", "internvl"}
    assert len(equal) >= 183


GEMMA4 = {
    "model_type": "gemma4_text",
    "hidden_size_per_layer_input": 0,
    "head_dim": 256,
    "global_head_dim": 512,
    "attention_k_eq_v": True,
    "sliding_window": 1024,
}


# Its last twenty layers reuse keys and values, and have MLPs of twice the width.
GEMMA4_E2B = {
    "model_type": "gemma4_text",
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 35,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
    "layer_types": 7 * [*4 * ["sliding_attention"], "full_attention"],
}


def test_a_share_of_heads_is_turned_where_a_file_says_so() -> None:
    stated = config_of("zai-org/GLM-4.5", partial_rotary_factor=0.5)
    table = {"rope_parameters": {"partial_rotary_factor": 0.25}}
    nested = {name: value for name, value in stated.items() if "rotary" not in name} | table

    assert imported(stated).rotary_fraction == 0.5
    assert imported(nested).rotary_fraction == 0.25
    assert imported(config_of("Qwen/Qwen3-8B")).rotary_fraction == 1


@pytest.mark.parametrize(
    ("config", "counted"),
    [
        (
            GEMMA4
            | {"hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60}
            | {"num_attention_heads": 32, "num_key_value_heads": 16}
            | {"num_global_key_value_heads": 4},
            30_697_345_280,
        ),
        (
            GEMMA4
            | {"hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30}
            | {"num_attention_heads": 16, "num_key_value_heads": 8}
            | {"num_global_key_value_heads": 2, "enable_moe_block": True}
            | {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
            25_233_141_760,
        ),
        (GEMMA4_E2B, 4_628_569_344),
        (
            GEMMA4_E2B
            | {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 42}
            | {"num_key_value_heads": 2, "num_kv_shared_layers": 18, "use_double_wide_mlp": False}
            | {"layer_types": 7 * [*5 * ["sliding_attention"], "full_attention"]},
            7_463_013_376,
        ),
        (
            {"model_type": "step3p5", "num_hidden_layers": 12, "sliding_window": 512}
            | {"num_nextn_predict_layers": 1, "moe_layers_enum": "2,3,4,5,6,7"}
            | {"attention_other_setting": {"num_attention_heads": 96, "head_dim": 128}}
            | {"layer_types": [*3 * ["full_attention", *3 * ["sliding_attention"]], "_"]},
            30_378_654_720,
        ),
        (
            {"model_type": "minimax_m3_vl_text", "num_hidden_layers": 6}
            | {"moe_layer_freq": [0, 0, 1, 1, 1, 1]}
            | {"sparse_attention_config": {"sparse_attention_freq": [0, 0, 0, 1, 1, 1]}},
            32_785_645_824,
        ),
        (
            {"model_type": "lfm2_moe", "num_hidden_layers": 24}
            | {"layer_types": 8 * ["conv", "conv", "full_attention"]},
            8_327_334_912,
        ),
        # Three layers in four attend to the keys that the fourth chose.
        ({"model_type": "glm_moe_dsa", "index_topk_freq": 4}, 743_377_000_704),
        (
            {"model_type": "glm5_next", "vision_config": {}}
            | {"text_config": {"index_topk_freq": 4}},
            313_704_681_726,
        ),
        # MiniMax-M1, which lists its layers by numbers.
        (
            {"model_type": "minimax_m1", "hidden_size": 6144, "intermediate_size": 9216}
            | {"num_attention_heads": 64, "head_dim": 128, "num_local_experts": 32}
            | {"vocab_size": 200_064, "attn_type_list": 10 * [*7 * [0], 1]}
            | {"num_hidden_layers": 80},
            456_089_655_296,
        ),
        (
            {"model_type": "exaone4_5", "text_config": {"model_type": "exaone4"}}
            | {"vision_config": {"num_key_value_heads": 4}},
            11_895_360_256,
        ),
        (
            {"model_type": "llama4", "text_config": {}}
            | {
                "vision_config": {
                    "hidden_size": 1408,
                    "image_size": 336,
                    "vision_output_dim": 4096,
                }
            },
            108_641_793_536,
        ),
    ],
)
def test_heads_of_layers_own_and_other_mixers_are_counted(
    config: dict[str, Any], counted: int
) -> None:
    """Against Transformers 5.24 on these sizes, which defaults do not have."""
    model = imported(config)
    assert parameters(replace(model, vocab_multiple=1)) == pytest.approx(counted, rel=1e-4)


def test_ling_has_as_many_parameters_as_its_publisher_counts() -> None:
    """16 B, of which a token takes 1.4 B, 789 M without embeddings (ant-yy/Ling-V2, README)."""
    config = (
        {"model_type": "bailing_moe", "vocab_size": 157_184, "hidden_size": 2048}
        | {"intermediate_size": 5120, "num_hidden_layers": 20, "num_attention_heads": 16}
        | {"num_key_value_heads": 4, "head_dim": 128, "use_qk_norm": True, "num_experts": 256}
        | {"num_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 512}
        | {"first_k_dense_replace": 1, "use_bias": False, "use_qkv_bias": False}
    )
    held = parameters(replace(imported(config), vocab_multiple=1))
    taken = held - 19 * (256 - 8) * 3 * 2048 * 512
    assert held == pytest.approx(16e9, rel=0.02)
    assert taken == pytest.approx(1.4e9, rel=0.03)
    assert taken - 2 * 157_184 * 2048 == pytest.approx(789e6, rel=1e-3)


def test_longcat_takes_as_many_parameters_as_its_publisher_counts() -> None:
    """560 B, of which a token takes 27 B on average, 18.6 to 31.3 B (arXiv 2509.01322)."""
    model = imported({"model_type": "longcat_flash"})
    assert model.layers == "28*(2*attention/dense, none/moe)"
    held = parameters(replace(model, vocab_multiple=1))
    taken = held - 28 * (512 - model.moe.top_k) * 3 * 6144 * 2048
    assert held == pytest.approx(560e9, rel=0.01)
    assert 18.6e9 < taken < 31.3e9


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"per_layer_config": {"99": {"head_dim": 512}}}, "per_layer_config"),
        ({"per_layer_config": {"5": {"sliding_window": 8}}}, "per_layer_config.5.sliding_window"),
    ],
)
def test_what_single_layers_cannot_have_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        imported(GEMMA4 | changes)
    assert caught.value.field == f"config.json: {field}"


@pytest.mark.parametrize(
    "stated",
    [
        {"compress_ratios": [0, 128, 4, 128, 4], "num_hash_layers": 3},
        {
            "layer_types": [
                "sliding_attention",
                *2 * ["heavily_compressed_attention", "compressed_sparse_attention"],
            ],
            "mlp_layer_types": ["hash_moe", *4 * ["moe"]],
        },
    ],
)
def test_layers_of_compressed_attention_are_read_by_name_and_by_rate(
    stated: dict[str, Any],
) -> None:
    model = imported({"model_type": "deepseek_v4", "num_hidden_layers": 5} | stated)
    assert model.layers == "window/moe, 2*(compressed/moe, sparse/moe)"
    rates = {name: mixer.compressed.rate for name, mixer in model.kinds.items()}
    assert rates == {"window": 1, "compressed": 128, "sparse": 4}
    assert model.residual_streams == 4
    with pytest.raises(InputError) as caught:
        imported({"model_type": "deepseek_v4", "compress_ratios": [7]})
    assert caught.value.field == "config.json: compress_ratios"


LARGE = {"hidden_size": 1024, "num_attention_heads": 16}


@pytest.mark.parametrize(
    ("config", "counted"),
    [
        (
            {"model_type": "bert", "num_hidden_layers": 24, "intermediate_size": 4096} | LARGE,
            335_174_458,
        ),
        (
            {"model_type": "xlm-roberta", "num_hidden_layers": 24, "intermediate_size": 4096}
            | {"vocab_size": 250_002, "max_position_embeddings": 514, "type_vocab_size": 1}
            | LARGE,
            560_142_482,
        ),
        ({"model_type": "distilbert"}, 66_985_530),
        (
            {"model_type": "modernbert", "num_hidden_layers": 28, "intermediate_size": 2624}
            | LARGE,
            395_881_664,
        ),
    ],
)
def test_encoders_see_both_sides_and_predict_masked_words(
    config: dict[str, Any], counted: int
) -> None:
    """Against AutoModelForMaskedLM of Transformers 5.24."""
    model = imported(config)
    assert parameters(replace(model, vocab_multiple=1)) == pytest.approx(counted, rel=1e-4)
    assert not any(mixer.attention.causal for mixer in model.kinds.values())
    assert "logits of all tokens" in "".join(model.simplified)
    with pytest.raises(InputError) as caught:
        imported(config | {"is_decoder": True, "norm_bias": True, "sinusoidal_pos_embds": True})
    assert caught.value.field.startswith("config.json: ")


def test_modern_encoders_see_everything_in_the_first_of_three_layers() -> None:
    model = imported({"model_type": "modernbert", "num_hidden_layers": 7})
    assert model.layers == "2*(full/dense, 2*window/dense), full/dense"
    assert model.kinds["window"].attention.window == 128


def test_images_and_sound_are_towers_and_either_may_be_left_out() -> None:
    config = {"model_type": "gemma4", "text_config": {}, "vision_config": {}, "audio_config": {}}
    both = imported(config)
    assert [tower.name for tower in both.towers] == ["vision", "audio"]
    assert "30 seconds of sound" in " ".join(both.simplified)
    assert imported(config | {"audio_config": None}).towers == both.towers[:1]
    thinker = {"text_config": {}, "vision_config": {}, "audio_config": {}}
    omni = imported({"model_type": "qwen2_5_omni", "thinker_config": thinker})
    assert [tower.name for tower in omni.towers] == ["vision", "audio"]
    assert "is left out" in " ".join(omni.simplified)
    for changes, field in (
        ({"model_type": "gemma3"}, "audio_config"),
        ({"vision_config": {"head_dim": 96}}, "head_dim"),
        ({"audio_config": {"subsampling_conv_channels": "no"}}, "subsampling_conv_channels"),
    ):
        with pytest.raises(InputError) as caught:
            imported(config | changes)
        assert caught.value.field == f"config.json: {field}"


def test_defaults_are_those_of_what_is_read() -> None:
    assert set(transformers_defaults()) == {
        *families(),
        *TOWERS,
        *SOUNDS,
        *WITH_IMAGES,
        *SAMPLED,
    }
    older = {"model_type": "mixtral", "num_experts": 4}
    assert imported(older).moe.num_experts == 4  # its own field, of another name, says 8


def test_most_of_what_is_read_was_counted() -> None:
    kinds = {row["config"]["model_type"] for row in RELEASED.values()}
    assert kinds <= {*families(), *WITH_IMAGES, *TOWERS}
    assert len(kinds) >= 25
    assert len(RELEASED) >= 60


@pytest.mark.parametrize(
    ("hub", "shipped"),
    [
        ("meta-llama/Llama-3.1-8B", "llama3_8b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3_30b_a3b"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek_v3"),
        ("openai/gpt-oss-120b", "gpt_oss_120b"),
        ("deepseek-ai/DeepSeek-V4-Flash", "deepseek_v4_flash"),
        ("moonshotai/Kimi-Linear-48B-A3B-Base", "kimi_linear_48b_a3b"),
        ("nvidia/Nemotron-H-8B-Base-8K", "nemotron_h_8b"),
        ("Qwen/Qwen2.5-0.5B", "qwen2_5_0_5b"),
        ("Qwen/Qwen2.5-7B", "qwen2_5_7b"),
        ("meta-llama/Llama-3.2-1B", "llama3_2_1b"),
        ("meta-llama/Llama-3.2-3B", "llama3_2_3b"),
        ("mistralai/Mistral-7B-v0.1", "mistral_7b"),
        ("Qwen/Qwen3-VL-4B-Instruct", "qwen3_vl_4b"),
        ("google/gemma-2-9b", "gemma2_9b"),
        ("google/gemma-2-27b", "gemma2_27b"),
        ("microsoft/phi-4", "phi4_14b"),
        ("meta-llama/Llama-3.2-11B-Vision", "llama3_2_vision_11b"),
        ("openai/clip-vit-large-patch14", "clip_vit_l14"),
        ("google/siglip-so400m-patch14-384", "siglip_so400m"),
        ("google/vit-large-patch16-224", "vit_l16"),
    ],
)
def test_what_ships_is_what_its_configuration_says(hub: str, shipped: str) -> None:
    declared = load_catalogue().models[shipped]
    names = ("name", "source", "sequence_length", "simplified")
    free = {name: getattr(declared, name) for name in names}
    assert replace(imported(config_of(hub)), **free) == declared


@pytest.mark.parametrize(
    ("name", "newer"),
    [
        (
            "google/gemma-3-1b-pt",
            {
                "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 4
                + ["sliding_attention"] * 2
            },
        ),
        (
            "Qwen/Qwen3-Next-80B-A3B-Instruct",
            {"layer_types": [*["linear_attention"] * 3, "full_attention"] * 12},
        ),
        ("deepseek-ai/DeepSeek-V3.1", {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 58}),
        (
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            {
                "layers_block_type": [
                    {"M": "mamba", "E": "moe", "*": "attention"}[letter]
                    for letter in config_of("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")[
                        "hybrid_override_pattern"
                    ]
                ],
                "hybrid_override_pattern": None,
            },
        ),
    ],
)
def test_older_fields_say_the_same_as_lists_of_layers(name: str, newer: dict[str, object]) -> None:
    assert imported(config_of(name, **newer)) == imported(config_of(name))


def test_families_have_names_of_their_own() -> None:
    listed = {"attention_types": [[["global", "local"], 12]]}
    neo = model_fields({"model_type": "gpt_neo", "num_heads": 32, **listed}, "read")
    assert (neo["num_layers"], neo["num_heads"], neo["ffn_hidden_size"]) == (24, 32, 4 * 2048)
    assert neo["kinds"]["window"].attention.window == 256
    # Falcon-40B: groups of heads, where the 7B has one.
    many = {"new_decoder_architecture": True, "num_kv_heads": 8, "num_attention_heads": 128}
    grouped = model_fields({"model_type": "falcon", "hidden_size": 8192, **many}, "read")
    assert grouped["num_query_groups"] == 8
    assert model_fields({"model_type": "falcon"}, "read")["num_query_groups"] == 1
    alibi = model_fields({"model_type": "falcon", "alibi": True}, "read")
    assert alibi["position"] == "none"


def test_a_file_its_directory_and_its_name_are_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "gpt-oss"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of("openai/gpt-oss-20b")))
    times = set()
    for model in ("gpt-oss", "gpt-oss/config.json", "openai/gpt-oss-20b-Instruct"):
        asked = ts.question(model=model, cluster="h100_64")
        times.add(ts.predict(asked, ep=8).step_time_s)
        settings = [f"model={model}", "cluster=h100_64", "recipe.ep=8", "format=json"]
        assert command("simulate")(settings) == 0
        times.add(json.loads(capsys.readouterr().out)["step_time_s"])
    assert len(times) == 1
