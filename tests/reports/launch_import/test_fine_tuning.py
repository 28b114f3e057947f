"""Launches of tools around Transformers' Trainer: LLaMA-Factory, ms-swift, TRL."""

import re

import pytest

from tests.reports.launch_import.samples import (
    AXOLOTL,
    framework,
    read,
    read_written,
    written,
)
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.tuning import LORA_TARGETS, Dpo, Lora

SWIFT = (
    "swift sft --model llama3_8b --dataset 'a#500' 'b' --torch_dtype bfloat16 --max_length 2048"
)
FACTORY = "llamafactory-cli train --model_name_or_path llama3_8b --finetuning_type lora --bf16"
PEFT = "python trl/scripts/sft.py --model_name_or_path llama3_8b --use_peft --lora_r 8"


@pytest.mark.parametrize(
    ("start", "fields", "lora", "dpo"),
    [
        ("trl sft --num_processes 4", {"recompute": "full"}, None, None),
        ("trl dpo --accelerate_config zero3 --use_peft", {"zero_stage": 3}, 16, Dpo()),
        ("trl sft --accelerate_config fsdp2", {"zero_stage": 3}, None, None),
        ("accelerate launch --num_processes 4 trl/scripts/dpo.py --lora_r 4", {}, 4, Dpo()),
    ],
)
def test_trl(tmp_path, start, fields, lora, dpo):
    written(tmp_path, {"per_device_train_batch_size": 2, "learning_rate": 1.0e-5}, "own.yaml")
    end = "--model_name_or_path llama3_8b --config own.yaml --dataset_name a/b"
    found = read_written(tmp_path, f"{start} {end}")
    training = found.question.training
    assert (found.framework, found.recipe.micro_batch) == ("TRL", 2)
    assert {name: getattr(found.recipe, name) for name in fields} == fields
    assert (training.lora and training.lora.rank, training.dpo) == (lora, dpo)
    assert (training.precision, training.sequence_length) == ("bf16", 1024)
    assert (found.question.cluster.num_gpus == 4) == ("--num_processes" in start)
    assert not found.reading.unknown


def test_llama_factory_recomputes_and_adapts_unless_told(tmp_path):
    table = {"model_name_or_path": "llama3_8b", "finetuning_type": "lora", "bf16": True}
    written(tmp_path, table, "sft.yaml")
    script = (
        "FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=8 llamafactory-cli train sft.yaml lora_rank=4"
    )
    found = read_written(tmp_path, script)
    training = found.question.training
    assert (found.recipe.recompute, found.recipe.micro_batch) == ("full", 8)
    assert (training.lora, training.sequence_length) == (Lora(4, LORA_TARGETS), 2048)
    assert found.question.cluster.num_gpus == 16
    assert any("gradient_checkpointing true" in note for note in found.reading.notes)
    table |= {"finetuning_type": "full", "disable_gradient_checkpointing": True, "pure_bf16": True}
    found = read_written(tmp_path, table, "full.yaml")
    assert (found.recipe.recompute, found.question.training.lora) == ("none", None)
    assert found.question.training.optimizer == "adam_pure_bf16"


@pytest.mark.parametrize(
    ("start", "end", "batch", "fields"),
    [
        ("", "", 16, {"zero_stage": 0, "recompute": "full"}),
        ("NPROC_PER_NODE=4 ", " --deepspeed zero2", 16, {"zero_stage": 2}),
        ("NPROC_PER_NODE=4 ", " --gradient_accumulation_steps $(expr 64 / 4)", 64, {}),
        (
            "NNODES=2 NPROC_PER_NODE=8 ",
            " --deepspeed zero3_offload --per_device_train_batch_size 2",
            32,
            {"zero_stage": 3, "optimizer_offload": 100, "micro_batch": 2},
        ),
        ("", " --gradient_checkpointing false", 16, {"recompute": "none"}),
    ],
)
def test_swift_sft(tmp_path, start, end, batch, fields):
    found = read_written(tmp_path, f"{start}{SWIFT}{end}\nswift infer --model x\n")
    training = found.question.training
    assert (found.framework, training.global_batch_size) == ("ms-swift", batch)
    assert (training.lora, training.precision) == (Lora(8, LORA_TARGETS, 0.05), "bf16")
    assert {name: getattr(found.recipe, name) for name in fields} == fields
    assert not found.reading.unknown


