"""A Megatron-Bridge configuration: Megatron-LM's arguments as fields, in sections.

Names are those of Megatron-Bridge 0.3.1 (``megatron.bridge.training.config``): the argument's,
with underscores, unless it is renamed here.
"""

from __future__ import annotations

from typing import Any

from trainscout.reports.dialects import megatron_lm
from trainscout.reports.dialects.megatron_core import FP4
from trainscout.reports.dialects.megatron_layers import expert_layers
from trainscout.reports.dialects.setting import Code, Settings
from trainscout.reports.dialects.shape import unscaled, untold
from trainscout.reports.dialects.software import unsaid_facts
from trainscout.reports.dialects.tuning import untrainable
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knob import MEGATRON_BRIDGE, MEGATRON_LM
from trainscout.simulators.predictor.question.recipe import KNOBS

TITLE = "Megatron-Bridge"
Section = dict[str, Any]

_RENAMED = {
    "num_moe_experts": "--num-experts",
    "gated_linear_unit": "--swiglu",
    "fp8": "--fp8-format",
    "fp4": "--fp4-format",
    # Knobs that both have are declared with both names, this one behind its section.
    **{
        knob.flags[MEGATRON_BRIDGE].name.partition(".")[2]: knob.flags[MEGATRON_LM].name
        for knob in KNOBS.values()
        if {MEGATRON_BRIDGE, MEGATRON_LM} <= set(knob.flags)
    },
}
# Which layers have experts, and latent attention, only the specification of a whole block knows.
_BLOCK_SPEC = Code("partial(get_gpt_decoder_block_spec, use_transformer_engine=True)")
LATENT = tuple(f"linear_{name}_proj" for name in ("q", "q_down", "q_up", "kv_down", "kv_up"))
"""What Megatron-Core calls the projections into latent attention."""
_DTYPES = {"fp32": "torch.float32", "fp16": "torch.float16", "bf16": "torch.bfloat16"}


def impossible(job: Job) -> tuple[str, ...]:
    """What is not in the configurations written here, and what it refuses, in words."""
    model = job.model
    words = (*model.special_layers, *untold(model, turned_in_part=True))
    layers = tuple(f"model: {each}" for each in words)
    packed: tuple[str, ...] = ()
    if job.training.packed_lengths and job.recipe.micro_batch > 1:
        packed = (f"micro_batch={job.recipe.micro_batch} with training.packed_lengths",)
    chunks: tuple[str, ...] = ()
    if job.training.distillation is not None and job.recipe.vpp > 1:
        chunks = (f"vpp={job.recipe.vpp} with training.distillation (ModelOpt refuses it)",)
    return (*layers, *untrainable(job, adapters=True, distils=True), *packed, *chunks)


def is_finetuning(job: Job) -> bool:
    """Whether it starts from weights that somebody trained."""
    training = job.training
    return bool(training.lora or training.packed_lengths or training.distillation)


def unsupported(job: Job) -> tuple[str, ...]:
    """What Megatron-Bridge changes that Megatron-Core does not, in words."""
    words, taught = unscaled(job.model), job.training.distillation
    if taught is not None and taught.fp32:
        words.append("training.distillation.fp32 (a teacher has the precision of training)")
    if taught is not None and not taught.sharded and job.recipe.zero_stage == 3:
        words.append("training.distillation.sharded=false (a teacher is sharded with the model)")
    if job.recipe.zero_stage >= 2 and job.framework.fused_wgrad:
        words.append("framework.fused_wgrad (it turns it off under Megatron-FSDP)")
    if job.keeps_quantised and job.precision in FP4:
        words.append(f"fp8_param_gather in {job.precision} (its configuration has it since 0.5)")
    said = megatron_lm.facts(job) | {"fused_experts"}
    return (*words, *unsaid_facts(job, said))


