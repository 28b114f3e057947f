"""Recipes of torchtune: their configurations, and the commands that name them."""

import pytest

from tests.reports.launch_import.samples import read, read_written, written
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.tuning import LORA_TARGETS, Dpo, Lora

MODEL = "torchtune.models.llama3_1."
FULL = {
    "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": None},
    "dataset": {"_component_": "torchtune.datasets.alpaca_cleaned_dataset", "packed": False},
    "model": {"_component_": f"{MODEL}llama3_1_8b"},
    "checkpointer": {"checkpoint_dir": "/nowhere/Llama-3.1-8B/", "model_type": "LLAMA3"},
    "batch_size": 2,
    "batch_size_val": "${batch_size}",
    "gradient_accumulation_steps": 8,
    "optimizer": {"_component_": "torch.optim.AdamW", "fused": True, "lr": 2e-5},
    "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"},
    "enable_activation_checkpointing": True,
    "compile": False,
    "dtype": "bf16",
}
LORA = {
    "_component_": f"{MODEL}lora_llama3_1_8b",
    "lora_attn_modules": ["q_proj", "v_proj", "output_proj"],
    "apply_lora_to_mlp": True,
    "lora_rank": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.1,
}


def test_a_configuration(tmp_path):
    found = read_written(tmp_path, FULL, "run.yaml")
    training, world = found.question.training, found.question.cluster.num_gpus
    assert (found.framework, found.question.model.name) == ("torchtune", "llama3_8b")
    assert found.recipe == Recipe(micro_batch=2, zero_stage=3, recompute="full")
    assert training.global_batch_size == 2 * 8 * world
    assert (training.precision, training.optimizer) == ("bf16", "adam_pure_bf16")
    framework = found.question.framework
    assert (framework.name, framework.reduce_grads_fp32) == ("torch_fsdp2", False)
    assert not found.reading.unknown
    assert not found.reading.not_modelled


@pytest.mark.parametrize(
    ("more", "facts"),
    [
        ({"fused": True}, (True, 0)),
        ({"fused": False}, (False, 0)),
        ({"foreach": False}, (False, 8)),
        ({"foreach": True}, (False, 0)),
    ],
)
def test_how_an_optimizer_updates(tmp_path, more, facts):
    optimizer = {"_component_": "torch.optim.AdamW", "lr": 2e-5, **more}
    found = read_written(tmp_path, {**FULL, "optimizer": optimizer}, "run.yaml")
    framework = found.question.framework
    assert (framework.fused_optimizer, framework.optimizer_operations) == facts
    assert not found.reading.unknown


@pytest.mark.parametrize(
    ("component", "more", "lora", "assumed"),
    [
        ("lora_llama3_1_8b", {}, Lora(16, LORA_TARGETS, 0.1), []),
        ("qlora_llama3_1_8b", {}, Lora(16, LORA_TARGETS, 0.1, "nf4_double"), []),
        (
            "lora_llama3_1_8b",
            {"lora_attn_modules": ["q_proj"], "apply_lora_to_mlp": False},
            Lora(16, ("linear_qkv",), 0.1),
            [],
        ),
    ],
)
def test_adapters(tmp_path, component, more, lora, assumed):
    model = LORA | {"_component_": MODEL + component} | more
    found = read_written(tmp_path, FULL | {"model": model}, "run.yaml")
    assert found.question.training.lora == lora
    assert found.question.training.optimizer == "adam"
    assert [words for words, _ in found.reading.not_modelled] == assumed
    assert not found.reading.unknown


@pytest.mark.parametrize(
    ("command", "gpus", "stage"),
    [
        ("tune run --nproc_per_node 4 full_finetune_distributed", 4, 3),
        ("tune run --nnodes 2 --nproc_per_node 8 full_finetune_distributed", 16, 3),
        ("tune run full_finetune_single_device", 1, 0),
    ],
)
def test_a_command_and_what_it_sets_again(tmp_path, command, gpus, stage):
    written(tmp_path, FULL, "run.yaml")
    settings = "batch_size=4 tokenizer.max_seq_len=2048 compile=True"
    found = read_written(tmp_path, f"{command} --config run.yaml {settings}")
    training = found.question.training
    assert (found.question.cluster.num_gpus, found.recipe.zero_stage) == (gpus, stage)
    assert (found.recipe.micro_batch, training.sequence_length) == (4, 2048)
    assert training.global_batch_size == 4 * 8 * gpus
    assert found.question.framework.fusion == "compiled"
    assert not found.reading.unknown


def test_names_that_say_less_than_they_hold(tmp_path):
    command = "tune run --nproc_per_node 4 support/own.py --config=support/8B batch_size=4"
    written(tmp_path, FULL, "recipes/configs/support/8B.yaml")
    found = read_written(tmp_path, command)
    assert (found.recipe.micro_batch, found.question.cluster.num_gpus) == (4, 4)
    assert not found.reading.unknown
    assert not found.reading.not_modelled


def test_degrees(tmp_path):
    degrees = {"tensor_parallel_dim": 2, "data_parallel_replicate_dim": 2}
    degrees |= {"data_parallel_shard_dim": -1, "fsdp_reshard_after_forward": False}
    recipe = read_written(tmp_path, FULL | degrees, "run.yaml").recipe
    assert (recipe.tp, recipe.zero_stage, recipe.dp_shard) == (2, 2, 4)


def test_pairs_and_completions(tmp_path):
    pairs = FULL | {"loss": {"_component_": "torchtune.rlhf.loss.DPOLoss", "beta": 0.1}}
    assert read_written(tmp_path, pairs, "run.yaml").question.training.dpo == Dpo()
    policy = {name: each for name, each in FULL.items() if name != "model"}
    policy["policy_model"] = FULL["model"]
    (found, *_) = read_written(tmp_path, policy, "run.yaml").reading.not_modelled
    assert "completions that the model generates" in found[0]


def test_a_configuration_that_it_ships(tmp_path):
    script = written(tmp_path, "tune run full_finetune_single_device --config llama3_1/8B", "a.sh")
    with pytest.raises(InputError, match="tune cp llama3_1/8B"):
        read(script)
    written(tmp_path, FULL, "recipes/configs/llama3_1/8B.yaml")
    assert read(script).question.model.name == "llama3_8b"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"batch_size": "two"}, "--batch_size"),
        ({"dtype": "bf61"}, "--dtype"),
        ({"model": {"_component_": f"{MODEL}llama9_1b"}}, "model"),
    ],
)
def test_mistakes(tmp_path, settings, field):
    with pytest.raises(InputError) as caught:
        read_written(tmp_path, FULL | settings, "run.yaml")
    assert caught.value.field == field
