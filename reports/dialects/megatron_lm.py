"""Megatron-LM's arguments, each with the field of a job that it is or how it follows from one.

Names are those of Megatron-LM's ``megatron/training/arguments.py`` (core 0.13 and later). Data,
tokenizer and learning rate are the user's. ``megatron_reader`` reads what the table says of single
fields, and what several arguments say together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from trainscout.reports.dialects import megatron_core, megatron_hybrid, megatron_zero_bubble
from trainscout.reports.dialects.megatron_layers import (
    EXPERT_LAYERS,
    LAYOUT,
    expert_layers,
    layout,
)
from trainscout.reports.dialects.setting import (
    Setting,
    Settings,
    Value,
    knob,
    num_steps,
    value_at,
    with_other_knobs,
    write,
)
from trainscout.reports.dialects.shape import unscaled
from trainscout.reports.dialects.software import facts_of, unsaid_facts
from trainscout.reports.dialects.tuning import unpacked, untrainable
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knob import MEGATRON_LM

TITLE = "Megatron-LM"
SHARDING = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""How data parallelism shards, by ZeRO stage."""
MASKLESS = "--no-create-attention-mask-in-dataloader"
OFFLOAD = "--optimizer-offload-fraction"
_UNCHECKED = "--no-check-for-nan-in-loss-and-grad"
_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_POSITIONS = {"learned": "learned_absolute", "rope": "rope", "none": "none"}
_NEAR = ("rope", "positions are rotary")
_ROTARY = {"mrope": _NEAR, "relative": _NEAR, "yarn": ("rope", None)}
# GPT-OSS's; Megatron-LM clamps this activation alone, and no speed depends on the values.
CLAMP = "--activation-func-clamp-value"
_CLAMPED = {"--quick-geglu": True, "--glu-linear-offset": 1.0, CLAMP: 7.0}


def settings_of(job: Job) -> Settings:
    """The arguments of a valid job, by name."""
    model, recipe = job.model, job.recipe
    if model.mla is not None:
        # Latent queries and keys are always normalised.
        model = replace(model, qk_norm=True, head_dim=None, num_query_groups=None)
    elif model.kv_heads == model.num_heads:
        model = replace(model, num_query_groups=None)
    pattern = megatron_hybrid.letters(model)
    if pattern is not None:
        # Megatron counts a layer for each letter.
        model = replace(model, num_layers=len(pattern))
    recipe = replace(
        recipe,
        etp=job.etp,
        # What is sharded travels beside computation, in Megatron-FSDP as in the prediction.
        overlap_grad_reduce=recipe.overlap_grad_reduce or recipe.zero_stage >= 2,
        overlap_param_gather=recipe.overlap_param_gather or recipe.zero_stage == 3,
    )
    return write(ARGUMENTS, replace(job, model=model, recipe=recipe))


def unsupported(job: Job) -> tuple[str, ...]:
    """What it leaves to the data, and what no argument says, in words."""
    missing = unscaled(job.model)
    if job.model.moe is not None and job.framework.fused_experts and job.precision == "mxfp8":
        missing.append("framework.fused_experts (Megatron-Bridge turns it on)")
    return (*unpacked(job), *missing, *unsaid_facts(job, facts(job)))


def facts(job: Job) -> frozenset[str]:
    """Fields of the software that arguments say."""
    said = {"cuda_graphs", "graphs_leave_experts", "megatron_fsdp", "fp8_param_gather"}
    said |= {"attention"} if job.framework.attention in ("flash", "unfused") else set()
    said |= {"cross_entropy"} if _in_place(job) else set()
    said |= {"written_dispatch"} if job.framework.written_dispatch in ("", "atomic") else set()
    return facts_of(ARGUMENTS) | said


def impossible(job: Job) -> tuple[str, ...]:
    """What ``validate_args`` of Megatron-LM refuses and Megatron-Core does not, in words."""
    reasons = []
    if job.precision == "fp16" and job.recipe.ep > 1:
        reasons.append("ep > 1 in fp16")
    if job.model.num_mtp_layers and job.model.position == "learned":
        reasons.append("multi-token prediction with learned positions")
    reasons += untrainable(job, adapters=False, modules=True)
    return (*reasons, *megatron_hybrid.impossible(job))


def _stated(path: str) -> Callable[[Job], Value]:
    return lambda job: value_at(job, path) is not None


def _sets(flag: str, job: Job) -> Value:
    return flag in megatron_core.quantised_parameters(job)


def _rotates(job: Job) -> bool:
    return job.model.position == "rope"


def _expert(job: Job) -> bool:
    return job.model.moe is not None