def test_swift_sft_of_all_weights_and_of_pairs(tmp_path):
    script = f"{SWIFT} --train_type full".replace("swift sft", "swift rlhf --rlhf_type dpo")
    training = read_written(tmp_path, script).question.training
    assert (training.lora, training.dpo) == (None, Dpo())
    found = read_written(tmp_path, f"{script} --use_liger_kernel true")
    software = found.question.framework
    assert (software.cross_entropy, software.fused_norm) == ("pieces", True)
    assert software.fusion == "fused"
    assert not found.reading.not_modelled
    found = read_written(tmp_path, f"{script} --use_liger_kernel --torch_compile")
    assert found.question.framework.fusion == "compiled"


@pytest.mark.parametrize(
    ("tuner", "adapts", "assumed"),
    [
        ("llamapro", False, "every weight is trained"),
        ("vera", True, "adapters are plain ones of low rank"),
    ],
)
def test_what_is_no_lora_is_said(tmp_path, tuner, adapts, assumed):
    found = read_written(tmp_path, f"{SWIFT} --tuner_type {tuner}")
    assert (found.question.training.lora is not None) == adapts
    assert (f"fine-tuning called {tuner}", assumed) in found.reading.not_modelled


@pytest.mark.parametrize(
    ("fp32", "written"),
    [
        (True, [PEFT]),
        (True, [SWIFT]),
        (False, [f"{SWIFT} --lora_dtype bfloat16"]),
        (True, [FACTORY]),
        (False, [f"{FACTORY} --pure_bf16 true"]),
        (False, [f"{FACTORY} --use_unsloth true"]),
        (False, [AXOLOTL | {"adapter": "lora"}, "lora.yml"]),
        (True, [AXOLOTL | {"adapter": "lora", "lora_mlp_kernel": False}, "lora.yml"]),
    ],
)
def test_which_adapters_peft_casts(tmp_path, fp32, written):
    found = read_written(tmp_path, *written)
    assert found.question.framework.fp32_adapters == fp32
    assert not found.reading.unknown
    # Unsloth multiplies experts' adapters apart, and PEFT adds them to the stacked weights.
    assert found.question.framework.stacks_experts == ("unsloth" not in str(written))


@pytest.mark.parametrize(
    ("script", "kept"),
    [
        (f"{SWIFT} --quant_method bnb --quant_bits 4", "nf4_double"),
        (f"{SWIFT} --quant_bits 4 --bnb_4bit_use_double_quant false", "nf4"),
        (f"{SWIFT} --quantization_bit 0", "16bit"),
        (f"{FACTORY} --quantization_bit 8", "int8"),
        (f"{FACTORY} --quantization_bit 4 --double_quantization false", "nf4"),
        (f"{PEFT} --load_in_4bit", "nf4"),
        (f"{PEFT} --load_in_4bit --use_bnb_nested_quant", "nf4_double"),
        (f"{PEFT} --load_in_8bit", "int8"),
    ],
)
def test_what_weights_beside_adapters_are_kept_in(tmp_path, script, kept):
    found = read_written(tmp_path, script)
    assert found.question.training.lora.frozen_weights == kept
    assert not found.reading.not_modelled
    assert not found.reading.unknown


def test_weights_that_are_quantised_otherwise_are_said(tmp_path):
    found = read_written(tmp_path, f"{SWIFT} --quant_method hqq --quant_bits 3")
    said = [words for words, _ in found.reading.not_modelled]
    assert said == ["weights quantised by hqq", "weights in 3 bits"]
    assert found.question.training.lora.frozen_weights == "nf4_double"


