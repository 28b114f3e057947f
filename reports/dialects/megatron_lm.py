"""Megatron-LM's arguments, each with the field of a job that it is or how it follows from one.

Names are those of Megatron-LM's ``megatron/training/arguments.py`` (core 0.13 and later). Data,
tokenizer and learning rate are the user's. ``megatron_reader`` reads what the table says of single
fields, and what several arguments say together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from trainscout.reports.dialects import megatron_core
from trainscout.reports.dialects.megatron_layers import (
    EXPERT_LAYERS,
    LAYOUT,
    expert_layers,
    layout,
)
from trainscout.reports.dialects.setting import Setting, Settings, Value, value_at, write
from trainscout.simulators.predictor.question.job import Job

TITLE = "Megatron-LM"
SHARDING = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""How data parallelism shards, by ZeRO stage."""


def settings_of(job: Job) -> Settings:
    """The arguments of a valid job, by name."""
    model, recipe = job.model, job.recipe
    if model.mla is not None:
        # Latent queries and keys are always normalised.
        model = replace(model, qk_norm=True, head_dim=None, num_query_groups=None)
    elif model.kv_heads == model.num_heads:
        model = replace(model, num_query_groups=None)
    recipe = replace(
        recipe,
        etp=job.etp,
        # What is sharded travels beside computation, in Megatron-FSDP as in the prediction.
        overlap_grad_reduce=recipe.overlap_grad_reduce or recipe.zero_stage >= 2,
        overlap_param_gather=recipe.overlap_param_gather or recipe.zero_stage == 3,
    )
    return write(ARGUMENTS, replace(job, model=model, recipe=recipe))


def impossible(job: Job) -> tuple[str, ...]:
    """What ``validate_args`` of Megatron-LM refuses and Megatron-Core does not, in words."""
    reasons = []
    if job.precision == "fp16" and job.recipe.ep > 1:
        reasons.append("ep > 1 in fp16")
    if job.model.num_mtp_layers and job.model.position == "learned":
        reasons.append("multi-token prediction with learned positions")
    return tuple(reasons)


def _given(path: str) -> Callable[[Job], Value]:
    return lambda job: value_at(job, path) is not None


def _has_experts(job: Job) -> bool:
    return job.model.moe is not None


def _first_layers_differ(job: Job) -> bool:
    moe = job.model.moe
    return moe is not None and (moe.num_dense_layers > 0 or moe.layer_period > 1)


def _is_pipeline(job: Job) -> bool:
    return job.recipe.pp > 1


def _is_counted(job: Job) -> bool:
    """Whether a pipeline's split is one that Megatron makes from counts and degrees alone."""
    recipe = job.recipe
    if recipe.pp == 1 or recipe.first_stage_layers or recipe.last_stage_layers:
        return recipe.pp > 1
    if recipe.loss_as_layer and job.model.num_mtp_layers:
        # Megatron counts the loss as one layer, however many modules stand beside it.
        return False
    counts = [layers for chunks in zip(*job.layers_per_chunk, strict=True) for layers in chunks]
    counts[0] += recipe.embedding_as_layer
    counts[-1] += recipe.loss_as_layer
    return len(set(counts)) == 1


def _is_laid_out(job: Job) -> bool:
    return _is_pipeline(job) and not _is_counted(job)


def _ends_differ(job: Job) -> bool:
    """Whether a split has no single layer count per virtual stage."""
    recipe = job.recipe
    named = (recipe.first_stage_layers, recipe.last_stage_layers)
    return any((*named, recipe.embedding_as_layer, recipe.loss_as_layer))


def _is_virtual(job: Job) -> bool:
    return job.recipe.vpp > 1


def _has_halved_moments(job: Job) -> bool:
    return job.training.optimizer == "adam_bf16"


def _overwrites_logits(job: Job) -> bool:
    """Whether the loss is Transformer Engine's."""
    return job.framework.cross_entropy == "in_place"


def _has_8_bits(job: Job) -> bool:
    return job.precision in megatron_core.FP8


def _is_recomputed(job: Job) -> bool:
    return job.recipe.recompute == "full"


def _is_by_fsdp(job: Job) -> bool:
    return job.recipe.zero_stage >= 2


