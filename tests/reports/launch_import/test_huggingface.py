"""Transformers' arguments, Accelerate's file and DeepSpeed's JSON, as one job."""

from dataclasses import replace

import pytest

from tests.reports.launch_import.samples import framework, model, read, read_written, written
from tests.samples import MODEL
from tests.simulators.jobs import LLAMA, make_job
from trainscout.reports.dialects.deepspeed import settings_of
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.tuning import LORA_TARGETS, Dpo, Lora
from trainscout.simulators.predictor.question.validity import why_invalid

ZERO = {
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e8},
    "gradient_accumulation_steps": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "steps_per_print": 10,
}
SCRIPT = """
deepspeed --num_gpus 8 --num_nodes 2 finetune.py --deepspeed configs/ds.json --bf16 True \\
    --model_name_or_path llama3_8b --per_device_train_batch_size 2 --nothing_of_theirs 3 \\
    --gradient-accumulation-steps 8 --gradient_checkpointing True --max_seq_length 4096 \\
    --max_steps 100 --learning_rate 2e-5
"""

REENTRANT = "--gradient_checkpointing_kwargs"
RENAMED = "--activation_checkpointing_kwargs"


def test_a_script_with_the_json_that_it_names(tmp_path):
    written(tmp_path, ZERO, "configs/ds.json")
    imported = read_written(tmp_path, SCRIPT)
    assert imported.framework == "DeepSpeed"
    assert imported.question.model == model("llama3_8b")
    assert imported.question.framework == framework("deepspeed")
    assert imported.question.cluster.num_gpus == 16
    assert imported.recipe == Recipe(
        micro_batch=2, zero_stage=2, overlap_grad_reduce=True, recompute="full"
    )
    training = imported.question.training
    assert (training.global_batch_size, training.sequence_length) == (2 * 8 * 16, 4096)
    assert (training.precision, training.tokens) == ("bf16", 100 * 256 * 4096)
    reading = imported.reading
    assert [each.argument for each in reading.unknown] == ["--nothing_of_theirs 3"]
    assert any("reduce_bucket_size" in words for words, _ in reading.not_modelled)
    assert "steps_per_print 10" in reading.no_effect


def test_how_fsdp_loads_and_saves_has_no_effect_on_a_step(tmp_path):
    loads = "--fsdp_sync_module_states true --fsdp_state_dict_type SHARDED_STATE_DICT"
    fsdp = f"--fsdp full_shard {loads}"
    imported = read_written(tmp_path, SCRIPT.replace("--deepspeed configs/ds.json", fsdp))
    no_effect = " ".join(imported.reading.no_effect)
    assert "fsdp_sync_module_states" in no_effect
    assert "fsdp_state_dict_type" in no_effect


@pytest.mark.parametrize("name", ["qwen3_30b_a3b", "deepseek_v2"])
def test_deepspeed_shards_the_experts_of_transformers(tmp_path, name):
    written(tmp_path, ZERO, "configs/ds.json")
    imported = read_written(tmp_path, SCRIPT.replace("llama3_8b", name))
    question = imported.question
    assert question.framework.name == "deepspeed"
    assert why_invalid(question.job(imported.recipe)) is None
    assert why_invalid(replace(question, framework=framework("deepspeed")).job(imported.recipe))


@pytest.mark.parametrize(
    ("said", "precision"),
    [("--bf16 True", "bf16"), ("--fp16 True", "fp16"), ("--tf32 True", "tf32"), ("", "bf16")],
)
def test_a_precision_that_the_json_leaves_to_the_arguments(tmp_path, said, precision):
    written(tmp_path, ZERO | {"fp16": {"enabled": "auto", "loss_scale": 0}}, "configs/ds.json")
    found = read_written(tmp_path, SCRIPT.replace("--bf16 True", said))
    assert found.question.training.precision == precision
    unsaid = any("neither bf16 nor fp16" in note for note in found.reading.notes)
    assert unsaid is (not said)


@pytest.mark.parametrize(
    ("stage", "overlap_comm", "waits"),
    [(2, None, True), (2, True, False), (3, None, False), (3, False, True), (1, False, False)],
)
def test_what_deepspeed_does_beside_the_backward_pass(tmp_path, stage, overlap_comm, waits):
    told = {} if overlap_comm is None else {"overlap_comm": overlap_comm}
    zero = {**ZERO, "zero_optimization": {"stage": stage, **told}}
    written(tmp_path, zero, "configs/ds.json")
    found = read_written(tmp_path, SCRIPT).question
    assert found.framework.waits_for_reductions is waits