@pytest.mark.parametrize("start", ["swift", "megatron"])
@pytest.mark.parametrize(
    ("more", "frozen", "elsewhere"),
    [
        ("--tuner_type lora", ("towers", "projectors"), False),
        ("--tuner_type lora --freeze_vit false", ("towers", "projectors"), True),
        ("--tuner_type lora_llm", (), False),
        ("--tuner_type full", ("towers", "projectors"), False),
        ("--tuner_type full --freeze_vit false", ("projectors",), False),
    ],
)
def test_towers_under_adapters(tmp_path, start, more, frozen, elsewhere):
    script = f"{start} sft --model qwen2_5_vl_7b --max_length 2048 --torch_dtype bfloat16 {more}"
    found = read_written(tmp_path, script)
    assert found.question.training.frozen == frozen
    said = [words for words, _ in found.reading.not_modelled]
    assert ("adapters in towers" in said) == elsewhere


@pytest.mark.parametrize("start", ["swift", "megatron"])
@pytest.mark.parametrize(
    ("kind", "packs", "length"),
    [("dpo", True, 1024), ("dpo", False, 2048), ("gkd", True, 2048)],
)
def test_a_pack_holds_both_sequences_of_a_pair(tmp_path, start, kind, packs, length):
    script = f"{SWIFT} --tuner_type full --packing {str(packs).lower()}"
    script = script.replace("swift sft", f"{start} rlhf --rlhf_type {kind}")
    found = read_written(tmp_path, script)
    assert found.question.training.sequence_length == length
    assert any("is one pair" in note for note in found.reading.notes) == (length == 1024)


@pytest.mark.parametrize(
    ("start", "seen"),
    [("CUDA_VISIBLE_DEVICES=0,1,2,3 ", 4), ("NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1 ", 0)],
)
def test_layers_over_the_gpus_of_one_process_are_said(tmp_path, start, seen):
    found = read_written(tmp_path, start + SWIFT)
    assert found.question.cluster.num_gpus == (1 if seen else 2)
    said = [words for words, _ in found.reading.not_modelled if "device_map" in words]
    assert [f"over the {seen} GPUs" in words for words in said] == [True] * bool(seen)


def test_megatron_sft(tmp_path):
    script = (
        "NPROC_PER_NODE=8 megatron sft --model llama3_8b --tensor_model_parallel_size 4 --lr 1e-5 "
        "--sequence_parallel true --recompute_granularity none --overlap_grad_reduce true "
        "--use_distributed_optimizer false --max_length 4096 --tuner_type lora --lora_rank 16 "
        "--packing true --no_save_optim true --of_nobody 3"
    )
    found = read_written(tmp_path, script)
    training = found.question.training
    assert found.framework == "ms-swift with Megatron"
    assert found.recipe == Recipe(tp=4, sp=True, zero_stage=0, overlap_grad_reduce=True)
    assert (training.global_batch_size, training.sequence_length) == (16, 4096)
    assert training.lora == Lora(16, LORA_TARGETS, 0.05)
    assert found.question.model.name == "llama3_8b"
    assert [each.argument for each in found.reading.unknown] == ["--of-nobody 3"]
    assert any("--packing" in words for words, _ in found.reading.not_modelled)


def test_experts_of_megatron_sft_are_whole_unless_told(tmp_path):
    degrees = "--tensor_model_parallel_size 2 --expert_model_parallel_size 8"
    script = f"NPROC_PER_NODE=8 megatron sft --model qwen3_30b_a3b {degrees}"
    recipe = read_written(tmp_path, script).recipe
    assert (recipe.tp, recipe.ep, recipe.etp) == (2, 8, 1)


@pytest.mark.parametrize(
    ("script", "model", "experts"),
    [
        (f"{SWIFT} --lora_dropout 0.05", "qwen3_30b_a3b", False),
        (FACTORY, "qwen3_30b_a3b", False),
        (f"{FACTORY} --lora_target gate_proj", "qwen3_30b_a3b", True),
        # Its shared experts' projections have the names of the others.
        (FACTORY, "deepseek_v3", True),
        (f"{PEFT} --lora_target_modules all-linear", "qwen3_30b_a3b", True),
        (FACTORY, "llama3_8b", True),
    ],
)
def test_tools_that_look_for_modules_find_no_stacked_experts(tmp_path, script, model, experts):
    found = read_written(tmp_path, script.replace("llama3_8b", model))
    assert found.question.model.name == model
    assert ("linear_fc1" in found.question.training.lora.targets) == experts


