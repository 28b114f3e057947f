"""Files of settings: Megatron-Bridge's, nanotron's, and a Trainer's arguments as YAML."""

import pytest
import yaml

from tests.reports.launch_import.samples import read_written
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.tuning import Lora

# As Megatron-Bridge keeps it: every field of every section, types and functions by their target.
BRIDGE = """
model:
  _target_: megatron.bridge.models.llama.llama_provider.LlamaModelProvider
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  kv_channels: 128
  seq_length: 8192
  vocab_size: 128256
  share_embeddings_and_output_weights: false
  add_bias_linear: false
  gated_linear_unit: true
  normalization: RMSNorm
  position_embedding_type: rope
  attention_dropout: 0.0
  hidden_dropout: 0.0
  activation_func: {_target_: torch.nn.functional.silu, _call_: false}
  attention_backend: {_target_: megatron.core.transformer.enums.AttnBackend, _call_: true, _args_: [1]}
  params_dtype: {_target_: torch.bfloat16, _call_: false}
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 2
  pipeline_model_parallel_layout: null
  sequence_parallel: true
  recompute_granularity: selective
  recompute_modules: [core_attn, mlp]
  a_field_of_another_version: 3
train: {global_batch_size: 128, micro_batch_size: 2, train_iters: 100}
ddp: {use_distributed_optimizer: true, overlap_grad_reduce: false, grad_reduce_in_fp32: true}
comm_overlap: {overlap_grad_reduce: true, tp_comm_overlap: true}
mixed_precision: bf16_with_mxfp8_mixed
optimizer: {optimizer: adam, lr: 0.0003, use_distributed_optimizer: true}
"""  # noqa: E501


def test_what_megatron_bridge_keeps_is_read(tmp_path):
    found = read_written(tmp_path, BRIDGE, "run_config.yaml")
    model, recipe, training = found.question.model, found.recipe, found.question.training
    assert (found.framework, found.question.framework.name) == (
        "Megatron-Bridge",
        "megatron_bridge",
    )
    assert (model.num_layers, model.kv_heads, model.vocab_size) == (32, 8, 128256)
    assert (model.linear_bias, model.tied_embeddings, model.gated_mlp) == (False, False, True)
    assert (recipe.tp, recipe.pp, recipe.vpp, recipe.micro_batch) == (2, 4, 2, 2)
    assert (recipe.sp, recipe.overlap_grad_reduce, recipe.tp_comm_overlap) == (True, True, True)
    assert (recipe.recompute, recipe.recompute_modules) == ("selective", "core_attn+mlp")
    assert (recipe.zero_stage, training.global_batch_size) == (1, 128)
    assert training.precision == "mxfp8"
    # What computes the activation, the type of parameters, and what is not known.
    assert "3 fields stand for no argument" in " ".join(found.reading.notes)


@pytest.mark.parametrize(
    ("section", "value", "stated"),
    [
        ("mixed_precision", "int8_mixed", "is not known"),
        ("mixed_precision", "bf16_with_fp8_other_mixed", "is not known"),
        ("ddp", [1], "is no section"),
        ("model", {"tensor_model_parallel_size": "two"}, "is not a whole number"),
    ],
)
def test_what_it_would_not_keep_is_refused(tmp_path, section, value, stated):
    table = yaml.safe_load(BRIDGE)
    kept = table[section] | value if isinstance(value, dict) else value
    with pytest.raises(InputError, match=stated):
        read_written(tmp_path, table | {section: kept}, "run_config.yaml")


ADAPTERS = """
peft:
  _target_: megatron.bridge.peft.lora.LoRA
  target_modules: [linear_q_down_proj, linear_kv_up_proj, linear_fc2]
  dim: 16
  dropout: 0.1
dataset:
  seq_length: 2048
  packed_sequence_specs: {packed_sequence_size: 4096}
"""


def test_adapters_and_packs_of_megatron_bridge_are_read(tmp_path):
    found = read_written(tmp_path, BRIDGE + ADAPTERS, "run_config.yaml")
    assert found.question.training.lora == Lora(16, ("linear_qkv", "linear_fc2"), 0.1)
    assert (found.question.model.sequence_length, found.question.training.packed_lengths) == (
        4096,
        (),
    )
    ((packs, instead),) = found.reading.not_modelled
    assert packs == "packed_sequence_specs"
    assert "each pack is one sequence" in instead
    assert found.question.framework.shares_expert_adapters
    each = ADAPTERS.replace("dim: 16", "dim: 16\n  share_expert_adapters: false")
    found = read_written(tmp_path, BRIDGE + each, "run_config.yaml")
    assert not found.question.framework.shares_expert_adapters
    some = ADAPTERS.replace("linear_fc2", "'*.layers.0.*.linear_fc2', router")
    found = read_written(tmp_path, BRIDGE + some.replace("LoRA", "LoHa"), "run_config.yaml")
    stated = " ".join(argument for argument, _ in found.reading.not_modelled)
    assert "peft: LoHa adapters of router adapters of *.layers.0.*.linear_fc2" in stated


