import csv
from pathlib import Path

import pytest

from tests.simulators.laboratory.published.runs import replayable


def framework(**changes):
    return replayable(**changes).job.framework


# What software had at its time, whatever notes say that is none of it: facts by label and notes.
with Path(__file__).with_name("software_facts.csv").open(newline="") as _file:
    FACTS = list(csv.DictReader(_file))


@pytest.mark.parametrize("row", FACTS, ids=lambda row: f"{row['fact']}-{row['label']}")
def test_what_software_had_at_its_time(row):
    found = framework(framework=row["label"], notes=row["notes"])
    assert str(getattr(found, row["fact"])) == row["value"]


def test_gelu_of_gpt_2_alone_is_written_in_operations():
    label = "Hugging Face Trainer (July 2023)"
    written = [
        framework(framework=label, model=model, gated_mlp=0).writes_gelu
        for model in ("GPT-2", "StarCoder 1B")
    ]
    assert written == [True, False]


def test_pax_casts_with_transformer_engine_and_maxtext_with_the_compiler():
    xla, pax = framework(framework="MaxText JAX"), framework(framework="PaxML JAX")
    assert xla.fuses_casts
    assert xla.fp8_param_gather == ("fp8",)
    assert pax.quantises_each_pass
    assert not pax.fuses_casts
    assert not pax.fp8_param_gather


def test_gradients_are_summed_in_fp32_only_with_bf16():
    label = "Megatron-LM (2023)"
    assert framework(framework=label, dtype="bf16").accumulate_grads_fp32
    assert not framework(framework=label, dtype="fp16").accumulate_grads_fp32
    scaled = framework(framework=label, dtype="fp8", notes="fp16 weights with a loss scale")
    assert not scaled.accumulate_grads_fp32


@pytest.mark.parametrize(
    ("year", "dtype", "whole"), [(2023, "fp16", False), (2023, "bf16", True), (2024, "fp16", True)]
)
def test_deepspeed_s_pipelines_reduce_whole_gradients(year, dtype, whole):
    found = framework(framework=f"Megatron-DeepSpeed ({year})", dtype=dtype)
    assert found.allreduces_gradients == whole
    assert not framework(framework=f"Megatron-LM ({year})", dtype=dtype).allreduces_gradients


@pytest.mark.parametrize(
    ("label", "notes", "kept"),
    [
        # fp32 gradients, half of the master weights, segments that grow in place.
        ("NeMo Megatron 2022", "", (True, False, False)),
        ("NeMo Megatron 2023", "", (True, True, False)),
        ("NeMo 24.07", "", (False, True, False)),
        ("NeMo 24.07", "fp32 gradient accumulation", (True, True, False)),
        ("NeMo/Megatron-Core (NeMo 25.02)", "", (False, True, True)),
        ("NeMo (MLPerf v3.1)", "", (False, True, False)),
        ("Megatron-Bridge (NeMo 26.06)", "", (False, True, True)),
        # The library's own recipes, not those for performance.
        ("Megatron-Bridge 0.1.0rc4 (nemo:25.09)", "", (True, False, False)),
        ("Megatron-LM (2025)", "", (True, False, False)),
    ],
)
def test_what_nvidia_s_recipes_keep_in_16_bits(label, notes, kept):
    software = framework(framework=label, notes=notes, dtype="bf16")
    facts = ("accumulate_grads_fp32", "master_remainders", "expandable_segments")
    assert tuple(getattr(software, fact) for fact in facts) == kept