def test_trl_drops_inputs_of_adapters_unless_told(tmp_path):
    for says, dropout in (("", 0.05), (" --lora_dropout 0", 0.0)):
        assert read_written(tmp_path, PEFT + says).question.training.lora.dropout == dropout


def test_experts_of_megatron_sft_have_adapters_of_their_own(tmp_path):
    script = "NPROC_PER_NODE=8 megatron sft --model qwen3_30b_a3b --tuner_type lora"
    core = framework("megatron_core")
    assert core.shares_expert_adapters
    found = read(written(tmp_path, script), ("framework",), framework=core)
    assert not found.question.framework.shares_expert_adapters


def test_a_whole_batch_of_deepspeed_stands_beside_a_tool(tmp_path):
    written(tmp_path, '{"train_batch_size": 96, "zero_optimization": {"stage": 2}}', "ds.json")
    script = f"NPROC_PER_NODE=4 {SWIFT} --deepspeed ds.json"
    found = read_written(tmp_path, script)
    assert found.question.training.global_batch_size == 96


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        (f"{SWIFT} --tuner_type lroa", "--tuner_type", "'lora'"),
        (SWIFT.replace("bfloat16", "bf61"), "--torch_dtype", "'bf16'"),
        (f"{SWIFT} --attn_impl eagr", "--attn_impl", "'eager'"),
        (f"{SWIFT} --gradient_checkpointing flase", "--gradient_checkpointing", "'false'"),
        (f"{SWIFT} --lora_rank", "--lora_rank", "has no value"),
        (f"{SWIFT} --lora_rank eight", "--lora_rank", "not a whole number"),
        (f"{SWIFT} --deepspeed zero4", "--deepspeed", "no stage of ZeRO"),
        (f"{SWIFT} --fsdp_version 3", "--fsdp_version", "1, 2"),
        (f"NPROC_PER_NODE=eight {SWIFT}", "NPROC_PER_NODE", "whole number >= 1"),
        (f"NPROC_PER_NODE=0 {SWIFT}", "NPROC_PER_NODE", "whole number >= 1"),
        ("megatron sft --model llama3_8b --tuner_type lroa", "--tuner_type", "'lora'"),
    ],
)
def test_what_was_mistyped_is_refused_by_the_name_it_was_given_under(
    tmp_path, given, field, words
):
    with pytest.raises(InputError, match=re.escape(words)) as refused:
        read_written(tmp_path, given)
    assert refused.value.field == field


def test_adapters_of_no_rank_are_not_those_of_the_default(tmp_path):
    found = read_written(tmp_path, f"{SWIFT} --tuner_type lora --lora_rank 0")
    assert found.question.training.lora.rank == 0  # which a training refuses


def test_a_checkpoint_of_megatron_names_no_model(tmp_path):
    found = read_written(tmp_path, "megatron pt --load mcore")
    assert "no --model: the model is that of model=" in found.reading.notes


def test_a_preset_of_megatron_sft_trains_everything(tmp_path):
    found = read_written(tmp_path, "NPROC_PER_NODE=8 megatron pt --model llama3_8b")
    assert found.recipe == Recipe(zero_stage=1, recompute="selective")
    assert found.question.training.lora is None


OPENRLHF = {
    "old": "--pretrain llama3_8b --train_batch_size 128 --micro_train_batch_size 2 --max_len 4096 "
    "--zero_stage 3 --bf16 --gradient_checkpointing --flash_attn --learning_rate 5e-6",
    "new": "--model.model_name_or_path llama3_8b --train.batch_size 128 --data.max_len 4096 "
    "--train.micro_batch_size 2 --ds.zero_stage 3 --ds.param_dtype bf16 --adam.lr 5e-6 "
    "--model.gradient_checkpointing_enable --ds.attn_implementation flash_attention_2",
}


def test_openrlhfs_own_scripts(tmp_path):
    """Their command stands in a here-document."""
    command = "openrlhf.cli.train_sft " + next(iter(OPENRLHF.values()))
    start = "if [[ ${1} != slurm ]]; then\n    deepspeed --module $training_commands\nfi\n"
    script = f"read -r -d '' training_commands <<EOF\n{command}\nEOF\n\n{start}"
    found = read_written(tmp_path, script, "train_sft.sh")
    straight = read_written(tmp_path, f"deepspeed --module {command}")
    assert found.framework == "OpenRLHF"
    assert (found.question, found.recipe) == (straight.question, straight.recipe)