def configuration(job: Job) -> dict[str, Section]:
    """The sections that a job decides, by name."""
    settings = megatron_lm.settings_of(job)
    sections = _sections(job, settings)
    for name, knob in KNOBS.items():
        if MEGATRON_BRIDGE not in knob.flags:
            continue
        section, _, key = knob.flags[MEGATRON_BRIDGE].name.partition(".")
        if MEGATRON_LM in knob.flags:
            value = settings.get(argument_of(key))
        else:
            value = getattr(job.recipe, name)
        if value not in (None, knob.default):
            sections[section].setdefault(key, value)
    return sections


def _sections(job: Job, settings: Settings) -> dict[str, Section]:
    return {
        "model": _model(job, settings),
        "train": _taken(settings, "train_iters global_batch_size micro_batch_size"),
        "optimizer": _optimizer(settings),
        # It has no defaults for weight decay.
        "scheduler": {
            "lr_decay_style": "cosine",
            "start_weight_decay": 0.01,
            "end_weight_decay": 0.01,
        },
        "ddp": {
            **_switches(settings, "use_distributed_optimizer"),
            "data_parallel_sharding_strategy": settings.get(
                "--data-parallel-sharding-strategy", "no_shard"
            ),
            **_switches(settings, "use_megatron_fsdp"),
            "grad_reduce_in_fp32": job.framework.accumulate_grads_fp32,
            **_switches(settings, "overlap_grad_reduce overlap_param_gather"),
            "check_for_nan_in_grad": "--no-check-for-nan-in-loss-and-grad" not in settings,
            "average_in_collective": not job.framework.divides_gradients,
        },
        "dist": _switches(settings, "use_megatron_fsdp use_tp_pp_dp_mapping use_sharp"),
        "comm_overlap": _overlap(settings),
        "mixed_precision": _precision(job, settings),
        "dataset": _dataset(job, settings),
        "tokenizer": _taken(settings, "tokenizer_type vocab_size"),
        "checkpoint": {
            "save": Code("CHECKPOINTS"),
            "load": Code("CHECKPOINTS"),
            "save_interval": Code('int(os.environ.get("SAVE_INTERVAL", "500"))'),
            "ckpt_format": settings.get("--ckpt-format", "torch_dist"),
            **({"pretrained_checkpoint": Code("PRETRAINED")} if is_finetuning(job) else {}),
        },
        "rng": _switches(settings, "te_rng_tracker"),
        **(
            {"rerun_state_machine": {"check_for_nan_in_loss": False}}
            if "--no-check-for-nan-in-loss-and-grad" in settings
            else {}
        ),
        **_adapters(job),
    }


def _graphs(settings: Settings) -> Section:
    if "--cuda-graph-impl" not in settings:
        return {}
    scope = list(settings["--cuda-graph-scope"])  # type: ignore[arg-type]
    captured = _taken(settings, "cuda_graph_impl")
    return {**captured, "cuda_graph_scope": scope, "use_te_rng_tracker": True}


def _adapters(job: Job) -> dict[str, Section]:
    lora = job.training.lora
    if lora is None:
        return {}
    # Latent attention has no layer of the name, and those that are not there match nothing.
    own = {"linear_qkv": LATENT} if job.model.mla is not None else {}
    targets = [name for each in lora.targets for name in own.get(each, (each,))]
    # Scaled by one, as the rank is: no speed depends on it.
    section: Section = {"target_modules": targets, "dim": lora.rank, "alpha": lora.rank}
    section = section | ({"dropout": lora.dropout} if lora.dropout else {})
    return {"peft": section | ({"share_expert_adapters": False} if adapts_each(job) else {})}


def adapts_each(job: Job) -> bool:
    """Whether every expert has adapters of its own, for which it has a switch since 0.5."""
    lora = job.training.lora
    adapted = lora is not None and lora.adapts_experts(job.model)
    return adapted and not job.framework.shares_expert_adapters