def test_unknown_software_is_eager_pytorch_whose_overlap_is_not_believed():
    outcome = replayable(framework="our own trainer", dist_optimizer="fsdp", grad_overlap=None)
    found = outcome.job.framework
    assert (found.name, found.fusion, found.fused_wgrad) == ("undeclared", "eager", False)
    assert not found.overlap_p2p
    assert not found.overlap_tp_gradients
    assert not outcome.job.recipe.overlap_grad_reduce
    assert any("'our own trainer' is not declared" in text for text in outcome.assumptions)
    stated = replayable(framework="our own trainer", notes="p2p overlap on; overlap_grad_reduce")
    assert stated.job.framework.overlap_p2p
    assert stated.job.recipe.overlap_grad_reduce


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("nanotron (Dec 2024)", "nanotron"),
        ("InternEvo", "internevo"),
        ("InternLM-Train 2023", "internevo"),
        ("NeMo AutoModel (PyTorch FSDP2)", "nemo_automodel"),
        ("NeMo 25.06's HFAutoModelForCausalLM", "huggingface"),
        ("HF Trainer, accelerate + FSDP", "huggingface"),
        ("Megatron-LM through Hugging Face Accelerate (2025)", "megatron_core"),
        ("torchtune 0.4", "torch_fsdp2"),
        ("llm.c (C/CUDA), 2024", "llm_c"),
        ("PyTorch FSDP2", "torch_fsdp2"),
        ("PyTorch FSDP", "torch_eager"),
        ("MosaicML llm-foundry", "llm_foundry"),
        ("MaxText (JAX 0.4)", "jax_xla"),
        ("Colossal-AI", "huggingface"),
        ("Meta internal 4D parallel (FSDP ZeRO-2-like)", "meta_llama3"),
        ("GPT-NeoX 2.0", "megatron_deepspeed"),
        ("Megatron-DeepSpeed", "megatron_deepspeed"),
        ("Megatron-Core v0.12", "megatron_core"),
        ("mcore r0.9", "megatron_core"),
        ("mcore 0.9", "megatron_core"),
        ("Megatron core_v0.9.0", "megatron_core"),
        ("Megatron-LM core_v0.6.0", "megatron_core"),
        ("Megatron-LM (v2.x, 2021)", "megatron_2021"),
        ("PyTorch 2.3", "torch_eager"),
        ("TRL SFTTrainer", "huggingface"),
        ("ms-swift 3.2", "huggingface"),
        ("Megatron-SWIFT (2025)", "megatron_core"),
        ("NVIDIA MLPerf v5.1 submission", "megatron_core"),
        ("nanochat", "torch_compile"),
        ("FlagScale", "megatron_core"),
        ("EasyDeL", "jax_xla"),
        ("ServiceNow/Fast-LLM", "megatron_core"),
        ("sail-sg/zero-bubble-pipeline-parallelism", "megatron_core"),
        ("megatron_core 0.12.1rc2", "megatron_core"),
        ("AIAK-Training-LLM", "megatron_core"),
        ("snowflakedb/ArcticTraining", "deepspeed"),
        ("NVIDIA/dgxc-benchmarking v25.05", "megatron_core"),
        ("Modalities (FSDP2)", "torch_fsdp2"),
        ("HAI-LLM (DeepSeek, 2024)", "megatron_core"),
    ],
)
def test_labels_name_declared_software(label, name):
    outcome = replayable(framework=label, notes="")
    assert outcome.job.framework.name == name
    assert any(text.startswith(f"software: {name}, of") for text in outcome.assumptions)


@pytest.mark.parametrize(
    ("label", "gpu", "notes", "attention"),
    [
        ("our trainer (PyTorch 2.11, FSDP2)", "H100-80GB-SXM", "", "flash"),
        ("our trainer (PyTorch 2.11, FSDP2)", "H100-80GB-SXM", "SDPA", "flash"),
        ("our trainer (PyTorch 2.11, FSDP2)", "H100-80GB-SXM", "FlashAttention-2", "flash2"),
        ("our trainer (PyTorch 2.10, FSDP2)", "H100-80GB-SXM", "", "flash2"),
        ("our trainer (PyTorch 2.11, FSDP2)", "A100-80GB-SXM", "", "flash2"),
        ("TorchTitan (September 2025)", "H100-80GB-SXM", "", "flash2"),
        ("TorchTitan (November 2025)", "H100-80GB-SXM", "", "flash"),
        ("PaddlePaddle 2.5.1 (PaddleNLP)", "A100-80GB-SXM", "flash attention", "flash1"),
        ("PaddlePaddle 2.5.2", "A100-80GB-SXM", "flash attention", "flash2"),
        # Nothing fused before a library had it.
        ("Hugging Face Transformers 4.35", "A100-80GB-SXM", "", "unfused"),
        ("Hugging Face Transformers 4.37", "A100-80GB-SXM", "", "flash2"),
        ("transformers==4.40.1 with DeepSpeed", "A100-80GB-SXM", "", "flash2"),
        ("PyTorch 1.13 FSDP", "A100-80GB-SXM", "", "unfused"),
        ("PyTorch 2.0 FSDP", "A100-80GB-SXM", "", "flash2"),
        ("PyTorch 1.13 FSDP, FlashAttention", "A100-80GB-SXM", "", "flash1"),
    ],
)
def test_the_kernel_behind_a_library_s_attention(label, gpu, notes, attention):
    assert framework(framework=label, gpu=gpu, notes=notes).attention == attention