def _patterned(job: Job) -> bool:
    """Whether not all layers have experts."""
    model = job.model
    mixed = len({layer.mlp for layer in model.layer_kinds}) > 1
    return model.moe is not None and mixed and not megatron_hybrid.is_hybrid(model)


def _hybrid(job: Job) -> bool:
    """Whether layers are said by letters."""
    return megatron_hybrid.is_hybrid(job.model)


def _scan(name: str) -> Callable[[Job], Value]:
    """A size of the state-space mixer."""
    return lambda job: getattr(megatron_hybrid.state_space(job.model), name, None)


def _window(job: Job) -> str | None:
    """Tokens to the left and right of a query that it attends to, where there is a window."""
    size = megatron_hybrid.window(job.model)
    return None if size is None else f"{size - 1},0"


def _piped(job: Job) -> bool:
    return job.recipe.pp > 1


def _counted(job: Job) -> bool:
    """Whether a pipeline's split is one that Megatron makes from counts and degrees alone."""
    recipe = job.recipe
    if recipe.pipeline_layout is not None:
        return False
    if recipe.pp == 1 or recipe.first_stage_layers or recipe.last_stage_layers:
        return recipe.pp > 1
    if recipe.loss_as_layer and job.model.num_mtp_layers:
        # Megatron counts the loss as one layer, however many modules stand beside it.
        return False
    counts = [layers for chunks in zip(*job.layers_per_chunk, strict=True) for layers in chunks]
    counts[0] += recipe.embedding_as_layer
    counts[-1] += recipe.loss_as_layer
    return len(set(counts)) == 1


def _chunks(job: Job) -> int | None:
    """Virtual stages, where an uneven split has no single layer count for each."""
    recipe = job.recipe
    even = not any(getattr(recipe, name) for name in _ENDS)
    plain = recipe.vpp == 1 or megatron_zero_bubble.is_v_shaped(job)
    return None if plain or even or not _counted(job) else recipe.vpp


def _layers_per_chunk(job: Job) -> int | None:
    plain = job.recipe.vpp == 1 or megatron_zero_bubble.is_v_shaped(job)
    if plain or _chunks(job) or not _counted(job):
        return None
    return job.layers_per_stage[0] // job.recipe.vpp


def _host_updates(job: Job) -> bool:
    return job.recipe.optimizer_offload > 0


def _halved(job: Job) -> bool:
    """Whether both moments of Adam have 16 bits."""
    return job.optimizer == "adam_bf16"


def _in_place(job: Job) -> bool:
    """Whether the loss is Transformer Engine's, which overwrites its logits."""
    return job.framework.cross_entropy == "in_place"


def _scaled(job: Job) -> bool:
    """Whether linear layers have 8 bits."""
    return job.precision in megatron_core.FP8


def _in_four_bits(job: Job) -> bool:
    return job.precision in megatron_core.FP4


def _kept(job: Job) -> bool:
    """Whether some layers stay in 16 bits where others have fewer."""
    model = job.model
    kept = model.num_layers_at_start_in_bf16 + model.num_layers_at_end_in_bf16
    return kept > 0 and (_scaled(job) or _in_four_bits(job))


def _whole(job: Job) -> bool:
    """Whether whole layers are recomputed."""
    return job.recipe.recompute == "full"


def _whole_iteration(job: Job) -> bool:
    return megatron_core.graph_scope(job) == megatron_core.WHOLE_ITERATION


def _graphs(job: Job) -> str | None:
    """What captures CUDA graphs; whole iterations are a scope of Megatron's own."""
    if not megatron_core.graph_scope(job):
        return None
    return "local" if _whole_iteration(job) else "transformer_engine"


def _fsdp(job: Job) -> bool:
    return job.recipe.zero_stage >= 2 or job.framework.megatron_fsdp


_STACK = ("megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec")
_ENDS = ("first_stage_layers", "last_stage_layers", "embedding_as_layer", "loss_as_layer")
_knob = partial(knob, MEGATRON_LM)

