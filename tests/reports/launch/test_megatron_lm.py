import os
import subprocess
from dataclasses import replace
from fnmatch import fnmatch

import pytest
import yaml

from tests.samples import ARCHITECTURES, CLUSTER, GPU, MOE_MODEL, TRAINING, job_of, moe_job_of
from trainscout.reports.dialects.megatron_lm import settings_of
from trainscout.reports.dialects.setting import command_options
from trainscout.reports.launch.directory import megatron_launch
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layers import Mla
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import ModulePrecision


def arguments(job: Job) -> dict[str, str]:
    return {option[0]: " ".join(option[1:]) for option in command_options(settings_of(job))}


def variables(job: Job) -> dict[str, str]:
    lines = megatron_launch(job).script_text.splitlines()
    exports = [line.removeprefix("export ") for line in lines if line.startswith("export ")]
    return dict(export.split("=", 1) for export in exports)


def test_iterations_cover_the_tokens_and_no_masks_are_made():
    # 1e9 tokens / (64 x 1024) tokens per step = 15258.8 steps.
    written = arguments(job_of(Recipe()))
    assert written["--train-iters"] == "15259"
    assert "--no-create-attention-mask-in-dataloader" in written


def test_uneven_virtual_stages_are_counted_instead():
    written = arguments(job_of(Recipe(pp=2, vpp=2, first_stage_layers=2, last_stage_layers=6)))
    assert written["--num-virtual-stages-per-pipeline-rank"] == "2"
    assert written["--decoder-first-pipeline-num-layers"] == "2"
    assert written["--decoder-last-pipeline-num-layers"] == "6"
    assert "--num-layers-per-virtual-pipeline-stage" not in written


def test_four_bits_and_the_layers_that_keep_sixteen():
    model = replace(job_of(Recipe()).model, num_layers_at_end_in_bf16=4)
    training = replace(TRAINING, nvfp4_hadamard=False)
    job = Job(model, GPU, CLUSTER, training, Recipe(precision="nvfp4"))
    written = arguments(job)
    assert written["--fp4-format"] == "e2m1"
    assert written["--fp4-recipe"] == "nvfp4"
    assert (written["--num-layers-at-start-in-bf16"], written["--num-layers-at-end-in-bf16"]) == (
        "0",
        "4",
    )
    assert {"--bf16", "--first-last-layers-bf16"} <= set(written)
    assert "--fp8-format" not in written
    assert "NVTE_NVFP4_DISABLE_RHT=1" in megatron_launch(job).script_text
    plain = arguments(replace(job, recipe=Recipe()))
    assert not [name for name in plain if "fp4" in name or "in-bf16" in name]


def test_layers_of_another_precision_are_in_a_file_of_their_own():
    own = ModulePrecision(qkv="bf16", mlp="mxfp8")
    training = replace(TRAINING, module_precision=own)
    job = Job(job_of(Recipe()).model, GPU, CLUSTER, training, Recipe(precision="nvfp4"))
    made = megatron_launch(job)
    assert "--te-precision-config-file" in made.script_text
    assert "nvfp4, qkv in bf16, mlp in mxfp8" in made.script_text.replace("\n#  ", "")
    written = yaml.safe_load(made.files["te_precision.yaml"])
    assert written["configs"]["mxfp8"]["training_recipe"] == {"fp8_quantization_recipe": "mxfp8"}
    matchers = written["matchers"]
    assert {name: each["config"] for name, each in matchers.items()} == dict(own.stated)
    assert fnmatch("decoder.layers.0.mlp.linear_fc2", matchers["mlp"]["pattern"])
    assert "te_precision" not in megatron_launch(replace(job, recipe=Recipe())).script_text