@pytest.mark.parametrize(
    ("label", "notes", "fusion", "fused_norm"),
    [
        ("Megatron-LM (October 2023)", "", "eager", False),
        ("Megatron-LM (October 2023)", "Apex's RMSNorm kernel", "eager", True),
        ("Megatron-LM (February 2024)", "", "eager", False),
        ("Megatron-LM (February 2024)", "Transformer Engine layers", "fused", True),
        ("Megatron-LM (June 2024)", "", "fused", True),
        ("Megatron-DeepSpeed (2024-05)", "", "eager", True),
        ("NeMo Megatron 2023", "", "fused", True),
    ],
)
def test_when_megatron_had_kernels_for_llama_s_parts(label, notes, fusion, fused_norm):
    found = framework(framework=label, notes=notes)
    assert (found.fusion, found.fused_norm) == (fusion, fused_norm)
    plain = framework(framework=label, gated_mlp=0)
    assert plain.fusion == "fused"
    assert (plain.rope == "complex") == ("October 2023" in label)


def test_experts_were_megatron_core_s_before_its_dense_models():
    experts = {"num_experts": 8, "topk": 2, "moe_ffn_hidden": 14336, "ep": 4}
    found = framework(framework="Megatron-LM (March 2024)", **experts)
    assert (found.fusion, found.fused_norm) == ("fused", True)


@pytest.mark.parametrize(
    "label",
    [
        "DeepSpeed 0.14 (Hugging Face Transformers)",
        "transformers + DeepSpeed ZeRO-3",
        "Hugging Face Transformers 4.12 with DeepSpeed, 2021",
    ],
)
def test_transformers_models_run_under_deepspeed_s_engine(label):
    assert framework(framework=label).name == "deepspeed"
    outcome = replayable(framework=label, num_experts=8, topk=2, moe_ffn_hidden=14336, ep=4)
    assert outcome.job.framework.name == "deepspeed"
    assert any("deepspeed is declared without experts" in text for text in outcome.assumptions)


@pytest.mark.parametrize(
    ("dated", "facts"),
    [
        (" 0.14", (True, False, "")),
        (" (July 2026)", (False, True, "half")),
        ("", (False, True, "half")),
    ],
)
def test_deepspeed_s_experts_are_those_of_transformers_of_the_year(dated, facts):
    experts = {"num_experts": 8, "topk": 2, "moe_ffn_hidden": 14336, "ep": 4}
    found = framework(framework=f"DeepSpeed{dated} with Hugging Face Transformers", **experts)
    assert (found.loops_experts, found.stacks_experts, found.written_dispatch) == facts


def test_scripts_around_megatron_core_that_autocast_fuse_nothing():
    notes = "autocast to bf16 over fp32 weights"
    found = framework(framework="Megatron-LM (2026)", notes=notes)
    assert (found.autocast, found.fusion, found.fused_wgrad) == (True, "eager", False)


def test_a_deterministic_mode_is_told():
    statement = replayable(notes="deterministic mode")
    assert any("deterministic" in text for text in statement.assumptions)


def test_torchtitan_rotates_by_complex_numbers_and_repeats_keys():
    titan = framework(framework="TorchTitan (PyTorch FSDP2)", notes="Dec 2024; eager")
    assert (titan.name, titan.rope, titan.repeats_kv) == ("torchtitan", "complex", True)
    for label, year, repeats in (
        ("TorchTitan (PyTorch FSDP2)", 2026, False),
        ("Hugging Face Transformers", 2024, True),
        ("Hugging Face Transformers", 2026, False),
    ):
        assert framework(framework=label, notes=f"May {year}").repeats_kv == repeats
    plain = framework(framework="fms-fsdp (PyTorch FSDP1 + compile)")
    assert (plain.name, plain.rope, plain.repeats_kv) == ("torch_compile", "halves", False)


def test_software_read_as_another_keeps_its_own_facts():
    forge = framework(framework="KempnerForge (PyTorch FSDP2)", dist_optimizer="fsdp2")
    other = framework(framework="PyTorch FSDP2", dist_optimizer="fsdp2")
    assert forge.name == other.name == "torch_fsdp2"
    assert (forge.inputs_apart, forge.whole_embedding) == (True, True)
    assert (other.inputs_apart, other.whole_embedding) == (False, False)
    paddle = framework(framework="PaddlePaddle 2.5.1", dist_optimizer="zero2")
    eager = framework(framework="PyTorch FSDP", dist_optimizer="zero2")
    for fact in ("inputs_apart", "separate_projections", "waits_for_reductions"):
        assert (getattr(paddle, fact), getattr(eager, fact)) == (True, False)


