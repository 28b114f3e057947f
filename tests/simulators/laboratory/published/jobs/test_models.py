from dataclasses import replace

import pytest

from tests.parameter_count import count_parameters
from tests.simulators.laboratory.published.runs import EXPERTS, RUN, declarations, replayable
from trainscout.simulators.laboratory.published.jobs.jobs import job_of
from trainscout.simulators.laboratory.published.jobs.outcome import NotReplayable
from trainscout.simulators.predictor.question.layers import Layer


def test_llama_facts_that_have_no_column():
    model = replayable().job.model
    assert (model.normalization, model.position) == ("rmsnorm", "rope")
    assert not any((model.linear_bias, model.tied_embeddings, model.dropout))


def test_gpt_facts_that_have_no_column():
    model = replayable(model="GPT-175B", gated_mlp=0).job.model
    assert (model.normalization, model.position) == ("layernorm", "learned")
    assert model.linear_bias
    assert model.tied_embeddings
    assert not model.qk_norm


def test_words_outrank_a_family():
    notes = "untied embeddings; layer norm of queries and keys"
    model = replayable(model="GPT-175B", gated_mlp=0, notes=notes).job.model
    assert model.qk_norm
    assert not model.tied_embeddings
    assert replayable(notes="tied embeddings").job.model.tied_embeddings
    without = "no biases; no norm of queries and keys; no rotary positions"
    qwen = replayable(model="Qwen3-14B", notes=without).job.model
    assert (qwen.qk_norm, qwen.position) == (False, "none")
    gpt = replayable(model="GPT-175B", gated_mlp=0, notes=without).job.model
    assert not gpt.linear_bias
    assert not gpt.qkv_bias
    root_mean_square = replayable(model="GPT-175B", gated_mlp=0, notes="RMSNorm in PyTorch")
    assert root_mean_square.job.model.normalization == "rmsnorm"


def test_llama3_8b_has_8_03_billion_parameters():
    assert count_parameters(replayable().job.model).total == pytest.approx(8.03e9, rel=2e-3)


def test_qwen3_heads_are_128_wide():
    model = replayable(model="Qwen3-30B-A3B", hidden=2048).job.model
    assert model.qk_head_dim == 128
    assert model.qk_norm


@pytest.mark.parametrize("between", [" ", "-", "_", ""])
def test_words_of_a_name_may_be_joined_in_any_way(between):
    assert replayable(model=f"Qwen{between}3 8B").job.model.qk_norm
    assert replayable(model=f"GPT{between}OSS 20B").job.model.clamped_mlp
    shape = {"num_layers": 48, "hidden": 3840, "num_heads": 16, "pp": 1, "tp": 1, "dp": 64}
    model = replayable(model=f"Gemma{between}3{between or '-'}12B", **shape).job.model
    assert model.kinds["window"].attention.window == 1024


def test_deepseek_has_latent_attention_and_a_shared_expert():
    changes = {"model": "DeepSeek-V3", "num_heads": 128, "hidden": 7168, "moe_ffn_hidden": 2048}
    shape = {name: getattr(EXPERTS, name) for name in ("num_experts", "topk", "ep", "etp")}
    model = replayable(**shape, **changes, num_dense_layers=3, vocab=129280).job.model
    assert model.mla is not None
    assert model.mla.q_lora_rank == 1536
    assert model.moe is not None
    assert model.moe.shared_ffn_hidden_size == 2048


def test_notes_overrule_the_family():
    notes = "MLA (q_lora 768, kv_lora 256), shared expert 1024; token-drop, capacity factor 1.25"
    changes = {"model": "MoE-MLA small", "num_dense_layers": 1, "moe_ffn_hidden": 1024}
    shape = {name: getattr(EXPERTS, name) for name in ("num_experts", "topk", "ep")}
    model = replayable(**shape, **changes, notes=notes).job.model
    assert model.mla is not None
    assert (model.mla.q_lora_rank, model.mla.kv_lora_rank) == (768, 256)
    assert model.moe is not None
    assert model.moe.shared_ffn_hidden_size == 1024
    assert model.moe.capacity_factor == 1.25
    assert replayable(notes="kv_channels 64").job.model.qk_head_dim == 64


