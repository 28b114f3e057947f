"""The same job under TorchTitan 0.3: a module with the model, and arguments with the recipe."""

from __future__ import annotations

import math

from trainscout.reports.launch.launch import Launch
from trainscout.reports.launch.shell import (
    HERE,
    RESUME,
    Arguments,
    not_expressible,
    resumed,
    shared_environment,
    shell_script,
    title_lines,
)
from trainscout.reports.launch.torchtitan_model import cannot_build, equal_chunks, module_source
from trainscout.simulators.predictor.question.job import Job

TITLE = "TorchTitan"
MODULE = "torchtitan_recipe"
_FILL_IN = (
    "the folder of the tokenizer (ASSETS=) and the data (--dataloader.dataset)",
    "the directory of checkpoints (CHECKPOINTS=), to save to and go on from",
    "settings that no speed depends on: learning rate, rotary base (torchtitan_recipe.py)",
)
_SCHEDULE = {"1f1b": "1F1B", "gpipe": "GPipe"}


def launch(job: Job) -> Launch:
    """The files that launch a valid job under TorchTitan."""
    impossible = cannot_build(job.model) + _impossible(job)
    if impossible:
        return Launch("torchtitan", TITLE, {}, _unsupported(job), _FILL_IN, impossible)
    unsupported = _unsupported(job)
    header = [
        *title_lines(job),
        f"Runs TorchTitan 0.3 with {MODULE}.py beside it; arguments override both.",
        "Fill in: " + "; ".join(_FILL_IN),
        *not_expressible(TITLE, unsupported),
    ]
    saved = (
        '--checkpoint.enable --checkpoint.folder "$CHECKPOINTS" '
        '--checkpoint.interval "${SAVE_INTERVAL:-500}"'
    )
    preparation = [
        HERE,
        'export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"',
        *resumed(saved),
    ]
    program = [
        ("-m", "torchtitan.train"),
        ("--module", MODULE),
        ("--config", "recipe"),
        *arguments(job),
        ("--hf-assets-path", '"${ASSETS:-./assets/hf}"'),
        (RESUME,),
        ('"$@"',),
        # What comes after a choice of recomputation are its own settings: it stands last.
        (f"activation-checkpoint:{job.recipe.recompute}",),
    ]
    files = {
        "torchtitan.sh": shell_script(header, shared_environment(job), preparation, job, program),
        f"{MODULE}.py": module_source(job),
    }
    return Launch("torchtitan", TITLE, files, unsupported, _FILL_IN)


def arguments(job: Job) -> Arguments:
    """The recipe's arguments, without the choice of recomputation."""
    return _training(job) + _parallelism(job) + _pipeline(job) + _compile(job)


def _training(job: Job) -> Arguments:
    recipe, batch = job.recipe, job.training.global_batch_size
    # A pipeline cuts its replica's whole share; without one, shares are accumulated.
    local = recipe.micro_batch * (job.num_micro_batches if recipe.pp > 1 else 1)
    width = "float32" if job.precision in ("fp32", "tf32") else "bfloat16"
    arguments: Arguments = [
        ("--training.local-batch-size", str(local)),
        ("--training.global-batch-size", str(batch)),
        ("--training.seq-len", str(job.sequence_length)),
        ("--training.steps", str(max(1, math.ceil(job.training.tokens / job.tokens_per_step)))),
        ("--training.mixed-precision-param", width),
    ]
    if not _cuda_graphs(job):
        arguments.append(("--training.disable-cuda-graphs",))
    return arguments


def _cuda_graphs(job: Job) -> bool:
    """Whether steps run as CUDA graphs, which it refuses under pipelines and for experts."""
    return job.framework.cuda_graphs and job.recipe.pp == 1 and job.model.moe is None


def _parallelism(job: Job) -> Arguments:
    recipe = job.recipe
    replicate, shard = (job.dp, 1) if recipe.zero_stage == 0 else (1, job.dp)
    arguments: Arguments = [
        ("--parallelism.data-parallel-replicate-degree", str(replicate)),
        ("--parallelism.data-parallel-shard-degree", str(shard)),
        (
            "--parallelism.fsdp-reshard-after-forward",
            "always" if recipe.zero_stage == 3 else "never",
        ),
        ("--parallelism.tensor-parallel-degree", str(recipe.tp)),
        ("--parallelism.context-parallel-degree", str(recipe.cp)),
        ("--parallelism.pipeline-parallel-degree", str(recipe.pp)),
        # The default of 0.3 fails in FSDP with PyTorch 2.13.
        ("--parallelism.spmd-backend", "partial_dtensor"),
    ]
    if recipe.tp > 1 and not recipe.sp:
        arguments.append(("--parallelism.no-enable-sequence-parallel",))
    if job.model.moe is not None:
        arguments.append(("--parallelism.expert-parallel-degree", str(recipe.ep)))
    return arguments