@pytest.mark.parametrize(
    ("options", "software", "stage"),
    [
        ("--use_deepspeed --deepspeed_config_file ds.conf", "deepspeed", 3),
        ("--use_deepspeed", "deepspeed", 2),
        ("--use_deepspeed --zero_stage 1", "deepspeed", 1),
        ("--use_fsdp", "huggingface", 3),
        ("--use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP", "huggingface", 2),
        ("--multi_gpu", "huggingface", 0),
    ],
)
def test_what_accelerate_is_told_itself(tmp_path, options, software, stage):
    written(tmp_path, {"zero_optimization": {"stage": 3}}, "ds.conf")
    script = f"accelerate launch {options} --mixed_precision fp16 --num_processes 4 "
    script += "--main_process_port $PORT train.py "
    script += "--model_name_or_path llama3_8b --per_device_train_batch_size 2"
    imported = read_written(tmp_path, script)
    assert (imported.question.framework.name, imported.recipe.zero_stage) == (software, stage)
    assert imported.question.training.precision == "fp16"
    assert not imported.reading.unknown


@pytest.mark.parametrize("by_file", [True, False])
def test_what_accelerate_has_on_the_host(tmp_path, by_file):
    said = {"zero_stage": 3, "offload_optimizer_device": "cpu", "offload_param_device": "none"}
    written(tmp_path, {"distributed_type": "DEEPSPEED", "deepspeed_config": said}, "ds.yaml")
    typed = "--use_deepspeed " + " ".join(f"--{name} {value}" for name, value in said.items())
    options = "--config_file ds.yaml" if by_file else typed
    script = (
        f"accelerate launch {options} --num_processes 4 train.py --model_name_or_path llama3_8b"
    )
    recipe = read_written(tmp_path, f"{script} --bf16").recipe
    assert (recipe.zero_stage, recipe.optimizer_offload) == (3, 100)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_our_own_json_comes_back(tmp_path, stage):
    job = make_job(LLAMA, nodes=2, batch=64, zero_stage=stage, micro_batch=2)
    imported = read_written(tmp_path, settings_of(job), "deepspeed.json")
    assert any("neither recomputation nor kernels" in note for note in imported.reading.notes)
    assert (imported.recipe.zero_stage, imported.recipe.micro_batch) == (stage, 2)
    assert imported.question.training.precision == job.precision
    assert imported.question.training.global_batch_size == 2 * 16 * job.num_micro_batches
    assert not imported.reading.unknown


@pytest.mark.parametrize(
    ("strategy", "fields"),
    [
        ("FULL_SHARD", {"zero_stage": 3}),
        ("SHARD_GRAD_OP", {"zero_stage": 2, "overlap_param_gather": True}),
        ("HYBRID_SHARD", {"zero_stage": 3, "dp_shard": 8}),
        ("NO_SHARD", {"zero_stage": 0}),
    ],
)
def test_accelerates_file(tmp_path, strategy, fields):
    config = {"distributed_type": "FSDP", "mixed_precision": "bf16"}
    config["fsdp_config"] = {"fsdp_sharding_strategy": strategy}
    written(tmp_path, config, "fsdp.yaml")
    script = (
        "accelerate launch --config_file fsdp.yaml --num_processes 16 train.py "
        "--per_device_train_batch_size 4 --block_size 2048"
    )
    imported = read_written(tmp_path, script)
    assert imported.framework == "Hugging Face Trainer"
    assert imported.recipe == Recipe(
        **{"micro_batch": 4, "overlap_grad_reduce": fields["zero_stage"] < 3, **fields}
    )
    assert imported.question.cluster.num_gpus == 16


@pytest.mark.parametrize(
    ("arguments", "prefetches"),
    [
        ("--fsdp 'full_shard auto_wrap'", False),
        ("--fsdp 'full_shard auto_wrap' --fsdp_backward_prefetch backward_pre", True),
        ("--fsdp shard_grad_op", True),  # what is whole in the forward pass stays
        ("--fsdp full_shard --fsdp_version 2", True),
        ("--fsdp fsdp2", True),
        ("--fsdp_sharding_strategy FULL_SHARD", True),  # Accelerate's own default
        ("--fsdp_sharding_strategy FULL_SHARD --fsdp_backward_prefetch NO_PREFETCH", False),
        ("--fsdp full_shard --fsdp_backward_prefetch_policy BACKWARD_PRE", True),
        ("", True),
    ],
)
def test_trainers_first_fsdp_prefetches_nothing_unless_told(tmp_path, arguments, prefetches):
    script = f"torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 1 {arguments}"
    imported = read_written(tmp_path, script)
    assert imported.question.framework.prefetches_backward is prefetches
    declared = framework("torch_fsdp2" if "2" in arguments else "huggingface")
    read_as = imported.question.framework
    assert read_as.copies_gathered is declared.copies_gathered
    assert read_as.wraps_adapters is not declared.copies_gathered
    assert not imported.reading.unknown
    told = any("NO_PREFETCH, Trainer's default" in each for each in imported.reading.notes)
    assert told is (not prefetches and "prefetch" not in arguments)