def test_a_hybrid_without_a_printed_shape_is_the_declared_one():
    shape = dict.fromkeys(("num_layers", "hidden", "num_heads"))
    outcome = replayable(model="Nemotron_3_Super", ep=8, tp=1, dp=64, pp=1, **shape)
    assert outcome.job.model.moe.latent_size == 1024
    assert not outcome.job.recipe.overlap_moe_expert_parallel_comm
    assert any("nemotron3_super_120b_a12b" in each for each in outcome.assumptions)


@pytest.mark.parametrize(("notes", "towers"), [("text only", 0), ("images and text packed", 1)])
def test_a_hybrid_is_the_declared_one_whose_tower_only_images_train(notes, towers):
    changes = {"model": "Qwen3.5-9B", "pp": 1, "dp": 64, "tp": 1, "notes": notes}
    model = replayable(**changes).job.model
    assert ("linear" in model.kinds, len(model.towers)) == (True, towers)
    assert not replayable(**changes, num_layers=64).job.model.kinds


def test_what_a_preset_says_beside_a_declared_shape():
    notes = (
        "dispatcher hybridep; CUDA graphs transformer_engine attn+mamba+moe_router; 2 MTP layers; "
        "last 14 layers in BF16; attention and latent projections and MTP layers in BF16; "
        "Mamba output projections in MXFP8"
    )
    row = {"model": "Nemotron_3_Super", "framework": "Megatron-Bridge 26.06", "dtype": "mxfp8"}
    row |= dict.fromkeys(("num_layers", "hidden"))
    job = replayable(gpu="GB300-288GB", pp=1, dp=64, tp=1, notes=notes, **row).job
    assert job.framework.cuda_graphs
    assert job.model.moe.dispatcher == "deepep"
    assert (job.model.num_mtp_layers, job.model.num_layers_at_end_in_bf16) == (2, 14)
    own = dict(job.training.module_precision.stated)
    assert own == dict.fromkeys(("qkv", "attn_out", "latent", "mtp"), "bf16") | {
        "mixer_out": "mxfp8"
    }
    cut = replayable(gpu="B300-288GB", pp=1, dp=64, tp=1, **row, notes="capacity factor 1.25").job
    assert cut.model.moe.capacity_factor == 1.25
    assert job.model.moe.capacity_factor is None
    alone = replayable(notes="MXFP8 in routed experts only, the rest in bf16", gpu="B200").job
    others = dict(alone.training.module_precision.stated)
    assert set(others.values()) == {"bf16"}
    assert "experts" not in others
    # The pattern ends in experts alone; each prediction more is attention and experts.
    assert job.model.layer(88) == Layer("attention", "moe", bf16=True)
    bare = replayable(gpu="B300-288GB", pp=1, dp=64, tp=1, **row)
    assert not bare.job.model.num_mtp_layers
    assert "multi-token prediction not published: none" in bare.assumptions
    notes = "FP8 hybrid; first and last layer in BF16"
    model = replayable(framework="NeMo 26.02", dtype="fp8", notes=notes).job.model
    assert (model.num_layers_at_start_in_bf16, model.num_layers_at_end_in_bf16) == (1, 1)


@pytest.mark.parametrize("name", ["BERT-Large", "Jamba", "Nemotron_3_Ultra"])
def test_other_architectures_are_not_replayed(name):
    outcome = job_of(replace(RUN, model=name), declarations())
    assert isinstance(outcome, NotReplayable)
    assert name in outcome.reason


def test_nemotron_340b_is_a_plain_transformer():
    assert replayable(model="Nemotron-340B", gated_mlp=0).job.model.normalization == "layernorm"


@pytest.mark.parametrize("column", ["num_layers", "hidden", "num_heads", "seq_len"])
def test_a_shape_that_is_not_published_is_not_made_up(column):
    outcome = job_of(replace(RUN, **{column: None}), declarations())
    assert outcome == NotReplayable(f"{column} is not published")


