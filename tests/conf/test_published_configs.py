"""Configurations as they were published: code of their own, older forms, what is left out."""

import contextlib
from dataclasses import replace
from typing import Any

import pytest

from tests.conf.released import TYPES, config_of, imported
from trainscout.commands.listing import parameters
from trainscout.simulators.predictor.answer.flops import _head_flops, layer_flops
from trainscout.simulators.predictor.question.errors import InputError

SIGHT = {"image_size": 448, "patch_size": 14, "hidden_size": 1024, "intermediate_size": 4096}
INTERNLM2 = (
    {"model_type": "internlm2", "hidden_size": 4096, "intermediate_size": 14336, "bias": False}
    | {"num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8}
    | {"vocab_size": 92544, "tie_word_embeddings": False}
)


HUNYUAN = (
    {"model_type": "hunyuan_v1_moe", "head_dim": 128, "hidden_size": 4096, "num_experts": 64}
    | {"intermediate_size": 3072, "moe_intermediate_size": 32 * [3072], "moe_topk": 32 * [8]}
    | {"num_shared_expert": 32 * [1], "num_attention_heads": 32, "num_hidden_layers": 32}
    | {"num_key_value_heads": 8, "vocab_size": 128167, "tie_word_embeddings": True}
)
LING = (
    {"model_type": "bailing_moe", "architectures": ["BailingMoeV2ForCausalLM"], "head_dim": 128}
    | {"use_qk_norm": True, "num_experts": 256, "num_shared_experts": 1, "num_experts_per_tok": 8}
    | {"num_key_value_heads": 4, "vocab_size": 157184, "tie_word_embeddings": False}
)
WAV2VEC = {
    "model_type": "wav2vec2",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "conv_bias": True,
} | {"num_attention_heads": 16, "num_hidden_layers": 24, "feat_extract_norm": "layer"}
DEBERTA = (
    {
        "model_type": "deberta-v2",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "vocab_size": 128100,
    }
    | {"max_position_embeddings": 512, "num_attention_heads": 12, "num_hidden_layers": 12}
    | {"type_vocab_size": 0, "norm_rel_ebd": "layer_norm", "position_buckets": 256}
    | {"relative_attention": True, "share_att_key": True, "position_biased_input": False}
)

# Llama-3.3-Nemotron-Super-49B: how often an MLP of each factor stands in turn, behind attention
# (+) or alone.
_BLOCKS = (
    "+2.625*1 +5.25*5 2.625*2 +5.25*3 3.28125*1 +5.25*30 1.3125*1 2.625*2 1.3125*1 5.25*1 "
    "1.3125*1 2.625*1 1.3125*3 +5.25*1 1.3125*1 1.0*2 1.3125*1 1.0*3 1.3125*2 0.5*2 1.0*2 "
    "0.5*2 1.0*1 0.5*2 +5.25*9"
)
MOONVIT = (
    {"model_type": "moonvit", "patch_size": 14, "hidden_size": 1152, "intermediate_size": 4304}
    | {"num_attention_heads": 16, "num_hidden_layers": 27, "merge_kernel_size": [2, 2]}
    | {"init_pos_emb_height": 64, "init_pos_emb_width": 64}
)
SUPER: dict[str, Any] = {
    "model_type": "nemotron-nas",
    "hidden_size": 8192,
    "intermediate_size": None,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": None,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
    "block_configs": [
        {
            "attention": {"n_heads_in_group": 8, "no_op": not factor.startswith("+")},
            "ffn": {"ffn_mult": float(factor), "no_op": False, "replace_with_linear": False},
        }
        for factor, _, times in (run.partition("*") for run in _BLOCKS.split())
        for _ in range(int(times))
    ],
}


@pytest.mark.parametrize(
    ("config", "counted"),
    [
        (SUPER, 49_867_145_216),
        (DEBERTA, 184_551_780),  # DeBERTa-v3-base, with Transformers' head
        (WAV2VEC, 315_471_520),  # wav2vec 2.0 large, with a head of 32 letters
        (WAV2VEC | {"architectures": ["Wav2Vec2ForSequenceClassification"]}, 315_701_634),
        (
            {"model_type": "chatglm", "architectures": ["ChatGLMModel"], "hidden_size": 4096}
            | {"ffn_hidden_size": 13696, "num_layers": 28, "num_attention_heads": 32}
            | {"kv_channels": 128, "multi_query_group_num": 2, "padded_vocab_size": 65024}
            | {"multi_query_attention": True, "add_qkv_bias": True, "add_bias_linear": False},
            6_243_584_000,  # ChatGLM3-6B: LoRAs of 1,949,696 beside 6,245,533,696 in all
        ),
        (
            {"model_type": "deepseek", "hidden_size": 2048, "intermediate_size": 10944}
            | {"moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2}
            | {"num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 28}
            | {"first_k_dense_replace": 1, "vocab_size": 102400},
            16_375_728_128,  # DeepSeek-MoE-16B
        ),
        (
            {"model_type": "baichuan", "hidden_size": 4096, "intermediate_size": 11008}
            | {"num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 125696}
            | {"model_max_length": 4096, "tie_word_embeddings": False},
            7_505_973_248,  # Baichuan2-7B
        ),
        (
            # Qwen-7B, whose file says the width of both halves of an MLP.
            {"model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016}
            | {"num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 151936}
            | {"kv_channels": 128, "no_bias": True, "tie_word_embeddings": False},
            7_721_324_544,
        ),
        (INTERNLM2, 7_737_708_544),  # InternLM2.5-7B
        (
            {"model_type": "minicpm", "hidden_size": 2304, "intermediate_size": 5760}
            | {"num_attention_heads": 36, "num_hidden_layers": 40, "vocab_size": 122753},
            2_724_880_896,  # MiniCPM-2B, whose embeddings are tied where its file says nothing
        ),
        (HUNYUAN, 80_393_183_232),  # Hunyuan-A13B, whose file says sizes layer by layer
        (
            LING
            | {"hidden_size": 2048, "intermediate_size": 5120, "moe_intermediate_size": 512}
            | {"num_attention_heads": 16, "num_hidden_layers": 20, "first_k_dense_replace": 1},
            16_255_638_528,  # Ling-mini-2.0
        ),
        (
            LING
            | {"hidden_size": 8192, "intermediate_size": 18432}
            | {"moe_intermediate_size": 2048, "num_attention_heads": 64, "num_hidden_layers": 80}
            | {"num_key_value_heads": 8, "first_k_dense_replace": 4},
            999_705_309_184,  # Ling-1T
        ),
        (
            {"model_type": "internvl_chat", "downsample_ratio": 0.5, "llm_config": INTERNLM2}
            | {"vision_config": {**SIGHT, "model_type": "intern_vit_6b"}},
            8_075_365_376,  # InternVL2-8B
        ),
        (
            # Qwen2.5-VL-7B: the language model's fields stand beside the others.
            {"model_type": "qwen2_5_vl", "hidden_size": 3584, "intermediate_size": 18944}
            | {"num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4}
            | {"vocab_size": 152064, "tie_word_embeddings": False, "sliding_window": 32768}
            | {"use_sliding_window": False, "max_window_layers": 28}
            | {"vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420}}
            | {"architectures": ["Qwen2_5_VLForConditionalGeneration"]},
            8_292_166_656,
        ),
        (
            # Kimi-VL-A3B, whose tower is MoonViT.
            {"model_type": "kimi_vl", "text_config": config_of("moonshotai/Moonlight-16B-A3B")}
            | {"vision_config": MOONVIT},
            16_407_657_776,
        ),
        (
            # Phi-2, whose file names code of its own and a class that Transformers has.
            {"model_type": "phi-msft", "architectures": ["PhiForCausalLM"], "n_embd": 2560}
            | {"n_layer": 32, "n_head": 32, "n_inner": None, "vocab_size": 51200},
            2_779_683_840,
        ),
    ],
)
def test_files_as_they_were_published_are_read(config: dict[str, Any], counted: int) -> None:
    """Parameters that the Hub shows or trainings of them print."""
    counts = parameters(replace(imported(config), vocab_multiple=1))
    assert counts == pytest.approx(counted, rel=1e-4)


def test_what_is_predicted_in_another_way_is_said() -> None:
    bert = config_of("google-bert/bert-base-uncased (classes)")
    assert imported(bert).simplified == ("sequences are told apart: 4 classes",)
    of_tokens = bert | {"architectures": ["BertForTokenClassification"], "num_labels": 9}
    assert imported(of_tokens).simplified == ("tokens are told apart: 9 classes",)
    masked, head = imported(bert | {"architectures": ["BertForMultipleChoice"]}).simplified
    assert "masked words" in masked
    assert head == "the head is one of words, not that of BertForMultipleChoice"
    del bert["hidden_size"], bert["vocab_size"]
    sizes, _ = imported(bert).simplified
    assert sizes == "its config.json says no hidden_size 768, vocab_size 30522: Transformers' own"
    (further,) = imported(config_of("deepseek-ai/DeepSeek-V3.1")).simplified
    assert "model.num_mtp_layers" in further
    (image,) = imported(config_of("Qwen/Qwen3-VL-4B-Instruct")).simplified
    assert image == "a sequence has one image of 1,024 patches"


def test_a_file_may_call_its_own_tower_and_thinker_as_it_likes() -> None:
    whole = config_of("Qwen/Qwen3-VL-4B-Instruct")
    vision = whole["vision_config"] | {"model_type": "perception_encoder"}
    assert imported(whole | {"vision_config": vision}).towers == imported(whole).towers
    heard = {"text_config": {"hidden_size": 128, "num_hidden_layers": 2}, "audio_config": {}}
    spoken = imported({"model_type": "qwen3_asr", "thinker_config": heard})
    assert spoken.towers == imported({"model_type": "qwen3_asr"} | heard).towers


def test_a_file_without_a_tower_is_its_language_model() -> None:
    """Where Transformers builds that, too; a tower is asked for elsewhere."""
    scout = config_of("meta-llama/Llama-4-Scout-17B-16E (text_config)")
    alone = imported({"model_type": "llama4", "text_config": scout})
    assert alone.towers == ()
    assert parameters(alone) == parameters(imported(scout))
    assert any("language model alone" in each for each in alone.simplified)
    tied = imported({"model_type": "qwen3_5", "text_config": {"tie_word_embeddings": True}})
    assert tied.tied_embeddings
    tower = {"model_type": "qwen3_5", "depth": 27, "hidden_size": 1152, "intermediate_size": 4304}
    for odd in ({"model_type": "gemma3", "text_config": {}}, tower | {"num_heads": 16}):
        with pytest.raises(InputError, match="vision_config"):
            imported(odd)


def test_the_last_layer_attends_to_everything() -> None:
    for kind in ("gemma4_text", "gemma4_unified_text"):
        last = imported({"model_type": kind, "num_hidden_layers": 4}).pattern[-1]
        assert last.mixer == "full"


def test_windows_come_by_turns_where_no_field_lists_layers() -> None:
    for name in ("allenai/Olmo-3-1025-7B", "openai/gpt-oss-120b"):
        stated = config_of(name)
        unsaid = {field: value for field, value in stated.items() if field != "layer_types"}
        assert imported(unsaid).pattern == imported(stated).pattern
    (first, *_, last) = imported({"model_type": "granite_swa", "num_hidden_layers": 8}).pattern
    assert (first.mixer, last.mixer) == ("full", "window")


def test_blocks_that_a_search_chose_have_sizes_of_their_own() -> None:
    model = imported(SUPER)
    assert (model.ffn_hidden_size, model.kv_heads) == (28672, 8)
    assert model.ffn_widths == (14336, 28672, 17920, 7168, 5632, 2816)
    assert sum(layer.mixer == "none" for layer in model.pattern) == 31


@pytest.mark.parametrize(
    ("half", "stated", "field"),
    [
        ("attention", {"replace_with_linear": True}, "0.attention.replace_with_linear"),
        ("attention", {"n_heads_in_group": 0}, "0.attention.n_heads_in_group"),
        ("attention", {"n_heads_in_group": 128}, "0.attention.n_heads_in_group"),
        ("ffn", {"ffn_mult": "wide"}, "0.ffn.ffn_mult"),
        ("ffn", None, "0.ffn"),
    ],
)
def test_blocks_are_refused_by_their_number_and_field(half: str, stated: Any, field: str) -> None:
    first, *others = SUPER["block_configs"]
    odd = {**first, half: stated and {**first[half], **stated}}
    with pytest.raises(InputError) as caught:
        imported(SUPER | {"block_configs": [odd, *others]})
    assert caught.value.field == f"config.json: block_configs.{field}"
    with pytest.raises(InputError, match="80 blocks"):
        imported(SUPER | {"block_configs": others})


def test_a_text_config_is_never_overlooked() -> None:
    """Of a file that calls the whole by its language model's type."""
    text = {"model_type": "qwen3", "hidden_size": 256}
    with pytest.raises(InputError, match="text_config in a file of its own"):
        imported({"model_type": "qwen3", "text_config": text})
    whole = {"model_type": "qwen3", "text_config": text, "vision_config": {}}
    model = imported(whole | {"architectures": ["Qwen3VLForConditionalGeneration"]})
    assert (model.hidden_size, len(model.towers)) == (256, 1)


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("openai/gpt-oss-20b", {"model_type": ["gpt_oss"]}, "model_type"),
        ("openai/gpt-oss-20b", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ("Qwen/Qwen3-30B-A3B", {"mlp_only_layers": 1.5}, "mlp_only_layers"),
        ("openai/gpt-oss-20b", {"model_type": "bert", "tie_word_embeddings": False}, "tie_word"),
        ("sshleifer/distilbart-cnn-12-6", {"tie_word_embeddings": False}, "tie_word"),
        ("deepseek-ai/DeepSeek-V4-Flash", {"first_k_dense_replace": 1}, "first_k_dense_replace"),
        ("Qwen/Qwen3-VL-4B-Instruct", {"vision_config": {"model_type": [1]}}, "vision_config."),
    ],
)
def test_odd_values_are_refused_by_their_field(
    name: str, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as caught:
        imported(config_of(name, **changes))
    assert caught.value.field.startswith(f"config.json: {field}")


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        # What divides is a number of parts.
        *(
            ({"model_type": kind}, field, value)
            for kind, field, value in (
                ("audio-spectrogram-transformer", "time_stride", 0),
                ("videomae", "tubelet_size", 0),
                ("jamba", "expert_layer_period", 0),
                ("lfm2", "block_multiple_of", 0),
                ("lfm2", "block_ffn_dim_multiplier", "x"),
                ("gemma3n_text", "num_kv_shared_layers", 35),
                ("deepseek_v3", "moe_layer_freq", 2),
                ("deepseek_v3", "moe_layer_freq", [1, 1, 1]),
                ("mimo_v2_flash", "n_shared_experts", 1),
                ("nemotron_h", "mlp_bias", True),
                ("mistral_large4_text", "kv_source_layers", [0, *range(71)]),
                ("minicpm", "sparse_config", {"topk": 64}),
                ("vit", "mlp_ratio", "x"),
            )
        ),
        # Tables of distances other than one for all.
        (DEBERTA, "share_att_key", None),
        (DEBERTA, "position_biased_input", True),
        (DEBERTA, "position_buckets", 128),
        # Encoders of samples.
        (WAV2VEC, "add_adapter", True),
        (WAV2VEC, "conv_kernel", [10, 3]),
        (WAV2VEC | {"conv_dim": [], "conv_stride": []}, "conv_kernel", []),
        (WAV2VEC, "conv_dim", 512),
        (WAV2VEC, "num_conv_pos_embedding_groups", 0),
    ],
)
def test_what_is_not_read_is_refused_by_its_field(
    config: dict[str, Any], field: str, value: object
) -> None:
    changed = config | {field: value}
    with pytest.raises(InputError) as caught:
        imported({name: each for name, each in changed.items() if each is not None})
    assert caught.value.field == f"config.json: {field}"


def test_advice_leads_to_what_is_read() -> None:
    """A language model alone only where its type is read, the base of an adapter."""
    with pytest.raises(InputError, match="trainscout live"):
        imported({"model_type": "clap", "text_config": {}, "audio_config": {}})
    with pytest.raises(InputError, match="trainscout live"):
        imported({"model_type": "clip_text_model"})
    tower = {"model_type": "clip", "position_embedding_type": "rope"}
    with pytest.raises(InputError, match="is not read for llava_next"):
        imported({"model_type": "llava_next", "text_config": {}, "vision_config": tower})
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-8B"}
    with pytest.raises(InputError, match="model=Qwen/Qwen3-8B training=lora"):
        imported(adapter)


# Transformers computes otherwise on 64 tokens: its scans take whole chunks of 256, Mamba's first
# one is no product, and Llama 4 runs every expert.
OTHERWISE = ("falcon_mamba", "llama4_text", "mamba", "mamba2")


def test_a_forward_pass_has_as_many_flops_as_transformers() -> None:
    """Of every type of text that is read by default, on sequences shorter than any window."""
    tokens, equal = 64, set[str]()
    for kind, row in TYPES.items():
        with contextlib.suppress(InputError):
            model = imported(row["config"])
            if "flops" in row and kind not in OTHERWISE:
                layers = zip(
                    model.layers_of_each(0, model.num_layers), model.layer_kinds, strict=True
                )
                ours = sum(count * layer_flops(model, tokens, each) for count, each in layers)
                counted = tokens * (ours + _head_flops(model))
                # 0.3 % of those with delta rules, whose chunks there are inverted step by step.
                assert counted == pytest.approx(row["flops"], rel=3e-3), kind
                equal.add(kind)
    assert equal >= {"llama", "bert", "deepseek_v3", "qwen3_moe", "qwen3_next", "modernbert"}
    assert len(equal) >= 107


@pytest.mark.parametrize(
    ("part", "changes", "field"),
    [
        ("text_config", {"projection_size": 768}, "projection_size"),
        ("vision_config", {"hidden_size": 2304}, "projection_size"),
        ("vision_config", {"vision_use_head": False}, "vision_use_head"),
    ],
)
def test_pairs_that_cannot_be_compared_are_refused(
    part: str, changes: dict[str, Any], field: str
) -> None:
    siglip = config_of("google/siglip-so400m-patch14-384")
    with pytest.raises(InputError) as caught:
        imported(siglip | {part: siglip[part] | changes})
    assert caught.value.field == f"config.json: {field}"