ARGUMENTS: tuple[Setting, ...] = (
    Setting("--num-layers", "model.num_layers"),
    Setting("--hidden-size", "model.hidden_size"),
    Setting("--ffn-hidden-size", "model.ffn_hidden_size"),
    Setting("--num-attention-heads", "model.num_heads"),
    Setting("--seq-length", lambda job: job.sequence_length),
    Setting(
        "--max-position-embeddings",
        lambda job: max(job.sequence_length, job.model.sequence_length),
    ),
    Setting("--tokenizer-type", lambda job: "NullTokenizer"),
    # NullTokenizer counts its end-of-document token on top.
    Setting("--vocab-size", lambda job: job.model.vocab_size - 1),
    Setting("--make-vocab-size-divisible-by", "model.vocab_multiple"),
    Setting(
        "--normalization",
        "model.normalization",
        {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"},
    ),
    Setting(
        "--position-embedding-type",
        "model.position",
        {"learned": "learned_absolute", "rope": "rope", "none": "none"},
        near=dict.fromkeys(("mrope", "yarn", "relative"), ("rope", "positions are rotary")),
    ),
    Setting("--swiglu", "model.gated_mlp"),
    Setting("--disable-bias-linear", "model.linear_bias", on=False),
    Setting("--add-qkv-bias", "model.qkv_bias", when=lambda job: not job.model.linear_bias),
    Setting("--untie-embeddings-and-output-weights", "model.tied_embeddings", on=False),
    Setting("--attention-dropout", lambda job: "" if job.model.dropout else "0"),
    Setting("--hidden-dropout", lambda job: "" if job.model.dropout else "0"),
    Setting("--qk-layernorm", "model.qk_norm"),
    Setting("--multi-latent-attention", _given("model.mla")),
    Setting("--q-lora-rank", "model.mla.q_lora_rank"),
    Setting("--kv-lora-rank", "model.mla.kv_lora_rank", default=32),
    Setting("--qk-head-dim", "model.mla.qk_nope_head_dim", default=128),
    Setting("--qk-pos-emb-head-dim", "model.mla.qk_rope_head_dim", default=64),
    Setting("--v-head-dim", "model.mla.v_head_dim", default=128),
    Setting("--kv-channels", "model.head_dim"),
    Setting("--group-query-attention", _given("model.num_query_groups")),
    Setting("--num-query-groups", lambda job: job.model.num_query_groups),
    Setting("--mtp-num-layers", "model.num_mtp_layers"),
    Setting("--num-experts", "model.moe.num_experts"),
    Setting("--moe-router-topk", "model.moe.top_k", default=2),
    Setting("--moe-ffn-hidden-size", "model.moe.ffn_hidden_size"),
    Setting(
        "--moe-token-dispatcher-type",
        "model.moe.dispatcher",
        {"alltoall": "alltoall", "allgather": "allgather", "deepep": "flex"},
        near={"alltoall_seq": ("alltoall", None)},
        default="allgather",
    ),
    Setting("--moe-enable-deepep", lambda job: value_at(job, "model.moe.dispatcher") == "deepep"),
    Setting("--moe-grouped-gemm", megatron_core.grouped_gemm),
    Setting("--moe-shared-expert-intermediate-size", "model.moe.shared_ffn_hidden_size"),
    Setting(EXPERT_LAYERS, lambda job: expert_layers(job.model), when=_first_layers_differ),
    Setting("--moe-expert-capacity-factor", "model.moe.capacity_factor"),
    Setting("--moe-pad-expert-input-to-capacity", _given("model.moe.capacity_factor")),
    Setting("--micro-batch-size", "recipe.micro_batch"),
    Setting("--global-batch-size", "training.global_batch_size"),
    Setting(
        "--train-iters", lambda job: max(1, math.ceil(job.training.tokens / job.tokens_per_step))
    ),
    # Megatron has no default, and stops without one.
    Setting("--lr", lambda job: "1e-4"),
    Setting("--mock-data", lambda job: True),
    Setting("--attention-backend", megatron_core.attention_backend),
    Setting("--bf16", lambda job: job.precision == "bf16" or _has_8_bits(job)),
    Setting("--fp16", lambda job: job.precision == "fp16"),
    Setting("--fp8-format", lambda job: megatron_core.FP8[job.precision][1], when=_has_8_bits),
    Setting("--fp8-recipe", lambda job: megatron_core.FP8[job.precision][0], when=_has_8_bits),
    Setting("--optimizer", lambda job: job.training.optimizer.partition("_")[0]),
    Setting("--use-precision-aware-optimizer", _has_halved_moments),
    Setting("--exp-avg-dtype", lambda job: "bf16", when=_has_halved_moments),
    Setting("--exp-avg-sq-dtype", lambda job: "bf16", when=_has_halved_moments),
    Setting("--accumulate-allreduce-grads-in-fp32", "framework.accumulate_grads_fp32"),
    Setting("--grad-reduce-in-bf16", "framework.accumulate_grads_fp32", on=False),
    Setting("--cross-entropy-loss-fusion", _overwrites_logits),
    Setting("--cross-entropy-fusion-impl", lambda job: "te", when=_overwrites_logits),
    Setting("--moe-router-fusion", "framework.fused_router", default=False, when=_has_experts),
    Setting("--no-gradient-accumulation-fusion", "framework.fused_wgrad", on=False, default=True),
    Setting("--tensor-model-parallel-size", "recipe.tp"),
    Setting("--pipeline-model-parallel-size", "recipe.pp"),
    Setting("--context-parallel-size", "recipe.cp"),
    Setting(
        "--cp-comm-type", lambda job: job.recipe.cp_comm_type, when=lambda job: job.recipe.cp > 1
    ),
    Setting("--use-tp-pp-dp-mapping", "recipe.use_tp_pp_dp_mapping", when=_is_pipeline),
    Setting("--expert-model-parallel-size", "recipe.ep", when=_has_experts),
    Setting("--expert-tensor-parallel-size", "recipe.etp", when=_has_experts),
    Setting("--overlap-moe-expert-parallel-comm", "recipe.overlap_moe_expert_parallel_comm"),
    Setting("--sequence-parallel", "recipe.sp"),
    Setting("--tp-comm-overlap", "recipe.tp_comm_overlap"),
    Setting(LAYOUT, layout, when=_is_laid_out),
    Setting("--decoder-first-pipeline-num-layers", "recipe.first_stage_layers", when=_is_counted),
    Setting("--decoder-last-pipeline-num-layers", "recipe.last_stage_layers", when=_is_counted),
    Setting(
        "--account-for-embedding-in-pipeline-split",
        "recipe.embedding_as_layer",
        when=_is_counted,
    ),
    Setting("--account-for-loss-in-pipeline-split", "recipe.loss_as_layer", when=_is_counted),
    Setting(
        "--num-virtual-stages-per-pipeline-rank",
        lambda job: job.recipe.vpp,
        when=lambda job: _is_virtual(job) and _is_counted(job) and _ends_differ(job),
    ),
    Setting(
        "--num-layers-per-virtual-pipeline-stage",
        lambda job: job.layers_per_stage[0] // job.recipe.vpp,
        when=lambda job: _is_virtual(job) and _is_counted(job) and not _ends_differ(job),
    ),
    Setting(
        "--no-overlap-p2p-communication",
        "framework.overlap_p2p",
        on=False,
        default=True,
        when=_is_virtual,
    ),
    Setting(
        "--recompute-granularity",
        lambda job: job.recipe.recompute,
        when=lambda job: job.recipe.recompute != "none",
    ),
    Setting("--recompute-modules", megatron_core.recompute_modules),
    Setting(
        "--recompute-method",
        lambda job: "uniform" if job.recipe.recompute_layers is None else "block",
        when=_is_recomputed,
    ),
    Setting(
        "--recompute-num-layers", lambda job: job.recipe.recompute_layers or 1, when=_is_recomputed
    ),
    Setting("--use-distributed-optimizer", lambda job: job.recipe.zero_stage >= 1),
    Setting("--use-megatron-fsdp", _is_by_fsdp),
    Setting(
        "--data-parallel-sharding-strategy",
        lambda job: SHARDING[job.recipe.zero_stage],
        when=_is_by_fsdp,
    ),
    Setting("--ckpt-format", lambda job: "fsdp_dtensor", when=_is_by_fsdp),
    Setting("--overlap-grad-reduce", "recipe.overlap_grad_reduce"),
    # All stages gather a chunk's parameters at once, as is predicted: its default.
    Setting("--overlap-param-gather", "recipe.overlap_param_gather"),
)