@pytest.mark.parametrize(("printed", "tied"), [(3.57, True), (3.97, False), (4.6, False)])
def test_a_parameter_count_may_tell_that_embeddings_are_tied(printed, tied):
    shape = {"num_layers": 28, "hidden": 3072, "num_heads": 32, "num_query_groups": 32}
    outcome = replayable(**shape, ffn_hidden=8192, vocab=131072, params_b=printed)
    assert outcome.job.model.tied_embeddings is tied
    assert any("by the parameter count" in text for text in outcome.assumptions) is tied


def test_a_small_table_tells_nothing():
    # 405B with 16 KV groups printed as 405: the table is half a percent of it.
    shape = {"num_layers": 126, "hidden": 16384, "num_heads": 128, "num_query_groups": 16}
    outcome = replayable(**shape, ffn_hidden=53248, params_b=405.0, tp=8, pp=1, dp=1, num_gpus=8)
    assert not outcome.job.model.tied_embeddings


def test_experts_of_unpublished_width_are_as_wide_as_the_dense_mlp():
    outcome = job_of(replace(EXPERTS, moe_ffn_hidden=None), declarations())
    assert outcome.job.model.moe.ffn_hidden_size == EXPERTS.ffn_hidden
    assert "expert width not published: 14336, that of the dense MLP" in outcome.assumptions


def test_expert_parallelism_without_experts_is_a_contradiction():
    outcome = job_of(replace(RUN, ep=8), declarations())
    assert outcome == NotReplayable("ep=8 of a model without experts (num_experts)")


@pytest.mark.parametrize(
    ("label", "notes", "in_turn"),
    [
        ("TorchTitan (PyTorch FSDP2)", "force-balanced routing", True),
        ("NeMo AutoModel", "force-balanced routing", True),
        ("TorchTitan (PyTorch FSDP2)", "", False),
        ("Megatron-Core", "force-balanced routing", False),
    ],
)
def test_trainers_of_pytorch_force_the_balance_in_turn(label, notes, in_turn):
    outcome = job_of(replace(EXPERTS, framework=label, notes=notes), declarations())
    assert outcome.job.model.moe.experts_in_turn == in_turn


@pytest.mark.parametrize(
    ("label", "experts", "ep", "notes", "load"),
    [
        ("TorchTitan (PyTorch FSDP2)", 8, 8, "", 1.6),
        ("TorchTitan (PyTorch FSDP2)", 8, 8, "force-balanced routing", 1.0),
        ("Megatron-Core", 8, 8, "", 1.0),
        ("Megatron-Core", 8, 8, "experts force-balanced", 1.0),
        ("Megatron-Core", 8, 8, "natural router", 1.6),
        # Without expert parallelism no GPU has more to do unless the fullest expert pads others.
        ("Megatron-Core", 8, 1, "natural router", 1.0),
        ("KempnerForge", 8, 1, "natural router", 1.6),
        ("KempnerForge", 16, 1, "natural router", 1 + 0.6 * 2**0.5 * 1.7688 / 1.4342),
        ("Megatron-Core", 8, 8, "trained router", 1.13),
        # Of Megatron-Bridge, recipes for performance force the balance, the library's do not.
        ("Megatron-Bridge 0.1.0rc4 (nemo:25.09)", 8, 8, "", 1.6),
        ("Megatron-Bridge 0.1.0rc4", 8, 8, "experts force-balanced", 1.0),
        ("Megatron-Bridge (NeMo 25.09)", 8, 8, "", 1.0),
        ("Megatron-SWIFT (Megatron-Core, 2025)", 8, 8, "packed sequences", 1.6),
        ("Megatron-Bridge (NeMo 25.09)", 8, 8, "LoRA", 1.0),
        # As uneven with 16 experts a GPU as with one (Megatron-MoE-ModelZoo's pairs of Qwen3),
        # published weights as random ones (prime-rl's pair).
        ("Hugging Face Transformers", 128, 8, "", 1.6),
        ("PyTorch FSDP", 128, 16, "", 1.6),
        # Four eighths a GPU are half as uneven as one, and of two GPUs the busier one is less
        # far above the mean than the busiest of eight.
        ("TorchTitan (PyTorch FSDP2)", 8, 2, "", 1 + 0.6 / 2 * 0.5895 / 1.4342),
        ("TorchTitan (PyTorch FSDP2)", 8, 1, "", 1.0),
    ],
)
def test_who_leaves_routers_alone_and_how_uneven_they_are(label, experts, ep, notes, load):
    row = replace(EXPERTS, framework=label, ep=ep, num_experts=experts, notes=notes)
    outcome = job_of(row, declarations())
    assert outcome.job.model.moe.load_imbalance == pytest.approx(load, abs=1e-4)


