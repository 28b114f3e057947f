"""TorchTitan's settings (0.3), each with the field of a job that it is or how it follows from one.

The model is no setting: it is a Python module. ``torchtitan_reader`` reads what the table says of
single fields, what several settings say together, and what the files of 2025 said.
"""

from __future__ import annotations

from functools import partial

from trainscout.reports.dialects.setting import (
    Setting,
    Settings,
    knob,
    num_steps,
    unknown_knobs,
    with_other_knobs,
    write,
)
from trainscout.reports.dialects.shape import unscaled, untold
from trainscout.reports.dialects.software import unsaid_facts
from trainscout.reports.dialects.tuning import unpacked, untrainable
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knob import TORCHTITAN
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import KNOBS
from trainscout.simulators.predictor.question.schedule_file import file_path, is_file
from trainscout.simulators.predictor.question.schedules import routes

TITLE = "TorchTitan"
_SCHEDULE = KNOBS["schedule"].flags[TORCHTITAN]
SCHEDULES = dict(_SCHEDULE.values or {})
"""Its names of the schedules of a pipeline whose stages are one chunk."""
LOOPED_SCHEDULES = {
    "1f1b": "Interleaved1F1B",
    "gpipe": "LoopedBFS",
    "zb-h1": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
"""And of several chunks."""


def settings_of(job: Job) -> Settings:
    """The settings of a valid job, by name; the choice of recomputation is not one of them."""
    return write(ARGUMENTS, job)


def _missing_parts(model: Model) -> tuple[str, ...]:
    """Parts of a model that none of TorchTitan's models has."""
    parts = (
        (model.position != "rope", f"position={model.position} (it has rope only)"),
        (model.normalization != "rmsnorm", f"normalization={model.normalization}"),
        (not model.gated_mlp, "an MLP without gate"),
        (model.linear_bias, "biases of linear layers"),
        (model.qkv_bias, "biases of queries, keys and values"),
        (model.dropout, "dropout"),
        (model.num_mtp_layers > 0, "multi-token prediction"),
        (model.mla is not None and model.tied_embeddings, "latent attention, embeddings tied"),
    )
    missing = [words for missing, words in parts if missing]
    words = (*missing, *model.special_layers, *untold(model))
    return tuple(f"model: {each}" for each in words)


def impossible(job: Job) -> tuple[str, ...]:
    """Why TorchTitan cannot run the job, in words."""
    recipe = job.recipe
    reasons = [*_missing_parts(job.model), *untrainable(job, adapters=False)]
    if job.precision in ("fp16", "fp8", "fp8_current", "fp8_block", "mxfp8", "nvfp4"):
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
    if recipe.cp > 1 and recipe.cp_comm_type != "p2p":
        reasons.append(f"cp_comm_type={recipe.cp_comm_type} (it gathers keys and values as p2p)")
    if recipe.pp > 1 and job.schedule not in _schedules(job):
        chunks = "several chunks" if recipe.vpp > 1 else "one chunk"
        reasons.append(f"schedule={job.schedule} of {chunks} a stage")
    return tuple(reasons)


def _schedules(job: Job) -> dict[str, str]:
    if is_file(job.schedule):
        # The file says the order, and the name on which ranks the parts lie.
        recipe = job.recipe
        for ours in ("1f1b", "zb-v"):
            if routes(ours, recipe.pp, recipe.vpp) == job.routes:
                return {job.schedule: (LOOPED_SCHEDULES if recipe.vpp > 1 else SCHEDULES)[ours]}
        return {}
    return LOOPED_SCHEDULES if job.recipe.vpp > 1 else SCHEDULES


def unsupported(job: Job) -> tuple[str, ...]:
    """What the recipe asks for and TorchTitan does otherwise, in words."""
    recipe, moe = job.recipe, job.model.moe
    modules = recipe.recompute_modules or "core_attn"
    missing = unknown_knobs(TORCHTITAN, _TOGETHER, job)
    if recipe.recompute == "selective" and modules != "operations":
        missing.append(f"recompute_modules={modules} (it recomputes by operation: operations)")
    for name in ("recompute_layers", "recompute_taper"):
        if getattr(recipe, name):
            missing.append(f"{name}={getattr(recipe, name)} (it recomputes every layer)")
    if recipe.zero_stage == 1 and recipe.pp == 1:
        missing.append("zero_stage=1 (FSDP2 shards gradients too, every micro-batch)")
    if recipe.zero_stage == 0 and recipe.cp > 1:
        missing.append("zero_stage=0 with cp > 1 (it shards over context-parallel ranks)")
    if recipe.zero_stage <= 1 and job.is_replicated and not recipe.overlap_grad_reduce:
        missing.append("overlap_grad_reduce=false (FSDP2 always overlaps)")
    gathers_beside = job.gathers_units or recipe.overlap_param_gather
    if recipe.zero_stage in (1, 2) and job.is_replicated and not gathers_beside:
        missing.append("overlap_param_gather=false (FSDP2 always overlaps)")
    if recipe.use_tp_pp_dp_mapping and recipe.pp > 1:
        missing.append("use_tp_pp_dp_mapping (stages of a pipeline lie apart)")
    if recipe.overlap_moe_expert_parallel_comm:
        missing.append("overlap_moe_expert_parallel_comm")
    if moe is not None and moe.capacity_factor is not None:
        missing.append("moe.capacity_factor (it drops no token)")
    if moe is not None and job.dispatcher == "allgather":
        missing.append("moe.dispatcher=allgather (alltoall takes its place)")
    if job.optimizer == "adam_pure_bf16":
        missing.append("optimizer=adam_pure_bf16 (weights stay fp32)")
    if recipe.zero_stage >= 2 and job.dp // job.shard_copies * recipe.cp == 1:
        missing.append(f"zero_stage={recipe.zero_stage} on one rank (FSDP2 shards over several)")
    loss, runs = job.framework.cross_entropy, loss_of(job)
    if loss != runs and TORCHTITAN in job.framework.launch:
        missing.append(f"framework.cross_entropy={loss} (its loss is {runs})")
    missing += unsaid_facts(job, _facts(job))
    missing += (*unscaled(job.model), *unpacked(job))
    if job.precision == "tf32":
        missing.append("precision=tf32 (torch.set_float32_matmul_precision in the module)")
    if job.framework.cuda_graphs and not _graphed(job):
        missing.append("CUDA graphs under pipelines or experts")
    return tuple(missing)


def loss_of(job: Job) -> str:
    """What the loss makes of logits (``framework.cross_entropy``)."""
    if job.framework.cross_entropy == "pieces":
        return "pieces"
    return "compiled" if _compiled(job) else "eager"


def _compiled(job: Job) -> bool:
    return job.framework.fusion != "eager" or job.recipe.tp_comm_overlap


def _facts(job: Job) -> set[str]:
    """Fields of the software that its files say, or that are said not to be supported."""
    runs = "compiled" if _compiled(job) else "eager"
    return {"cuda_graphs", "cross_entropy", *["fusion"] * (job.framework.fusion == runs)}


def equal_chunks(job: Job) -> int | None:
    """Layers of every chunk of the pipeline, where they are all alike."""
    counts = {layers for chunks in job.layers_per_chunk for layers in chunks}
    return counts.pop() if len(counts) == 1 else None


def _graphed(job: Job) -> bool:
    """Whether steps run as CUDA graphs, which it refuses under pipelines and for experts."""
    return job.framework.cuda_graphs and job.recipe.pp == 1 and job.model.moe is None


def _piped(job: Job) -> bool:
    return job.recipe.pp > 1


def _even(job: Job) -> bool:
    return _piped(job) and equal_chunks(job) is not None


def _local_batch(job: Job) -> int:
    # A pipeline cuts its replica's whole share; without one, shares are accumulated.
    return job.recipe.micro_batch * (job.num_micro_batches if _piped(job) else 1)


_knob = partial(knob, TORCHTITAN)
# Knobs that several settings say together, and those that are said not to be supported.
_TOGETHER = (
    *("cp_comm_type", "etp", "vpp", "micro_batch", "recompute", "recompute_layers"),
    *("recompute_taper", "recompute_modules", "sp", "zero_stage", "overlap_grad_reduce"),
    *("overlap_param_gather", "overlap_moe_expert_parallel_comm", "precision"),
    *("first_stage_layers", "last_stage_layers", "embedding_as_layer", "loss_as_layer"),
    *("pipeline_layout", "use_tp_pp_dp_mapping", "cuda_graphs", "moe_dispatcher", "dp_shard"),
)

ARGUMENTS: tuple[Setting, ...] = with_other_knobs(
    TORCHTITAN,
    Setting("--training.local-batch-size", _local_batch),
    Setting("--training.global-batch-size", "training.global_batch_size"),
    Setting("--training.seq-len", lambda job: job.sequence_length),
    Setting("--training.steps", num_steps),
    Setting(
        "--training.mixed-precision-param",
        lambda job: "float32" if job.precision in ("fp32", "tf32") else "bfloat16",
    ),
    Setting("--training.disable-cuda-graphs", lambda job: not _graphed(job)),
    Setting(
        "--parallelism.data-parallel-replicate-degree",
        lambda job: job.shard_copies if job.recipe.zero_stage else job.dp,
    ),
    Setting(
        "--parallelism.data-parallel-shard-degree",
        lambda job: job.dp // job.shard_copies if job.recipe.zero_stage else 1,
    ),
    Setting(
        "--parallelism.fsdp-reshard-after-forward",
        lambda job: "always" if job.recipe.zero_stage == 3 else "never",
    ),
    _knob("tp"),
    _knob("cp"),
    _knob("pp"),
    # The default of 0.3 fails in FSDP with PyTorch 2.13.
    Setting("--parallelism.spmd-backend", lambda job: "partial_dtensor"),
    Setting(
        "--parallelism.no-enable-sequence-parallel",
        lambda job: job.recipe.tp > 1 and not job.recipe.sp,
    ),
    _knob("ep", lambda job: job.model.moe is not None),
    Setting(_SCHEDULE.name, lambda job: _schedules(job)[job.schedule], when=_piped),
    Setting(
        "--parallelism.pipeline-parallel-schedule-csv",
        lambda job: file_path(job.schedule),
        when=lambda job: is_file(job.schedule),
    ),
    Setting("--parallelism.pipeline-parallel-microbatch-size", "recipe.micro_batch", when=_piped),
    Setting("--parallelism.pipeline-parallel-layers-per-stage", equal_chunks, when=_even),
    # Unless told, it counts the embedding and the head as a layer each.
    Setting("--parallelism.pipeline-parallel-first-stage-less-layers", lambda job: 0, when=_even),
    Setting("--parallelism.pipeline-parallel-last-stage-less-layers", lambda job: 0, when=_even),
    Setting("--compile.enable", _compiled),
    _knob("tp_comm_overlap"),
)