ARGUMENTS: tuple[Setting, ...] = with_other_knobs(
    MEGATRON_LM,
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
    Setting("--normalization", "model.normalization", _NORMS),
    Setting("--position-embedding-type", "model.position", _POSITIONS, near=_ROTARY),
    Setting(
        "--rotary-percent",
        "model.rotary_fraction",
        when=lambda job: _rotates(job) and job.model.rotary_fraction < 1,
    ),
    Setting("--swiglu", "model.gated_mlp", when=lambda job: not job.model.clamped_mlp),
    *(
        Setting(name, lambda job, value=value: value if job.model.clamped_mlp else None)  # type: ignore[misc]
        for name, value in _CLAMPED.items()
    ),
    Setting("--disable-bias-linear", "model.linear_bias", on=False),
    Setting("--add-qkv-bias", "model.qkv_bias", when=lambda job: not job.model.linear_bias),
    Setting("--untie-embeddings-and-output-weights", "model.tied_embeddings", on=False),
    Setting("--attention-dropout", lambda job: None if job.model.dropout else 0),
    Setting("--hidden-dropout", lambda job: None if job.model.dropout else 0),
    Setting("--qk-layernorm", "model.qk_norm"),
    Setting("--multi-latent-attention", _stated("model.mla")),
    Setting("--q-lora-rank", "model.mla.q_lora_rank"),
    Setting("--kv-lora-rank", "model.mla.kv_lora_rank", default=32),
    Setting("--qk-head-dim", "model.mla.qk_nope_head_dim", default=128),
    Setting("--qk-pos-emb-head-dim", "model.mla.qk_rope_head_dim", default=64),
    Setting("--v-head-dim", "model.mla.v_head_dim", default=128),
    Setting("--kv-channels", "model.head_dim"),
    Setting("--group-query-attention", _stated("model.num_query_groups")),
    Setting("--num-query-groups", lambda job: job.model.num_query_groups),
    Setting("--mtp-num-layers", "model.num_mtp_layers"),
    Setting(megatron_hybrid.WINDOW, _window),
    Setting(
        megatron_hybrid.WINDOWED,
        lambda job: megatron_hybrid.windowed_layers(job.model),
        when=lambda job: len(job.model.layer_kinds) > 1,
    ),
    Setting(megatron_hybrid.SINKS, lambda job: megatron_hybrid.sinks(job.model)),
    Setting("--is-hybrid-model", _hybrid),
    Setting(megatron_hybrid.PATTERN, lambda job: megatron_hybrid.letters(job.model)),
    Setting("--spec", lambda job: _STACK, when=_hybrid),
    Setting("--mamba-num-heads", _scan("heads")),
    Setting("--mamba-head-dim", _scan("head_dim")),
    Setting("--mamba-state-dim", _scan("state")),
    Setting("--mamba-num-groups", _scan("groups")),
    Setting("--num-experts", "model.moe.num_experts"),
    Setting("--moe-router-topk", "model.moe.top_k", default=2),
    # Of one expert the softmax is 1 whatever the router says, which it refuses.
    Setting("--moe-router-pre-softmax", lambda job: value_at(job, "model.moe.top_k") == 1),
    Setting("--moe-ffn-hidden-size", "model.moe.ffn_hidden_size"),
    Setting("--moe-latent-size", "model.moe.latent_size"),
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
    Setting(EXPERT_LAYERS, lambda job: expert_layers(job.model), when=_patterned),
    Setting("--moe-expert-capacity-factor", "model.moe.capacity_factor"),
    Setting(
        "--moe-pad-expert-input-to-capacity",
        lambda job: bool(job.model.moe and job.model.moe.padded),
    ),
    _knob("micro_batch"),
    Setting("--global-batch-size", "training.global_batch_size"),
    Setting("--train-iters", num_steps),
    # Megatron has no default, and stops without one.
    Setting("--lr", lambda job: "1e-4"),
    Setting("--mock-data", lambda job: True),
    # Causal attention needs none: it would take a byte for every pair of positions.
    Setting(MASKLESS, lambda job: True),
    Setting("--attention-backend", megatron_core.attention_backend),
    Setting("--bf16", lambda job: job.precision == "bf16" or _scaled(job) or _in_four_bits(job)),
    Setting("--fp16", lambda job: job.precision == "fp16"),
    Setting("--fp8-format", lambda job: megatron_core.FP8[job.precision][1], when=_scaled),
    Setting("--fp8-recipe", lambda job: megatron_core.FP8[job.precision][0], when=_scaled),
    Setting("--fp4-format", lambda job: megatron_core.FP4[job.precision][1], when=_in_four_bits),
    Setting("--fp4-recipe", lambda job: megatron_core.FP4[job.precision][0], when=_in_four_bits),
    *(Setting(flag, partial(_sets, flag)) for flag in megatron_core.QUANTISED_PARAMETERS),
    Setting("--first-last-layers-bf16", _kept),
    # Without a number it keeps one at either end.
    Setting(
        "--num-layers-at-start-in-bf16",
        lambda job: str(job.model.num_layers_at_start_in_bf16),
        when=_kept,
    ),
    Setting(
        "--num-layers-at-end-in-bf16",
        lambda job: str(job.model.num_layers_at_end_in_bf16),
        when=_kept,
    ),
    Setting("--optimizer", lambda job: job.optimizer.partition("_")[0]),
    Setting(
        "--use-precision-aware-optimizer",
        lambda job: _halved(job) or job.recipe.optimizer_states is not None or _host_updates(job),
    ),
    Setting("--optimizer-cpu-offload", lambda job: True, when=_host_updates),
    Setting(OFFLOAD, lambda job: job.recipe.optimizer_offload / 100, when=_host_updates),
    Setting("--overlap-cpu-optimizer-d2h-h2d", lambda job: True, when=_host_updates),
    Setting("--exp-avg-dtype", lambda job: "bf16", when=_halved),
    Setting("--exp-avg-sq-dtype", lambda job: "bf16", when=_halved),
    Setting("--accumulate-allreduce-grads-in-fp32", "framework.accumulate_grads_fp32"),
    Setting("--grad-reduce-in-bf16", "framework.accumulate_grads_fp32", on=False),
    Setting("--ddp-average-in-collective", "framework.divides_gradients", on=False, default=True),
    Setting("--cross-entropy-loss-fusion", _in_place),
    Setting("--cross-entropy-fusion-impl", lambda job: "te", when=_in_place),
    Setting("--moe-router-fusion", "framework.fused_router", default=False, when=_expert),
    Setting("--moe-permute-fusion", lambda job: not job.framework.written_dispatch, when=_expert),
    Setting("--no-gradient-accumulation-fusion", "framework.fused_wgrad", on=False, default=True),
    Setting("--no-rope-fusion", "framework.fused_rope", on=False, default=True, when=_rotates),
    Setting("--cuda-graph-impl", _graphs),
    Setting("--cuda-graph-scope", lambda job: megatron_core.graph_scope(job) or None),
    Setting("--te-rng-tracker", lambda job: _graphs(job) is not None),
    Setting(_UNCHECKED, "framework.checks_gradients", on=False),
    # The host would wait to look.
    Setting(_UNCHECKED, _whole_iteration),
    _knob("tp"),
    _knob("pp"),
    _knob("cp"),
    # It may be said layer by layer, too.
    Setting("--cp-comm-type", lambda job: job.recipe.cp_comm_type if job.recipe.cp > 1 else None),
    _knob("use_tp_pp_dp_mapping", _piped),
    Setting("--use-sharp", lambda job: job.cluster.sharp),
    _knob("ep", _expert),
    _knob("etp", _expert),
    _knob("overlap_moe_expert_parallel_comm"),
    _knob("sp"),
    _knob("tp_comm_overlap"),
    *megatron_zero_bubble.ARGUMENTS,
    Setting(LAYOUT, lambda job: layout(job) if _piped(job) and not _counted(job) else None),
    *(_knob(name, _counted) for name in _ENDS),
    Setting("--num-virtual-stages-per-pipeline-rank", _chunks),
    Setting("--num-layers-per-virtual-pipeline-stage", _layers_per_chunk),
    Setting(
        "--no-overlap-p2p-communication",
        "framework.overlap_p2p",
        on=False,
        default=True,
        when=lambda job: job.recipe.vpp > 1 and not megatron_zero_bubble.is_v_shaped(job),
    ),
    Setting(
        "--recompute-granularity",
        lambda job: job.recipe.recompute if job.recipe.recompute != "none" else None,
    ),
    Setting("--recompute-modules", megatron_core.recompute_modules),
    Setting(
        "--recompute-method",
        lambda job: "uniform" if job.recipe.recompute_layers is None else "block",
        when=_whole,
    ),
    Setting("--recompute-num-layers", lambda job: job.recipe.recompute_layers or 1, when=_whole),
    _knob("offloaded_layers"),
    Setting(
        "--fine-grained-activation-offloading",
        lambda job: job.recipe.offload_modules is not None,
    ),
    Setting("--offload-modules", megatron_core.offload_modules),
    Setting("--use-distributed-optimizer", lambda job: job.recipe.zero_stage >= 1),
    Setting("--use-megatron-fsdp", _fsdp),
    Setting(
        "--data-parallel-sharding-strategy",
        lambda job: SHARDING[job.recipe.zero_stage],
        when=_fsdp,
    ),
    Setting("--ckpt-format", lambda job: "fsdp_dtensor", when=_fsdp),
    Setting("--overlap-grad-reduce", "recipe.overlap_grad_reduce"),
    # All stages gather a chunk's parameters at once, as is predicted: its default.
    Setting("--overlap-param-gather", "recipe.overlap_param_gather"),
)
