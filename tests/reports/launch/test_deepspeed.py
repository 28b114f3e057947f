"""DeepSpeed launches against its own configuration class and Transformers' models."""

import json
import types
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given

from tests.reports.dialects.jobs import DENSE, EXPERTS, jobs
from tests.samples import CLUSTER, GPU, MODEL, TRAINING
from trainscout.reports.dialects import deepspeed
from trainscout.reports.launch.deepspeed import launch
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.tuning import Lora

GROUPED = replace(DENSE, num_query_groups=4)
MODELS = (
    MODEL,
    GROUPED,
    replace(GROUPED, qk_norm=True, head_dim=128),
    replace(GROUPED, qkv_bias=True, tied_embeddings=True),
)
STAGE_3 = Recipe(zero_stage=3, overlap_grad_reduce=True)


def dense_job(recipe: Recipe = STAGE_3, **changes) -> Job:
    return replace(Job(GROUPED, GPU, CLUSTER, TRAINING, recipe), **changes)


@given(jobs(MODELS, parallel=False))
def test_deepspeed_takes_every_configuration(job):
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig

    made = launch(job)
    if made.impossible:
        assert made.files == {}
        return
    with (
        mock.patch("deepspeed.comm.get_rank", return_value=0),
        mock.patch("deepspeed.comm.get_world_size", return_value=job.world_size),
    ):
        # Refuses batches that do not multiply, and settings of its parts that it does not know.
        config = DeepSpeedConfig(json.loads(made.files["deepspeed.json"]))
    assert config.world_size == job.dp
    assert config.train_batch_size == job.training.global_batch_size
    assert config.train_micro_batch_size_per_gpu == job.recipe.micro_batch
    assert config.gradient_accumulation_steps == job.num_micro_batches
    assert config.zero_optimization_stage == job.recipe.zero_stage
    sharded = job.recipe.zero_stage >= 2
    assert config.zero_config.overlap_comm == (sharded or job.recipe.overlap_grad_reduce)
    check_data_types(config)
    assert config.bfloat16_config.enabled == (job.precision == "bf16")
    assert config.float16_config.enabled == (job.precision == "fp16")


def check_data_types(config) -> None:
    """The engine's own check, which refuses types of gradients that a ZeRO stage cannot hold."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    engine = DeepSpeedEngine.__new__(DeepSpeedEngine)
    engine.__dict__.update({"_config": config, "pipeline_parallelism": False})
    with mock.patch("deepspeed.runtime.engine.is_zero_supported_optimizer", return_value=True):
        engine._do_optimizer_sanity_check(None)


def built(job: Job):
    """The model of the training script, without memory."""
    import torch

    module = types.ModuleType("deepspeed_train")
    source = launch(job).files["deepspeed_train.py"].replace("import deepspeed\n", "")
    exec(compile(source, "deepspeed_train.py", "exec"), module.__dict__)
    with torch.device("meta"):
        return module.build_model()


@pytest.mark.parametrize("model", MODELS, ids=["gpt2", "llama", "qwen3", "qwen2"])
def test_the_model_is_the_declared_one(model):
    pytest.importorskip("transformers")
    sizes = {
        name: value.numel() for name, value in built(dense_job(model=model)).named_parameters()
    }
    matrices = sum(size for name, size in sizes.items() if "norm" not in name and "ln" not in name)
    head = model.qk_head_dim
    attention = model.hidden_size * head * (2 * model.num_heads + 2 * model.kv_heads)
    mlp = (3 if model.gated_mlp else 2) * model.hidden_size * model.ffn_hidden_size
    biases = 0
    if model.linear_bias:
        biases = head * (model.num_heads + 2 * model.kv_heads) + model.ffn_hidden_size
        biases += 2 * model.hidden_size
    elif model.qkv_bias:
        biases = head * (model.num_heads + 2 * model.kv_heads)
    rows = model.vocab_size * (1 if model.tied_embeddings else 2)
    if model.position == "learned":
        rows += dense_job(model=model).sequence_length
    layers = model.num_layers * (attention + mlp + biases)
    assert matrices == layers + rows * model.hidden_size


def test_full_recomputation_is_switched_on():
    pytest.importorskip("transformers")
    assert built(dense_job(replace(STAGE_3, recompute="full"))).is_gradient_checkpointing
    assert not built(dense_job()).is_gradient_checkpointing


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipe": Recipe(tp=2)}, "tp=2"),
        ({"recipe": Recipe(pp=2)}, "pp=2"),
        ({"recipe": Recipe(cp=2)}, "cp=2"),
        ({"recipe": Recipe(precision="fp8")}, "precision=fp8"),
        ({"model": EXPERTS[0]}, "experts"),
        ({"model": replace(MODEL, gated_mlp=True)}, "no Hugging Face model"),
    ],
)
def test_what_zero_alone_cannot_run_is_not_written(changes, words):
    made = launch(dense_job(**changes))
    assert made.files == {}
    assert any(words in reason for reason in made.impossible)


def test_adapters_are_those_of_peft():
    job = dense_job(training=replace(TRAINING, lora=Lora(8, ("linear_qkv", "linear_fc2"), 0.1)))
    script = launch(job).files["deepspeed_train.py"]
    compile(script, "deepspeed_train.py", "exec")
    assert "from peft import LoraConfig, get_peft_model" in script
    assert "target_modules=['q_proj', 'k_proj', 'v_proj', 'down_proj']" in script
    assert "lora_dropout=0.1" in script
    assert "if each.requires_grad" in script
    frozen = dense_job(training=replace(TRAINING, frozen=("language_model",)))
    assert any("frozen" in reason for reason in launch(frozen).impossible)
    assert "peft" not in launch(dense_job()).files["deepspeed_train.py"]


@pytest.mark.parametrize("waits", [False, True])
def test_gradients_predicted_with_nothing_beside_them_travel_so(waits):
    job = dense_job(STAGE_3)
    framework = replace(job.framework, waits_for_reductions=waits)
    written = json.loads(launch(replace(job, framework=framework)).files["deepspeed.json"])
    assert written["zero_optimization"]["overlap_comm"] is not waits


def test_selective_recomputation_is_said_to_be_missing():
    assert any(
        "selective" in lack
        for lack in launch(dense_job(Recipe(recompute="selective"))).unsupported
    )


def test_gradients_accumulate_as_declared():
    job = dense_job()
    assert deepspeed.settings_of(job)["data_types"] == {"grad_accum_dtype": "fp32"}
    plain = replace(job, recipe=Recipe(zero_stage=0))
    assert "data_types" not in deepspeed.settings_of(plain)
    assert any("fp32" in lack for lack in launch(plain).unsupported)
    halves = replace(job, framework=replace(job.framework, accumulate_grads_fp32=False))
    assert "data_types" not in deepspeed.settings_of(halves)


def test_plain_gradient_descent_has_momentum():
    job = dense_job()
    descent = replace(job, training=replace(job.training, optimizer="sgd"))
    optimizer = deepspeed.settings_of(descent)["optimizer"]
    assert optimizer == {"type": "SGD", "params": {"lr": 1e-4, "momentum": 0.9}}