def test_what_a_script_leaves_on_is_read():
    plain = replayable(gpu="H100-80GB-SXM").job.model
    notes = "the script has linear biases, learned positions and dropout 0.1"
    found = replayable(gpu="H100-80GB-SXM", notes=notes).job.model
    assert (plain.linear_bias, plain.qkv_bias, plain.dropout) == (False, False, False)
    assert (found.linear_bias, found.qkv_bias, found.dropout) == (True, True, True)
    assert (plain.position, found.position) == ("rope", "learned")
    rotary = replayable(model="GPT-7B", gated_mlp=0, notes="rotary positions").job.model
    partly = replayable(
        model="GPT-7B", gated_mlp=0, notes="rotary positions on a quarter"
    ).job.model
    assert (rotary.position, rotary.rotary_fraction) == ("rope", 1)
    assert (partly.position, partly.rotary_fraction) == ("rope", 0.25)
    usual, *without = (
        replayable(model="GPT-175B", gated_mlp=0, notes=notes).job.model.dropout
        for notes in ("", "no dropout", "dropout 0")
    )
    assert (usual, without) == (True, [False, False])


@pytest.mark.parametrize(
    ("framework", "dropout"),
    [
        ("NeMo (MLPerf v4.1)", False),
        ("GPT-NeoX", False),
        ("NeMo", True),
        ("nanoGPT (PyTorch 2.1)", False),
        ("Hugging Face Transformers", True),
    ],
)
def test_who_trains_gpts_without_dropout(framework, dropout):
    model = replayable(model="GPT3-175B", gated_mlp=0, framework=framework).job.model
    assert model.dropout is dropout


@pytest.mark.parametrize(
    ("dispatcher", "padded"), [("alltoall dispatcher", True), ("DeepEP", False)]
)
def test_experts_behind_deepep_are_cut_at_their_capacity_and_not_padded(dispatcher, padded):
    cut = replace(
        EXPERTS, framework="Megatron-LM (2025)", notes=f"{dispatcher}; capacity factor 2"
    )
    moe = job_of(cut, declarations()).job.model.moe
    assert (moe.capacity_factor, moe.padded) == (2.0, padded)


def test_fewer_layers_of_a_hybrid_are_its_first():
    shape = {"num_layers": 6, "hidden": 2048, "pp": 1, "tp": 1, "dp": 8, "num_gpus": 8}
    experts = {"num_experts": 256, "topk": 8, "moe_ffn_hidden": 512, "ep": 8}
    outcome = replayable(model="Qwen3.6-35B-A3B (6 layers)", **shape, **experts)
    mixers = [layer.mixer for layer in outcome.job.model.pattern]
    assert mixers == ["linear", "linear", "linear", "full", "linear", "linear"]
    assert "the first 6 of its 40 layers" in outcome.assumptions


def test_one_layer_of_a_hybrid_keeps_the_kinds_and_the_experts_that_it_has():
    shape = {"num_layers": 1, "hidden": 4096, "pp": 1, "tp": 1, "dp": 8, "num_gpus": 8}
    model = replayable(model="Nemotron_3_Super (1 layer)", **shape).job.model
    assert [layer.mixer for layer in model.pattern] == list(model.kinds)
    assert model.moe is None