def _pipeline(job: Job) -> Arguments:
    recipe = job.recipe
    if recipe.pp == 1:
        return []
    schedule = "Interleaved1F1B" if recipe.vpp > 1 else _SCHEDULE[recipe.schedule]
    arguments: Arguments = [
        ("--parallelism.pipeline-parallel-schedule", schedule),
        ("--parallelism.pipeline-parallel-microbatch-size", str(recipe.micro_batch)),
    ]
    layers = equal_chunks(job)
    if layers is not None:
        arguments += [
            ("--parallelism.pipeline-parallel-layers-per-stage", str(layers)),
            # Unless told, it counts the embedding and the head as a layer each.
            ("--parallelism.pipeline-parallel-first-stage-less-layers", "0"),
            ("--parallelism.pipeline-parallel-last-stage-less-layers", "0"),
        ]
    return arguments


def _compile(job: Job) -> Arguments:
    if job.framework.fusion == "eager" and not job.recipe.tp_comm_overlap:
        return []
    arguments: Arguments = [("--compile.enable",)]
    if job.recipe.tp_comm_overlap:
        arguments.append(("--compile.enable-async-tensor-parallel",))
    return arguments


def _impossible(job: Job) -> tuple[str, ...]:
    recipe = job.recipe
    reasons = []
    if job.precision in ("fp16", "fp8", "fp8_current", "mxfp8"):
        reasons.append(
            f"precision={job.precision} (it trains in bf16 or fp32; its converters scale 8 bits "
            "otherwise)"
        )
    if recipe.ep > 1 and job.etp > 1:
        reasons.append(f"etp={job.etp} with ep={recipe.ep} (it spreads whole experts)")
    if job.model.moe is not None and recipe.ep == 1 and job.etp != recipe.tp:
        reasons.append(f"etp={job.etp} with tp={recipe.tp} and ep=1 (tp cuts experts too)")
    if recipe.zero_stage == 0 and recipe.ep > 1 and recipe.cp * recipe.tp % recipe.ep:
        reasons.append(f"ep={recipe.ep} over replicas that zero_stage=0 keeps whole")
    if recipe.cp > 1 and recipe.cp_comm_type == "a2a":
        reasons.append("cp_comm_type=a2a (it gathers keys and values)")
    return tuple(reasons)


def _unsupported(job: Job) -> tuple[str, ...]:
    recipe, moe = job.recipe, job.model.moe
    modules = recipe.recompute_modules or "core_attn"
    missing = []
    if recipe.recompute == "selective" and modules != "operations":
        missing.append(f"recompute_modules={modules} (it recomputes by operation: operations)")
    if recipe.recompute_layers is not None or recipe.recompute_taper:
        missing.append("recompute_layers, recompute_taper (it recomputes every layer)")
    if recipe.zero_stage == 1 and recipe.pp == 1:
        missing.append("zero_stage=1 (FSDP2 shards gradients too, every micro-batch)")
    if recipe.zero_stage == 0 and recipe.cp > 1:
        missing.append("zero_stage=0 with cp > 1 (it shards over context-parallel ranks)")
    if recipe.zero_stage == 1 and job.dp > 1 and not recipe.overlap_grad_reduce:
        missing.append("overlap_grad_reduce=false (FSDP2 always overlaps)")
    if recipe.use_tp_pp_dp_mapping and recipe.pp > 1:
        missing.append("use_tp_pp_dp_mapping (stages of a pipeline lie apart)")
    if recipe.overlap_moe_expert_parallel_comm:
        missing.append("overlap_moe_expert_parallel_comm")
    if moe is not None and moe.capacity_factor is not None:
        missing.append("moe.capacity_factor (it drops no token)")
    if moe is not None and moe.dispatcher == "allgather":
        missing.append("moe.dispatcher=allgather (alltoall takes its place)")
    if job.precision == "tf32":
        missing.append("precision=tf32 (torch.set_float32_matmul_precision in the module)")
    if job.framework.cuda_graphs and not _cuda_graphs(job):
        missing.append("CUDA graphs under pipelines or experts")
    return tuple(missing)