def _dataset(job: Job, settings: Settings) -> Section:
    if not job.training.packed_lengths:
        # Mock data as long as no blend is given.
        return {
            "random_seed": 1234,
            **_taken(settings, "seq_length"),
            "blend": None,
            "split": "99,1,0",
            "reset_position_ids": False,
            "reset_attention_mask": False,
            "eod_mask_loss": False,
            "dataloader_type": "single",
        }
    # As its recipes: each rank has two parts of every sequence.
    padded = f", pad_seq_to_mult={2 * job.recipe.cp}" if _splits_packs(job) else ""
    packed = f"PackedSequenceSpecs(packed_sequence_size={job.sequence_length}{padded})"
    return {
        "dataset_root": Code("DATASET"),
        **_taken(settings, "seq_length"),
        "packed_sequence_specs": Code(packed),
        "dataset_kwargs": {"pad_to_max_length": True},
    }


def _splits_packs(job: Job) -> bool:
    return bool(job.training.packed_lengths) and job.recipe.cp > 1


def argument_of(name: str) -> str:
    """The argument of Megatron-LM that a field stands for."""
    return _RENAMED.get(name, "--" + name.replace("_", "-"))


def _taken(settings: Settings, names: str) -> Section:
    """Fields with the values of their arguments, those that are written."""
    return {
        name: settings[argument_of(name)]
        for name in names.split()
        if argument_of(name) in settings
    }


def _switches(settings: Settings, names: str) -> Section:
    return {name: argument_of(name) in settings for name in names.split()}


def _model(job: Job, settings: Settings) -> Section:
    model, recipe = job.model, job.recipe
    return {
        **_taken(
            settings, "num_layers hidden_size ffn_hidden_size num_attention_heads seq_length"
        ),
        "vocab_size": model.vocab_size,
        "should_pad_vocab": True,
        **_taken(settings, "make_vocab_size_divisible_by"),
        "share_embeddings_and_output_weights": model.tied_embeddings,
        **_taken(settings, "position_embedding_type rotary_percent normalization"),
        **_switches(settings, "gated_linear_unit"),
        "activation_func": Code("functional.silu" if model.gated_mlp else "functional.gelu"),
        # The fused GeLU wants a bias to add.
        "bias_activation_fusion": model.gated_mlp or model.linear_bias,
        "bias_dropout_fusion": True,
        "add_bias_linear": model.linear_bias,
        "add_qkv_bias": model.qkv_bias,
        **_switches(settings, "qk_layernorm"),
        "apply_rope_fusion": "--no-rope-fusion" not in settings and model.position == "rope",
        **_switches(settings, "cross_entropy_loss_fusion"),
        "cross_entropy_fusion_impl": settings.get("--cross-entropy-fusion-impl", "native"),
        "attention_backend": Code(f"AttnBackend.{settings['--attention-backend']}"),
        "gradient_accumulation_fusion": job.framework.fused_wgrad,
        **({} if model.dropout else {"attention_dropout": 0.0, "hidden_dropout": 0.0}),
        **_attention(job, settings),
        **_experts(job, settings),
        **_taken(settings, "tensor_model_parallel_size pipeline_model_parallel_size"),
        "virtual_pipeline_model_parallel_size": recipe.vpp if recipe.vpp > 1 else None,
        **_taken(settings, "context_parallel_size"),
        # Its configuration wants it of packed data that ranks share, some of which see no answer.
        **({"calculate_per_token_loss": True} if _splits_packs(job) else {}),
        **_switches(settings, "sequence_parallel"),
        **_taken(settings, "cp_comm_type mtp_num_layers pipeline_model_parallel_layout"),
        **_taken(settings, "num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage"),
        **_taken(settings, "account_for_embedding_in_pipeline_split"),
        **_taken(settings, "account_for_loss_in_pipeline_split recompute_granularity"),
        **_recomputed(settings),
        **_graphs(settings),
        **({"use_transformer_engine_op_fuser": fuses_experts(job)} if job.model.moe else {}),
        **({"cpu_offloading": True} if recipe.offloaded_layers else {}),
        **_taken(settings, "cpu_offloading_num_layers fine_grained_activation_offloading"),
        **_taken(settings, "offload_modules"),
    }


