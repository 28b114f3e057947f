"""Files of axolotl."""

import pytest

from tests.reports.launch_import.samples import (
    AXOLOTL,
    FSDP2,
    read_written,
    written,
)
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.tuning import LORA_TARGETS, Dpo, Lora


def test_an_axolotl_file(tmp_path):
    found = read_written(tmp_path, AXOLOTL, "fft.yml")
    training, world = found.question.training, found.question.cluster.num_gpus
    assert (found.framework, found.question.model.name) == ("axolotl", "llama3_8b")
    assert found.question.framework.name == "huggingface"
    sharding = {"zero_stage": 0, "overlap_grad_reduce": True}
    assert found.recipe == Recipe(micro_batch=2, recompute="full", **sharding)
    assert (training.global_batch_size, training.sequence_length) == (2 * 4 * world, 4096)
    assert (training.precision, training.lora) == ("bf16", None)
    assert training.optimizer == "adam_pure_bf16"
    assert not found.reading.unknown
    assert [words for words, _ in found.reading.not_modelled] == ["--sample_packing true"]


@pytest.mark.parametrize(
    ("more", "fields"),
    [
        ({}, {"zero_stage": 0, "overlap_grad_reduce": True}),
        (FSDP2, {"zero_stage": 3}),
        (FSDP2 | {"dp_shard_size": 2, "dp_replicate_size": 8}, {"zero_stage": 3, "dp_shard": 2}),
        (FSDP2 | {"tensor_parallel_size": 2, "context_parallel_size": 4}, {"tp": 2, "cp": 4}),
        ({"fsdp": ["full_shard", "auto_wrap"]}, {"zero_stage": 3}),
        ({"gradient_checkpointing": False}, {"recompute": "none", "overlap_grad_reduce": True}),
        ({"deepspeed": {"zero_optimization": {"stage": 2}}}, {"zero_stage": 2}),
    ],
)
def test_how_axolotl_shards(tmp_path, more, fields):
    recipe = read_written(tmp_path, AXOLOTL | more, "fft.yml").recipe
    assert {name: getattr(recipe, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("more", "lora"),
    [
        ({"lora_target_linear": True}, LORA_TARGETS),
        ({}, ("linear_qkv",)),
        ({"lora_target_modules": ["self_attn.o_proj", "up_proj"]}, ("linear_proj", "linear_fc1")),
        (
            {"lora_target_modules": r"model.layers.[\d]+.(mlp|self_attn).(up|q)_proj"},
            ("linear_qkv", "linear_fc1"),
        ),
        (
            {"lora_target_modules": r".*\.layers\.(3|7)\.self_attn\.(k|o)_proj"},
            ("linear_qkv", "linear_proj"),
        ),
    ],
)
def test_what_axolotl_adapts(tmp_path, more, lora):
    table = AXOLOTL | {"adapter": "qlora", "lora_r": 32, "lora_dropout": 0.05} | more
    assert read_written(tmp_path, table, "lora.yml").question.training.lora == Lora(
        32, lora, 0.05, "nf4_double"
    )


@pytest.mark.parametrize(
    ("more", "loss", "optimizer"),
    [
        ({}, "eager", "adam_pure_bf16"),
        ({"liger_fused_linear_cross_entropy": True}, "pieces", "adam_pure_bf16"),
        ({"plugins": ["a.CutCrossEntropyPlugin"]} | FSDP2, "pieces", "adam"),
        ({"plugins": ["a.LigerPlugin"], "adapter": "lora"}, "eager", "adam"),
        ({"liger_cross_entropy": True}, "fp32_in_place", "adam_pure_bf16"),
    ],
)
def test_what_axolotl_loads_in_bf16_and_how_it_takes_the_loss(tmp_path, more, loss, optimizer):
    question = read_written(tmp_path, AXOLOTL | more, "fft.yml").question
    assert (question.framework.cross_entropy, question.training.optimizer) == (loss, optimizer)


@pytest.mark.parametrize(
    ("switches", "fusion", "fused_norm", "assumed"),
    [
        (("liger_rope", "liger_glu_activation"), "fused", False, []),
        (("liger_rope", "liger_swiglu", "liger_rms_norm"), "fused", True, []),
        (("liger_rms_norm",), "eager", True, []),
        (("liger_rope",), "eager", False, ["Liger's kernel of positions alone"]),
        (("liger_swiglu",), "eager", False, ["Liger's kernel of the activation alone"]),
    ],
)
def test_what_axolotl_has_liger_fuse(tmp_path, switches, fusion, fused_norm, assumed):
    found = read_written(tmp_path, AXOLOTL | dict.fromkeys(switches, True), "fft.yml")
    software = found.question.framework
    assert (software.fusion, software.fused_norm) == (fusion, fused_norm)
    said = [each for each, _ in found.reading.not_modelled if "liger" in each.lower()]
    assert said == assumed


def test_axolotl_on_pairs(tmp_path):
    assert (
        read_written(tmp_path, AXOLOTL | {"rl": "dpo"}, "dpo.yml").question.training.dpo == Dpo()
    )


@pytest.mark.parametrize(
    ("start", "gpus"),
    [
        ("axolotl train fft.yml", 16),
        ("CUDA_VISIBLE_DEVICES=0,1 axolotl train fft.yml", 2),
        ("accelerate launch --num_machines 1 --num_processes 4 -m axolotl.cli.train fft.yml", 4),
        ("accelerate launch --num_processes 2 -m axolotl.cli.train fft.yml", 2),
        ("torchrun --nproc_per_node 8 --nnodes 4 -m axolotl.cli.train fft.yml", 32),
    ],
)
def test_a_command_that_names_the_file(tmp_path, start, gpus):
    written(tmp_path, AXOLOTL, "fft.yml")
    found = read_written(tmp_path, f"{start} --micro-batch-size 1\n")
    assert (found.framework, found.recipe.micro_batch) == ("axolotl", 1)
    assert found.question.cluster.num_gpus == gpus


def test_axolotl_drops_nothing_beside_experts(tmp_path):
    says = {"adapter": "lora", "lora_dropout": 0.05, "lora_target_linear": True}
    for model, dropout in (("deepseek_v3", 0.0), ("qwen3_30b_a3b", 0.05), ("llama3_8b", 0.05)):
        found = read_written(tmp_path, AXOLOTL | says | {"base_model": model}, "lora.yml")
        assert found.question.training.lora.dropout == dropout


def test_no_sequences_are_no_batch(tmp_path):
    found = read_written(tmp_path, AXOLOTL | {"micro_batch_size": 0}, "fft.yml")
    assert found.question.training.global_batch_size == 0  # which a training refuses


def test_bitsandbytes_under_the_second_fsdp_is_refused(tmp_path):
    for name, kept in (("ao_adamw_8bit", "adam_8bit"), ("ademamix_8bit", "adam")):
        table = AXOLOTL | FSDP2 | {"optimizer": name}
        assert read_written(tmp_path, table, "a.yml").question.training.optimizer == kept
    with pytest.raises(InputError, match="adamw_torch_8bit"):
        read_written(tmp_path, AXOLOTL | FSDP2 | {"optimizer": "adamw_8bit"}, "a.yml")
    whole = read_written(tmp_path, AXOLOTL | {"optimizer": "adamw_8bit"}, "a.yml")
    assert whole.question.training.optimizer == "adam_8bit_pure_bf16"