MODULE = """
from megatron.bridge.training.config import ConfigContainer, TrainingConfig

def recipe():
    config = ConfigContainer(
        model=GPTModelProvider(
            num_layers=4, hidden_size=512, num_attention_heads=8, seq_length=1024,
            tensor_model_parallel_size=2, activation_func=functional.silu,
        ),
        train=TrainingConfig(train_iters=10, global_batch_size=64, micro_batch_size=1),
        mixed_precision="bf16_mixed",
    )
    config.train.micro_batch_size = 4
    return config
"""
STARTED = """
export NCCL_ALGO=Ring
torchrun --nnodes 2 --nproc-per-node 8 "$here/train.py" train.global_batch_size=32 logger.a=1 "$@"
"""


def test_a_module_of_megatron_bridge_is_read_by_the_script_that_starts_it(tmp_path):
    (tmp_path / "train.py").write_text(MODULE)
    found = read_written(tmp_path, STARTED)
    recipe, training = found.recipe, found.question.training
    assert (recipe.tp, recipe.micro_batch, recipe.nccl_algo) == (2, 1, "ring")
    assert (training.global_batch_size, found.question.cluster.num_gpus) == (32, 16)
    followed = " ".join(found.reading.notes)
    for part in ("config.train.micro_batch_size = 4", "logger.a=1", "$@"):
        assert f"not followed: {part}" in followed
    assert "no variables" not in followed
    alone = read_written(tmp_path, MODULE, "train.py")
    assert alone.question.training.global_batch_size == 64
    assert "no variables" in " ".join(alone.reading.notes)


@pytest.mark.parametrize(
    ("was", "now", "stated"),
    [
        ("ConfigContainer(\n", "llama3_8b_pretrain_config(\n", "run_config.yaml"),
        ("def recipe", "deff recipe", "is no Python"),
    ],
)
def test_a_module_of_megatron_bridge_that_spells_no_sizes_out_is_refused(
    tmp_path, was, now, stated
):
    (tmp_path / "train.py").write_text(MODULE.replace(was, now))
    with pytest.raises(InputError, match=stated):
        read_written(tmp_path, STARTED)


def test_arguments_of_a_trainer_may_be_a_file(tmp_path):
    (tmp_path / "zero3.json").write_text('{"zero_optimization": {"stage": 3}}')
    content = (
        "model_name_or_path: llama3_8b\nper_device_train_batch_size: 2\n"
        "gradient_accumulation_steps: 4\ncutoff_len: 2048\nbf16: true\ndeepspeed: zero3.json\n"
        "gradient_checkpointing: true\nlearning_rate: 1.0e-5\n"
    )
    found = read_written(tmp_path, content, "sft.yaml")
    assert (found.recipe.micro_batch, found.recipe.zero_stage) == (2, 3)
    assert (found.recipe.recompute, found.question.training.precision) == ("full", "bf16")
    assert found.question.model.name == "llama3_8b"


def test_another_file_of_settings_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no settings that are known"):
        read_written(tmp_path, "name: llama\n", "other.yaml")


NANOTRON = """
general: {project: x, run: y, seed: 42, step: null}
model:
  dtype: bfloat16
  model_config:
    hidden_size: 4096
    intermediate_size: 14336
    num_hidden_layers: 32
    num_attention_heads: 32
    num_key_value_heads: 8
    vocab_size: 128256
    max_position_embeddings: 8192
    tie_word_embeddings: false
parallelism: {dp: 4, tp: 8, pp: 2, tp_mode: REDUCE_SCATTER, recompute_layer: true}
tokens: {micro_batch_size: 2, batch_accumulation_per_replica: 8, sequence_length: 4096}
optimizer: {zero_stage: 1}
"""


def test_what_nanotron_runs_from_is_read(tmp_path):
    found = read_written(tmp_path, NANOTRON, "llama.yaml")
    model, recipe, training = found.question.model, found.recipe, found.question.training
    assert (found.framework, found.question.framework.name) == ("nanotron", "nanotron")
    assert (model.num_layers, model.kv_heads, model.vocab_size) == (32, 8, 128256)
    assert (model.linear_bias, model.tied_embeddings, model.gated_mlp) == (False, False, True)
    assert (recipe.tp, recipe.pp, recipe.micro_batch, recipe.sp) == (8, 2, 2, True)
    assert (recipe.recompute, recipe.zero_stage) == ("full", 1)
    assert (training.global_batch_size, training.sequence_length) == (2 * 8 * 4, 4096)


@pytest.mark.parametrize(
    ("was", "now", "stated"),
    [
        ("dp: 4, ", "", "dp=None: is not a whole number"),
        ("micro_batch_size: 2", "micro_batch_size: two", "micro_batch_size=two: is not a whole"),
        ("optimizer: {zero_stage: 1}", "optimizer: 1", "optimizer=1: is no section"),
    ],
)
def test_a_file_of_nanotron_that_leaves_something_open_is_refused(tmp_path, was, now, stated):
    with pytest.raises(InputError, match=stated):
        read_written(tmp_path, NANOTRON.replace(was, now), "llama.yaml")