def fuses_experts(job: Job) -> bool:
    """Whether one kernel runs all experts of a rank, and what lies between their two layers."""
    experts = job.model.moe is not None and job.precision == "mxfp8"
    return experts and job.framework.fused_experts


def _attention(job: Job, settings: Settings) -> Section:
    model = job.model
    if model.mla is None:
        return {"kv_channels": model.qk_head_dim, "num_query_groups": model.kv_heads}
    return {
        **_switches(settings, "multi_latent_attention"),
        "q_lora_rank": model.mla.q_lora_rank,
        **_taken(settings, "kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim"),
        "transformer_layer_spec": _BLOCK_SPEC,
    }


def _experts(job: Job, settings: Settings) -> Section:
    if job.model.moe is None:
        return {}
    by_deepep = job.dispatcher == "deepep"
    return {
        "transformer_layer_spec": _BLOCK_SPEC,
        **_taken(settings, "num_moe_experts moe_router_topk moe_ffn_hidden_size moe_latent_size"),
        "moe_layer_freq": Code(expert_layers(job.model)),
        **_taken(settings, "moe_token_dispatcher_type"),
        **_switches(settings, "moe_router_pre_softmax moe_grouped_gemm moe_router_fusion"),
        **_switches(settings, "moe_permute_fusion"),
        **_taken(settings, "expert_model_parallel_size expert_tensor_parallel_size"),
        **({"moe_flex_dispatcher_backend": "deepep"} if by_deepep else {}),
        **_taken(settings, "moe_shared_expert_intermediate_size moe_expert_capacity_factor"),
        **_taken(settings, "moe_pad_expert_input_to_capacity"),
    }


def _recomputed(settings: Settings) -> Section:
    if settings.get("--recompute-granularity") != "selective":
        return _taken(settings, "recompute_method recompute_num_layers")
    modules = settings.get("--recompute-modules") or ("core_attn",)
    return {"recompute_modules": list(modules)}  # type: ignore[arg-type]


def _optimizer(settings: Settings) -> Section:
    names = "exp_avg_dtype exp_avg_sq_dtype"
    return {
        **_taken(settings, "optimizer"),
        "lr": 1e-4,
        "min_lr": 1e-5,
        **_switches(settings, "use_distributed_optimizer"),
        **_taken(settings, "use_precision_aware_optimizer optimizer_cpu_offload"),
        **_taken(settings, "optimizer_offload_fraction overlap_cpu_optimizer_d2h_h2d"),
        **{name: Code(_DTYPES[str(kind)]) for name, kind in _taken(settings, names).items()},
    }


def _overlap(settings: Settings) -> Section:
    blocking = "--no-overlap-p2p-communication" in settings
    return {
        # Unless told, it turns the latter two on.
        **_switches(settings, "tp_comm_overlap overlap_grad_reduce overlap_param_gather"),
        **({"overlap_p2p_comm": False, "batch_p2p_comm": True} if blocking else {}),
        **_taken(settings, "overlap_moe_expert_parallel_comm"),
    }


def _kept(job: Job, settings: Settings) -> Section:
    if "--first-last-layers-bf16" not in settings:
        return {}
    return {
        "first_last_layers_bf16": True,
        "num_layers_at_start_in_bf16": job.model.num_layers_at_start_in_bf16,
        "num_layers_at_end_in_bf16": job.model.num_layers_at_end_in_bf16,
    }


def _precision(job: Job, settings: Settings) -> Section:
    width = next((name for name in ("bf16", "fp16") if f"--{name}" in settings), "fp32")
    return {
        width: True,
        "params_dtype": Code(_DTYPES[width]),
        "pipeline_dtype": Code(_DTYPES[width]),
        "grad_reduce_in_fp32": job.framework.accumulate_grads_fp32,
        **_taken(settings, "fp8 fp8_recipe fp8_param_gather reuse_grad_buf_for_mxfp8_param_ag"),
        **_taken(settings, "fp4 fp4_recipe"),
        **_kept(job, settings),
    }