@pytest.mark.parametrize(
    ("arguments", "reenters"),
    [
        ("--gradient_checkpointing", False),
        (f"--gradient_checkpointing {REENTRANT}.use_reentrant=True", True),
        (f"--gradient_checkpointing {REENTRANT} '{{\"use_reentrant\": true}}'", True),
        (f"--gradient_checkpointing {REENTRANT} '{{\"use_reentrant\": false}}'", False),
        (f"{REENTRANT}.use_reentrant=True", False),
        (f"--activation_checkpointing {RENAMED}.use_reentrant=True", True),
        (f"--activation_checkpointing {RENAMED} '{{\"use_reentrant\": true}}'", True),
        (f"--fsdp_activation_checkpointing {REENTRANT}.use_reentrant=1", False),
        ("--cutoff_len 512", True),  # LLaMA-Factory's default
        ("--cutoff_len 512 --use_reentrant_gc false", False),
    ],
)  # fmt: skip
def test_checkpoints_that_reenter_run_and_gather_whole_layers_again(tmp_path, arguments, reenters):
    script = f"torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 1 {arguments}"
    imported = read_written(tmp_path, script)
    framework = imported.question.framework
    assert framework.recompute_stops_early is not reenters
    assert framework.gathers_to_recompute is reenters
    assert not imported.reading.unknown


@pytest.mark.parametrize(
    ("arguments", "layers"),
    [
        (f"--gradient_checkpointing {REENTRANT}.offload=True", 8),
        (f"--activation_checkpointing {RENAMED}.offload=True", 8),
        (f"--gradient_checkpointing {REENTRANT} '{{\"offload\": true}}'", 8),
        (f"--gradient_checkpointing {REENTRANT} '{{\"offload\": false}}'", 0),
        (f"{REENTRANT}.offload=True", 0),
        (f"--gradient_checkpointing {REENTRANT}.offload=True --deepspeed ds.json", 0),
    ],
)
def test_inputs_of_checkpointed_layers_wait_on_the_host(tmp_path, arguments, layers):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    script = f"torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 1 {arguments}"
    imported = read_written(tmp_path, script)
    assert imported.recipe.offloaded_layers == layers
    said = map(str, imported.reading.not_modelled)
    told = any("inputs of layers on the host" in each for each in said)
    assert told is ("deepspeed" in arguments)


@pytest.mark.parametrize(
    ("arguments", "layers"),
    [
        (f"{RENAMED}.every_n_layers=3", 3),
        (f'{RENAMED} \'{{"every_n_layers": 2, "offload": true}}\'', 4),
        (f"{RENAMED} '{{\"every_n_layers\": 1}}'", None),
    ],
)
def test_every_nth_layer_is_checkpointed_from_the_first_on(tmp_path, arguments, layers):
    script = "torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 1"
    imported = read_written(tmp_path, f"{script} --activation_checkpointing {arguments}")
    assert (imported.recipe.recompute, imported.recipe.recompute_layers) == ("full", layers)
    assert imported.recipe.offloaded_layers == (4 if "offload" in arguments else 0)
    assert not imported.reading.unknown


@pytest.mark.parametrize("said", [{"dp_shard_size": 2}, {}])
def test_accelerates_degrees(tmp_path, said):
    degrees = {"tp_size": 2, "cp_size": 2, "dp_replicate_size": 2, **said}
    config = {"fsdp_config": {"fsdp_version": 2}, "distributed_type": "FSDP"}
    config["parallelism_config"] = {f"parallelism_config_{key}": n for key, n in degrees.items()}
    written(tmp_path, config, "nd.yaml")
    script = "accelerate launch --config_file nd.yaml --num_processes 16 train.py --block_size 512"
    recipe = read_written(tmp_path, script).recipe
    assert (recipe.tp, recipe.cp, recipe.zero_stage, recipe.dp_shard) == (2, 2, 3, 2)