@pytest.mark.parametrize("names", OPENRLHF)
@pytest.mark.parametrize(("trains", "dpo"), [("sft", None), ("dpo", Dpo())])
def test_openrlhfs_commands(tmp_path, names, trains, dpo):
    command = f"deepspeed --num_nodes 2 --num_gpus 8 --module openrlhf.cli.train_{trains} "
    found = read_written(tmp_path, command + OPENRLHF[names])
    question, training = found.question, found.question.training
    assert (found.framework, question.framework.name) == ("OpenRLHF", "deepspeed")
    assert (question.model.name, question.cluster.num_gpus) == ("llama3_8b", 16)
    assert found.recipe == Recipe(micro_batch=2, zero_stage=3, recompute="full")
    assert (training.global_batch_size, training.sequence_length) == (128, 4096)
    assert (training.precision, training.dpo, training.lora) == ("bf16", dpo, None)
    assert not found.reading.unknown


ADAPTER = {
    "base_model_name_or_path": "llama3_8b",
    "peft_type": "LORA",
    "r": 16,
    "lora_dropout": 0.05,
    "target_modules": ["q_proj", "up_proj"],
    "use_dora": False,
    "modules_to_save": None,
}


@pytest.mark.parametrize(
    ("more", "lora", "said"),
    [
        ({}, Lora(16, ("linear_qkv", "linear_fc1"), 0.05), []),
        (
            {"target_modules": "all-linear", "use_dora": True},
            Lora(16, LORA_TARGETS, 0.05, dora=True),
            [],
        ),
        (
            {"peft_type": "PREFIX_TUNING", "r": None},
            Lora(8, ("linear_qkv", "linear_fc1"), 0.05),
            ["fine-tuning called prefix_tuning"],
        ),
    ],
)
def test_an_adapters_own_configuration(tmp_path, more, lora, said):
    found = read_written(tmp_path, ADAPTER | more, "adapter_config.json")
    assert (found.framework, found.question.training.lora) == ("Hugging Face Trainer", lora)
    assert found.question.model.name == "llama3_8b"
    assert [words for words, _ in found.reading.not_modelled] == said
    assert not found.reading.unknown


@pytest.mark.parametrize(
    ("optim", "optimizer", "in_one_pass", "embeddings"),
    [
        ("adamw_torch", "adam", False, "layers"),
        ("adamw_torch_fused", "adam", True, "layers"),
        ("adamw_8bit", "adam_8bit", False, "layers"),
        ("adamw_bnb_8bit", "adam_8bit", True, "layers"),
        ("paged_adamw_8bit", "adam_8bit", True, "layers"),
        ("paged_adamw_32bit", "adam", True, "layers"),
        ("adamw_torch_8bit", "adam_8bit", False, "all"),
        ("adamw_torch_4bit", "adam_4bit", False, "all"),
        ("ao_adamw_fp8", "adam_8bit", False, "all"),
    ],
)
def test_what_adam_keeps(tmp_path, optim, optimizer, in_one_pass, embeddings):
    found = read_written(tmp_path, f"{FACTORY} --optim {optim}")
    framework = found.question.framework
    assert found.question.training.optimizer == optimizer
    assert (framework.fused_optimizer, framework.moments_8bit) == (in_one_pass, embeddings)
    assert not found.reading.not_modelled
    notes = " ".join(found.reading.notes)
    assert ("paged" in optim) == ("moments lie on the GPU" in notes)


@pytest.mark.parametrize(
    ("named", "in_one_pass"), [('"optimizer": {"type": "AdamW"}, ', True), ("", False)]
)
def test_an_optimizer_that_deepspeed_is_told_is_its_own(tmp_path, named, in_one_pass):
    written(tmp_path, f'{{{named}"zero_optimization": {{"stage": 2}}}}', "ds.json")
    found = read_written(tmp_path, f"{FACTORY} --optim adamw_torch --deepspeed ds.json")
    assert found.question.framework.fused_optimizer == in_one_pass
    assert not found.reading.not_modelled
