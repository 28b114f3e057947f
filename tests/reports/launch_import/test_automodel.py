"""Recipes of NeMo AutoModel: their configurations, and the command that names them."""

import pytest

from tests.reports.launch_import.samples import read_written, written
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.tuning import LORA_TARGETS, Lora

FULL = {
    "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
    "step_scheduler": {"global_batch_size": 64, "local_batch_size": 2, "max_steps": 100},
    "model": {
        "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
        "pretrained_model_name_or_path": "llama3_8b",
    },
    "distributed": {"strategy": "fsdp2", "dp_size": "none", "tp_size": 1, "cp_size": 1},
    "loss_fn": {"_target_": "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy"},
    "dataset": {"_target_": "nemo_automodel.components.datasets.llm.squad", "seq_length": 4096},
    "packed_sequence": {"packed_sequence_size": 0},
    "optimizer": {"_target_": "torch.optim.Adam", "lr": 1e-5},
}


def test_a_configuration(tmp_path):
    found = read_written(tmp_path, FULL, "run.yaml")
    training = found.question.training
    assert (found.framework, found.question.framework.name) == ("NeMo AutoModel", "nemo_automodel")
    assert found.question.model.name == "llama3_8b"
    assert found.recipe == Recipe(micro_batch=2, zero_stage=3)
    assert (training.global_batch_size, training.sequence_length) == (64, 4096)
    assert (training.precision, training.optimizer) == ("bf16", "adam_pure_bf16")
    assert not found.reading.unknown
    assert not found.reading.not_modelled


@pytest.mark.parametrize(
    ("own", "fields"),
    [
        ({"tp_size": 2, "sequence_parallel": True}, {"tp": 2, "sp": True}),
        ({"pp_size": 2, "pipeline": {"pp_microbatch_size": 1}}, {"pp": 2, "micro_batch": 1}),
        # MoEParallelizerConfig.reshard_after_forward; only an answer for all outranks it.
        ({"ep_size": 8}, {"ep": 8, "recompute": "none", "zero_stage": 2}),
        ({"ep_size": 8, "moe": {"reshard_after_forward": True}}, {"zero_stage": 3}),
        ({"reshard_after_forward": False}, {"zero_stage": 2, "overlap_param_gather": True}),
        (
            {"activation_checkpointing": True},
            {"recompute": "selective", "recompute_modules": "attn_out+core_attn+mlp+qkv"},
        ),
        ({"dp_replicate_size": 2}, {"zero_stage": 3, "dp_shard": 8}),
        ({"dp_replicate_size": 2, "pp_size": 2}, {"pp": 2, "zero_stage": 1, "dp_shard": 4}),
        ({"strategy": "ddp"}, {"zero_stage": 0}),
    ],
)
def test_degrees(tmp_path, own, fields):
    table = FULL | {"distributed": FULL["distributed"] | own}
    recipe = read_written(tmp_path, table, "run.yaml").recipe
    assert {name: getattr(recipe, name) for name in fields} == fields


@pytest.mark.parametrize(("batch", "several"), [(32, False), (64, True)])
def test_pipelines_that_run_dry_within_a_step_are_said(tmp_path, batch, several):
    changes = {
        "step_scheduler": {"global_batch_size": batch, "local_batch_size": 4},
        "distributed": FULL["distributed"] | {"pp_size": 2},
    }
    found = read_written(tmp_path, FULL | changes, "run.yaml")
    said = [words for words, _ in found.reading.not_modelled]
    assert ("several local batches a step under a pipeline" in said) == several


def test_layers_of_experts_are_one_checkpoint(tmp_path):
    own = FULL["distributed"] | {"ep_size": 8, "activation_checkpointing": True}
    model = FULL["model"] | {"pretrained_model_name_or_path": "qwen3_30b_a3b"}
    model["backend"] = {"dispatcher": "torch"}
    recipe = read_written(tmp_path, FULL | {"distributed": own, "model": model}, "run.yaml").recipe
    assert (recipe.ep, recipe.recompute, recipe.recompute_modules) == (8, "full", None)
    assert recipe.moe_dispatcher == "allgather"
    model["backend"] = {"dispatcher": "mok"}
    found = read_written(tmp_path, FULL | {"distributed": own, "model": model}, "run.yaml")
    assert found.recipe.moe_dispatcher == "deepep"
    assert (
        "--model.backend.dispatcher mok",
        "its exchange is DeepEP's",
    ) in found.reading.not_modelled


@pytest.mark.parametrize(
    ("own", "targets"),
    [
        ({"target_modules": "*_proj"}, LORA_TARGETS),
        ({"match_all_linear": True}, LORA_TARGETS),
        ({"target_modules": ["*.q_proj", "*.o_proj"]}, ("linear_qkv", "linear_proj")),
    ],
)
def test_adapters(tmp_path, own, targets):
    peft = {"_target_": "nemo_automodel.components._peft.lora.PeftConfig", "dim": 8, "alpha": 32}
    found = read_written(tmp_path, FULL | {"peft": peft | own}, "run.yaml")
    assert "--peft.alpha 32" in found.reading.no_effect
    question = found.question
    assert question.training.lora == Lora(8, targets)
    assert question.training.optimizer == "adam"


def test_packs_and_pieces(tmp_path):
    loss = "nemo_automodel.components.loss.linear_ce.FusedLinearCrossEntropy"
    own = {"packed_sequence": {"packed_sequence_size": 8192}, "loss_fn": {"_target_": loss}}
    question = read_written(tmp_path, FULL | own, "run.yaml").question
    assert question.training.sequence_length in (None, 8192)
    assert question.framework.cross_entropy == "pieces"


@pytest.mark.parametrize("start", ["automodel", "automodel finetune llm -c"])
def test_the_command_and_what_it_sets_again(tmp_path, start):
    written(tmp_path, FULL, "run.yaml")
    command = f"{start} run.yaml --nproc-per-node 4 --step_scheduler.local_batch_size 4"
    found = read_written(tmp_path, command)
    assert (found.recipe.micro_batch, found.recipe.zero_stage) == (4, 3)
    assert not found.reading.unknown


def test_mistakes(tmp_path):
    steps = {"global_batch_size": 64, "local_batch_size": "two"}
    with pytest.raises(InputError) as caught:
        read_written(tmp_path, FULL | {"step_scheduler": steps}, "run.yaml")
    assert caught.value.field == "--step_scheduler.local_batch_size"