def test_adapters(tmp_path):
    script = (
        "torchrun --nproc_per_node 8 sft.py --per_device_train_batch_size 1 --bf16 --use_peft "
        "--lora_r 16 --lora_dropout 0.05 --lora_target_modules q_proj v_proj down_proj"
    )
    found = read_written(tmp_path, script)
    assert found.question.training.lora == Lora(16, ("linear_qkv", "linear_fc2"), 0.05)
    assert not found.reading.unknown


@pytest.mark.parametrize(
    ("says", "targets"),
    [("--use_peft", ("linear_qkv",)), ("--finetuning_type lora", LORA_TARGETS)],
)
def test_adapters_of_what_a_tool_adapts_where_nothing_is_said(tmp_path, says, targets):
    script = f"torchrun --nproc_per_node 8 sft.py --per_device_train_batch_size 1 --bf16 {says}"
    assert read_written(tmp_path, script).question.training.lora == Lora(8, targets)


@pytest.mark.parametrize(
    ("words", "dpo"),
    [
        ("trl/scripts/dpo.py", Dpo()),
        ("trl/scripts/dpo.py --precompute_ref_log_probs", Dpo(precomputed=True)),
        ("train.py --stage dpo", Dpo()),
        ("train.py --rlhf_type dpo", Dpo()),
        ("train.py --stage dpo --pref_loss simpo", Dpo(precomputed=True)),
        ("train.py --stage dpo --pref_loss sigmoid", Dpo()),
        ("train.py --rlhf_type orpo", Dpo(precomputed=True)),
        ("trl/scripts/cpo.py", Dpo(precomputed=True)),
        ("trl/scripts/reward.py", Dpo(precomputed=True)),
        ("train.py --stage sft", None),
        ("train.py --stage kto", Dpo(kto=True)),
        ("trl/scripts/kto.py --precompute_ref_log_probs", Dpo(precomputed=True, kto=True)),
    ],
)
def test_pairs(tmp_path, words, dpo):
    script = f"torchrun --nproc_per_node 8 {words} --per_device_train_batch_size 2 --bf16 "
    imported = read_written(tmp_path, f"{script} --max_steps 10 --max_length 1024")
    training = imported.question.training
    assert training.dpo == dpo
    batch = training.global_batch_size
    assert batch == 2 * imported.question.cluster.num_gpus
    assert training.tokens == 10 * batch * 1024 * training.sequences_per_sample
    assert training.sequences_per_sample == (1 if dpo is None or dpo.kto else 2)
    stated = [words for words, _ in imported.reading.not_modelled]
    assert any("one value" in each for each in stated) == ("reward" in words)


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        ("trl/scripts/sft.py", []),
        ("trl/scripts/grpo.py", ["(grpo)"]),
        ("trl/scripts/grpo.py --beta 0.0", ["(grpo)"]),
        ("trl/scripts/grpo.py --beta 0.04", ["(grpo)", "(--beta)"]),
        ("train.py --rlhf_type ppo", ["(ppo)"]),
        ("trl/scripts/gkd.py --teacher_model_name_or_path big", ["from big", "of 0.5"]),
        ("train.py --rlhf_type gkd --teacher_model big --lmbda 0", ["from big"]),
        ("trl/scripts/prm.py", ["called prm"]),
    ],
)
def test_what_a_step_has_beside_its_update_is_said(tmp_path, words, stated):
    script = f"torchrun --nproc_per_node 8 {words} --per_device_train_batch_size 2 --bf16"
    imported = read_written(tmp_path, script)
    assert imported.question.training.dpo is None
    found = [text for text, _ in imported.reading.not_modelled]
    assert len(found) == len(stated)
    assert all(any(part in each for each in found) for part in stated)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("ds.json", "{", "is no JSON"),
        ("ds.json", "[1]", "holds no settings"),
        ("config.json", '{"model_type": "llama"}', "describes a model"),
        ("ds.json", {"zero_optimization": {"stage": 7}}, "is no stage"),
        ("run.sh", "deepspeed train.py --deepspeed gone.json", "is not to be found here"),
        ("run.sh", "deepspeed train.py --model_name_or_path a/b --fsdp x", "a/b"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, name, text, words):
    with pytest.raises(InputError, match=words):
        read_written(tmp_path, text, name)


def test_a_model_that_is_said_stands_for_one_that_is_unknown(tmp_path):
    script = "deepspeed train.py --model_name_or_path nobody/own --per_device_train_batch_size 1"
    imported = read(written(tmp_path, script), ("model",))
    assert imported.question.model.num_layers == MODEL.num_layers
    assert any("nobody/own" in note for note in imported.reading.notes)