def test_fsdp2_reduces_in_fp32_and_copies_what_it_gathers():
    titan = framework(framework="TorchTitan (PyTorch FSDP2)", dist_optimizer="fsdp2")
    assert (titan.reduce_grads_fp32, titan.copies_gathered) == (True, True)
    first = framework(framework="fms-fsdp (PyTorch FSDP1 + compile)", dist_optimizer="fsdp")
    assert (first.reduce_grads_fp32, first.copies_gathered) == (False, False)


def test_megatron_had_flash_attention_by_default_later_than_tuned_stacks():
    assert framework(framework="Megatron-LM (2023 commit)").attention == "unfused"
    own = framework(framework="MegaScale", source="MegaScale (NSDI 2024, arXiv 2402.15627)")
    assert own.attention == "flash2"


@pytest.mark.parametrize(
    ("nodes", "degrees", "notes", "polls"),
    [
        (64, {"tp": 8, "pp": 2, "dp": 32}, "", True),
        (64, {"tp": 8, "pp": 1, "dp": 64}, "", False),
        (16, {"tp": 32, "pp": 4, "dp": 1}, "", True),
        (16, {"tp": 8, "pp": 4, "dp": 4}, "", False),
        (64, {"tp": 8, "pp": 2, "dp": 32}, "best configuration found per cell", False),
    ],
)
def test_nanotron_polled_in_its_largest_pipelines(nodes, degrees, notes, polls):
    given = {"num_gpus": 8 * nodes, "num_query_groups": 32, "global_batch": 256, "micro_batch": 1}
    found = framework(framework="nanotron", notes=notes, **given, **degrees)
    assert found.name == ("nanotron_polling" if polls else "nanotron")
    assert found.p2p_poll_s == (0.5 if polls else 0)


@pytest.mark.parametrize(
    ("label", "notes", "kept"),
    [
        ("Megatron-Bridge 26.02", "", True),
        ("NeMo (MLPerf v4.1)", "", True),
        ("NeMo (MLPerf v3.1)", "", False),
        ("NeMo/Megatron-Core (NeMo 24.09)", "", True),
        ("NeMo 24.07", "", False),
        ("Megatron-LM", "", False),
        ("TorchTitan (PyTorch FSDP2)", "float8 tensorwise", False),
        ("TorchTitan (PyTorch FSDP2)", "float8 tensorwise linears + fp8 all-gather", True),
    ],
)
def test_parameters_in_8_bits_are_what_recipes_of_the_time_set(label, notes, kept):
    found = framework(framework=label, notes=notes)
    assert ("fp8_current" in found.fp8_param_gather) is kept
    assert "fp8_block" not in found.fp8_param_gather or "all-gather" in notes


@pytest.mark.parametrize(
    ("label", "model", "fusion"),
    [
        ("Megatron-Bridge 0.2.0", "Qwen3-8B", "eager"),
        ("Megatron-Bridge 0.2.0", "Llama-3-8B", "fused"),
        ("Megatron-Bridge (NeMo 26.02)", "Qwen3-8B", "fused"),
        # A year is no edition of those for performance.
        ("Megatron-Bridge (2026)", "OLMoE-1B-7B", "eager"),
    ],
)
def test_megatron_bridge_s_library_asks_for_no_kernels_of_some_models_parts(label, model, fusion):
    software = framework(framework=label, model=model, gated_mlp=1)
    assert software.fusion == fusion
    assert software.cross_entropy == ("in_place" if fusion == "fused" else "fp32")


@pytest.mark.parametrize(
    ("label", "model", "fused"),
    [
        ("Megatron-Bridge 0.4.2", "DeepSeek-V3", False),
        ("Megatron-Bridge 0.4.2", "Llama-3-8B", True),
        ("Megatron-Bridge (NeMo 26.04)", "DeepSeek-V3", True),
    ],
)
def test_megatron_bridge_s_library_turns_few_models_positions_by_a_kernel(label, model, fused):
    software = framework(framework=label, model=model, gated_mlp=1)
    assert (software.fusion, software.fused_rope) == ("fused", fused)


def test_lightnings_trainer_runs_modules_of_its_own():
    lit = framework(framework="LitGPT (PyTorch Lightning), PyTorch 2.4, May 2024")
    assert (lit.name, lit.separate_projections, lit.repeats_kv) == ("torch_eager", False, True)
    assert framework(framework="llama-recipes (PyTorch FSDP), 2023").name == "huggingface"