def test_latent_attention():
    mla = Mla(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    model = replace(MOE_MODEL, mla=mla, head_dim=None, num_query_groups=None)
    written = arguments(Job(model, GPU, CLUSTER, TRAINING, Recipe()))
    assert written["--kv-lora-rank"] == "512"
    assert written["--qk-head-dim"] == "128"
    assert written["--qk-pos-emb-head-dim"] == "64"
    assert "--multi-latent-attention" in written
    # FlashAttention 2 wants keys as wide as values.
    assert written["--attention-backend"] == "auto"
    # No query compression declared: Megatron's default of none must stay.
    assert "--q-lora-rank" not in written


@pytest.mark.parametrize(("stage", "sharding"), [(2, "optim_grads"), (3, "optim_grads_params")])
def test_fully_sharded(stage, sharding):
    job = job_of(Recipe(zero_stage=stage, tp=2, sp=True))
    written = arguments(job)
    assert written["--data-parallel-sharding-strategy"] == sharding
    # Predicted beside computation without being asked for.
    assert "--overlap-grad-reduce" in written
    assert ("--overlap-param-gather" in written) == (stage == 3)
    # Megatron-FSDP refuses to start with it.
    assert variables(job) == {}


def test_one_connection_before_blackwell():
    recipe = Recipe(tp=2)
    assert variables(job_of(recipe)) == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    blackwell = replace(job_of(recipe), gpu=replace(GPU, compute_capability=10.0))
    assert variables(blackwell) == {}


def test_what_megatron_lacks_is_said():
    launch = megatron_launch(job_of(Recipe(pp=2, schedule="gpipe")))
    assert any("gpipe" in lack for lack in launch.unsupported)
    assert "# Not expressible in Megatron-LM: schedule=gpipe" in launch.script_text
    assert megatron_launch(job_of(Recipe(pp=2))).unsupported == ()


@pytest.mark.parametrize(
    ("precision", "architecture", "attention", "lacks"),
    [
        ("bf16", "hopper", "flash", False),
        ("fp32", "hopper", "flash", True),
        ("fp32", "hopper", "unfused", False),
        # Too old for it: unfused is what was priced and what is launched.
        ("fp16", "volta", "flash", False),
    ],
)
def test_flash_attention_needs_halves(precision, architecture, attention, lacks):
    job = replace(
        job_of(Recipe(precision=precision)),
        gpu=replace(GPU, architecture=ARCHITECTURES[architecture]),
        framework=Framework(attention=attention),
    )
    launch = megatron_launch(job)
    assert any("attention=flash" in lack for lack in launch.unsupported) == lacks
    flash = attention == "flash" and architecture == "hopper"
    assert f"--attention-backend {'flash' if flash else 'unfused'}" in launch.script_text


def test_a_shell_runs_the_script_as_one_command(tmp_path):
    job = moe_job_of(Recipe(tp=2, pp=2, sp=True))
    launch = megatron_launch(job)
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(
        '#!/usr/bin/env bash\nprintf "%s\\n" "$CUDA_DEVICE_MAX_CONNECTIONS" "$@"\n'
    )
    torchrun.chmod(0o755)
    script = tmp_path / "launch.sh"
    script.write_text(launch.script_text)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NODE_RANK": "1"}
    run = subprocess.run(
        ["bash", str(script)], env=environment, capture_output=True, text=True, check=True
    )
    connections, *words = run.stdout.splitlines()
    assert connections == "1"
    start = words.index("pretrain_gpt.py") + 1
    assert " ".join(words[: start - 1]) == (
        "--nnodes 2 --nproc-per-node 8 --node-rank 1 --master-addr localhost --master-port 6000"
    )
    assert words[start:] == [
        word for option in command_options(settings_of(job)) for word in option
    ]


def test_switches_that_sum_are_asked_for():
    job = job_of(Recipe())
    summed = replace(job, cluster=replace(job.cluster, sharp=True))
    assert "--use-sharp" in arguments(summed)
    assert "--use-sharp" not in arguments(job)
    # Older versions leave the variable to the user, newer ones set it for the groups that may.
    assert variables(summed) == {"NCCL_COLLNET_ENABLE": "1"}


EXPERTS_GRAPHED = Framework(cuda_graphs=True, graphs_leave_experts=True, checks_gradients=True)


def test_graphs_hold_whole_iterations_without_experts() -> None:
    written = arguments(job_of(Recipe(cuda_graphs=True)))
    assert written["--cuda-graph-impl"] == "local"
    assert written["--cuda-graph-scope"] == "full_iteration"
    assert {"--no-check-for-nan-in-loss-and-grad", "--te-rng-tracker"} <= set(written)
    assert "--cuda-graph-impl" not in arguments(job_of(Recipe()))


@pytest.mark.parametrize(
    ("recipe", "scope"),
    [
        (Recipe(ep=2), "attn moe_router moe_preprocess"),
        (Recipe(ep=2, recompute="selective", recompute_modules="moe"), "attn"),
    ],
)
def test_graphs_end_where_tokens_go_to_experts(recipe: Recipe, scope: str) -> None:
    job = replace(moe_job_of(recipe), framework=EXPERTS_GRAPHED)
    job = replace(job, model=replace(job.model, dropout=False))
    written = arguments(job)
    assert written["--cuda-graph-impl"] == "transformer_engine"
    assert written["--cuda-graph-scope"] == scope
    assert "--no-check-for-nan-in-loss-and-grad" not in written


def test_graphs_that_megatron_has_not_are_said() -> None:
    job = replace(moe_job_of(Recipe(ep=2)), framework=Framework(cuda_graphs=True))
    assert "CUDA graphs of full_iteration (--cuda-graph-scope attn moe_router moe_preprocess)" in (
        megatron_launch(job).unsupported
    )
    sharded = job_of(Recipe(zero_stage=2, cuda_graphs=True))
    assert "CUDA graphs of full_iteration (no CUDA graphs here)" in (
        megatron_launch(sharded).unsupported
    )


def test_logits_of_eight_bits() -> None:
    gpu = replace(GPU, architecture=ARCHITECTURES["blackwell"], compute_capability=10.0)
    job = replace(job_of(Recipe(precision="mxfp8", fp8_output_proj=True)), gpu=gpu)
    assert "--fp8-output-proj" in arguments(job)
    assert not any("fp8_output_proj" in words for words in megatron_launch(job).unsupported)