@pytest.mark.parametrize(
    ("label", "sharding", "stops"),
    [
        ("Hugging Face Transformers, 2024", "zero3", False),
        ("Hugging Face Transformers, 2024", "fsdp", True),
        ("Hugging Face Transformers (March 2026)", "zero3", True),
        ("DeepSpeed", "zero3", False),
        ("TorchTitan (July 2025), no torch.compile", "fsdp", True),
        ("TorchTitan (September 2025), no torch.compile", "fsdp", False),
        ("TorchTitan (September 2025), torch.compile", "fsdp", True),
    ],
)
def test_checkpoints_that_run_layers_again_whole(label, sharding, stops):
    cells = {"framework": label, "dist_optimizer": sharding, "pp": 1, "dp": 32}
    assert framework(**cells).recompute_stops_early is stops


@pytest.mark.parametrize(
    ("notes", "prefetches"),
    [("", True), ("full_shard auto_wrap", False), ("size_based_auto_wrap_policy", True)],
)
def test_words_of_trainers_arguments_say_that_nothing_is_prefetched(notes, prefetches):
    found = framework(framework="Hugging Face Transformers", notes=notes, dist_optimizer="fsdp")
    assert found.prefetches_backward is prefetches


@pytest.mark.parametrize(
    ("label", "sharding", "wraps"),
    [
        ("Hugging Face Transformers, 2024", "fsdp", True),
        ("Hugging Face Transformers, 2024", "zero3", False),
        ("Hugging Face TRL SFTTrainer (2026), FSDP2", "fsdp", False),
        ("ATorch (November 2023): PyTorch FSDP, Hugging Face transformers", "fsdp", False),
        ("torchtune, July 2024", "fsdp", True),
        ("torchtune, October 2024", "fsdp", False),
    ],
)
def test_adapters_are_units_of_the_first_fsdp(label, sharding, wraps):
    assert framework(framework=label, dist_optimizer=sharding).wraps_adapters is wraps


@pytest.mark.parametrize(
    ("label", "notes", "reenters"),
    [
        ("Hugging Face TRL SFTTrainer, 2024", "gradient checkpointing", True),
        ("Hugging Face TRL SFTTrainer, 2024", "activation checkpointing", False),
        ("Hugging Face TRL SFTTrainer (March 2026)", "gradient checkpointing", False),
        ("Hugging Face Transformers, 2024", "gradient checkpointing", False),
    ],
)
def test_trainers_own_checkpoints_reentered_around_units_of_fsdp(label, notes, reenters):
    found = framework(framework=label, notes=notes, dist_optimizer="fsdp", pp=1, dp=32)
    assert found.gathers_to_recompute is reenters
    assert found.recompute_stops_early is not reenters
    second = framework(framework=label, notes=notes, dist_optimizer="fsdp2", pp=1, dp=32)
    assert second.leaves_regathered is reenters
    assert not found.leaves_regathered


@pytest.mark.parametrize("label", ["Hugging Face", "DeepSpeed"])
def test_gpt_2_of_transformers_projects_at_once(label):
    assert framework(framework=label).separate_projections
    assert not framework(framework=label, gated_mlp=0).separate_projections


@pytest.mark.parametrize(
    ("software", "year", "gated", "loss"),
    [
        # The loss of GPTs took logits as they were; later, and elsewhere, on an fp32 copy.
        ("with DeepSpeed", 2023, 0, "uncast"),
        ("with DeepSpeed", 2025, 0, "eager"),
        ("with Accelerate", 2023, 0, "eager"),
        # Logits were copied without their last token, before labels were shifted instead.
        ("with DeepSpeed", 2023, 1, "shifted"),
        ("with Accelerate", 2023, 1, "shifted"),
        ("with Accelerate", 2025, 1, "eager"),
    ],
)
def test_the_loss_of_transformers(software: str, year: int, gated: int, loss: str) -> None:
    label = f"Hugging Face transformers {software}, {year}"
    assert framework(framework=label, gated_mlp=gated).cross_entropy == loss


def test_gpt_2_of_transformers_had_no_fused_attention_yet():
    cells = {"gpu": "A100-80GB-SXM", "model": "GPT-2", "gated_mlp": 0, "notes": ""}
    found = framework(framework="transformers==4.40.1 with DeepSpeed", **cells)
    assert found.attention == "unfused"


def test_eager_models_may_have_transformer_engine_s_layers_and_their_pace():
    pace = framework(framework="Megatron-Core").host_launch_s
    labels = {"Hugging Face Transformers": "huggingface", "PyTorch DDP": "torch_eager"}
    for label, name in (labels | {"PyTorch FSDP2": "torch_fsdp2"}).items():
        own = framework(framework=f"Transformer Engine layers in {label}, 2024")
        assert (own.name, own.fusion, own.attention) == (name, "fused", "flash")
        assert (own.host_launch_s, own.host_forward_s) == (pace, 0.0)
        assert not own.separate_projections
        assert framework(framework=f"{label}, 2024").fusion == "eager"
