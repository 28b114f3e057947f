"""The same job as a Megatron-Bridge configuration: NVIDIA's training loop, NeMo's since 2025.

Field names are those of Megatron-Bridge 0.3.1 (``megatron.bridge.training.config``).
"""

from __future__ import annotations

import math

from trainscout.reports.launch import megatron_core
from trainscout.reports.launch.launch import Launch
from trainscout.reports.launch.shell import (
    HERE,
    not_expressible,
    shared_environment,
    shell_script,
    title_lines,
)
from trainscout.reports.launch.source import Code, call, python_module
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model

TITLE = "Megatron-Bridge"
_FILL_IN = (
    "settings that no speed depends on (optimizer.lr, model.rotary_base)",
    "the directory of checkpoints (CHECKPOINTS=), to save to and go on from",
    "data and tokenizer (dataset.blend, tokenizer)",
)
# It has no defaults for weight decay.
_SCHEDULE = {
    "lr_decay_style": "cosine",
    "start_weight_decay": 0.01,
    "end_weight_decay": 0.01,
}
_POSITION = {"learned": "learned_absolute", "rope": "rope", "none": "none"}


def launch(job: Job) -> Launch:
    """The files that launch a valid job under Megatron-Bridge."""
    impossible = megatron_core.impossible(job)
    unsupported = megatron_core.unsupported(job) + _unsupported(job)
    if impossible:
        return Launch("megatron_bridge", TITLE, {}, unsupported, _FILL_IN, impossible)
    header = [
        *title_lines(job),
        "Runs megatron_bridge.py beside it, with Megatron-Bridge 0.3, the training loop of NeMo.",
        "Arguments override its configuration: train.train_iters=10",
        "Fill in: " + "; ".join(_FILL_IN),
        *not_expressible(TITLE, unsupported),
    ]
    environment = megatron_core.environment(job) | shared_environment(job)
    program = [('"$here/megatron_bridge.py"',), ('"$@"',)]
    files = {
        "megatron_bridge.sh": shell_script(header, environment, [HERE], job, program),
        "megatron_bridge.py": _module(job),
    }
    return Launch("megatron_bridge", TITLE, files, unsupported, _FILL_IN)


def _unsupported(job: Job) -> tuple[str, ...]:
    """What Megatron-Bridge changes that Megatron-Core does not."""
    if job.recipe.zero_stage >= 2 and job.framework.fused_wgrad:
        return ("framework.fused_wgrad (it turns it off under Megatron-FSDP)",)
    return ()


def _module(job: Job) -> str:
    provider = "GPTModelProvider" if job.model.mla is None else "MLAModelProvider"
    config = {
        "model": Code(call(provider, _model(job), 8)),
        "train": Code(call("TrainingConfig", _train(job), 8)),
        "optimizer": Code(call("OptimizerConfig", _optimizer(job), 8)),
        "scheduler": Code(call("SchedulerConfig", _SCHEDULE, 8)),
        "ddp": Code(call("DistributedDataParallelConfig", _data_parallel(job), 8)),
        "dist": Code(call("DistributedInitConfig", _distributed(job), 8)),
        "comm_overlap": Code(call("CommOverlapConfig", _overlap(job), 8)),
        "mixed_precision": Code(call("MixedPrecisionConfig", _precision(job), 8)),
        # Mock data as long as no blend is given.
        "dataset": Code(call("GPTDatasetConfig", _data_set(job), 8)),
        "tokenizer": Code(call("TokenizerConfig", _tokenizer(job.model), 8)),
        "checkpoint": Code(call("CheckpointConfig", _checkpoint(job), 8)),
        "logger": Code("LoggerConfig(log_interval=1)"),
        "rng": Code("RNGConfig()"),
    }
    body = _BODY.format(config=call("ConfigContainer", config, 4))
    about = "A Megatron-Bridge configuration and what runs it; megatron_bridge.sh starts it."
    return python_module([*title_lines(job), "", about], _IMPORTS, body)


_IMPORTS = {
    "importlib.util": (),
    "os": (),
    "sys": (),
    "functools": ("partial",),
    "torch": (),
    "megatron.bridge.models.gpt_provider": ("GPTModelProvider",),
    "megatron.bridge.models.mla_provider": ("MLAModelProvider",),
    "megatron.bridge.training": ("initialize",),
    "megatron.bridge.training.comm_overlap": ("CommOverlapConfig",),
    "megatron.bridge.training.config": (
        "CheckpointConfig",
        "ConfigContainer",
        "DistributedDataParallelConfig",
        "DistributedInitConfig",
        "GPTDatasetConfig",
        "LoggerConfig",
        "OptimizerConfig",
        "RNGConfig",
        "SchedulerConfig",
        "TokenizerConfig",
        "TrainingConfig",
    ),
    "megatron.bridge.training.gpt_step": ("forward_step",),
    "megatron.bridge.training.mixed_precision": ("MixedPrecisionConfig",),
    "megatron.bridge.training.pretrain": ("pretrain",),
    "megatron.bridge.training.utils.omegaconf_utils": ("process_config_with_overrides",),
    "megatron.core.models.gpt.gpt_layer_specs": ("get_gpt_decoder_block_spec",),
    "megatron.core.transformer.enums": ("AttnBackend",),
    "torch.nn": ("functional",),
}
_BODY = """CHECKPOINTS = os.environ.get("CHECKPOINTS")


def recipe() -> ConfigContainer:
    return {config}


def main() -> None:
    if importlib.util.find_spec("megatron.core.datasets.helpers_cpp"):
        # Built already, as packages of Megatron-Core are, which have no makefile to build it.
        initialize.compile_helpers = lambda: None
    config = recipe()
    process_config_with_overrides(config, cli_overrides=sys.argv[1:])
    pretrain(config, forward_step)


if __name__ == "__main__":
    main()
"""


def _model(job: Job) -> dict[str, object]:
    model, recipe = job.model, job.recipe
    fields: dict[str, object] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_heads,
        "seq_length": job.sequence_length,
        "vocab_size": model.vocab_size,
        "should_pad_vocab": True,
        "make_vocab_size_divisible_by": model.vocab_multiple,
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "position_embedding_type": _POSITION[model.position],
        "normalization": "RMSNorm" if model.normalization == "rmsnorm" else "LayerNorm",
        "gated_linear_unit": model.gated_mlp,
        "activation_func": Code("functional.silu" if model.gated_mlp else "functional.gelu"),
        # The fused GeLU wants a bias to add.
        "bias_activation_fusion": model.gated_mlp or model.linear_bias,
        "bias_dropout_fusion": True,
        "add_bias_linear": model.linear_bias,
        "add_qkv_bias": model.qkv_bias,
        "qk_layernorm": megatron_core.query_key_norm(model),
        "apply_rope_fusion": model.position == "rope" and model.mla is None,
        "cross_entropy_loss_fusion": megatron_core.loss_in_place(job),
        "cross_entropy_fusion_impl": "te" if megatron_core.loss_in_place(job) else "native",
        "attention_backend": Code(f"AttnBackend.{megatron_core.attention_backend(job)}"),
        "gradient_accumulation_fusion": job.framework.fused_wgrad,
    }
    if not model.dropout:
        fields |= {"attention_dropout": 0.0, "hidden_dropout": 0.0}
    fields |= _attention(model) | _experts(job)
    fields |= {
        "tensor_model_parallel_size": recipe.tp,
        "pipeline_model_parallel_size": recipe.pp,
        "virtual_pipeline_model_parallel_size": recipe.vpp if recipe.vpp > 1 else None,
        "context_parallel_size": recipe.cp,
        "sequence_parallel": recipe.sp,
    }
    if recipe.cp > 1:
        fields["cp_comm_type"] = recipe.cp_comm_type
    if model.num_mtp_layers:
        fields["mtp_num_layers"] = model.num_mtp_layers
    return fields | _split(job) | _recompute(job)


def _attention(model: Model) -> dict[str, object]:
    mla = model.mla
    if mla is not None:
        return {
            "multi_latent_attention": True,
            "q_lora_rank": mla.q_lora_rank,
            "kv_lora_rank": mla.kv_lora_rank,
            "qk_head_dim": mla.qk_nope_head_dim,
            "qk_pos_emb_head_dim": mla.qk_rope_head_dim,
            "v_head_dim": mla.v_head_dim,
            "transformer_layer_spec": _BLOCK_SPEC,
        }
    return {"kv_channels": model.qk_head_dim, "num_query_groups": model.kv_heads}


# Which layers have experts, and latent attention, only the specification of a whole block knows.
_BLOCK_SPEC = Code("partial(get_gpt_decoder_block_spec, use_transformer_engine=True)")


def _experts(job: Job) -> dict[str, object]:
    moe, recipe = job.model.moe, job.recipe
    if moe is None:
        return {}
    fields: dict[str, object] = {
        "transformer_layer_spec": _BLOCK_SPEC,
        "num_moe_experts": moe.num_experts,
        "moe_router_topk": moe.top_k,
        "moe_ffn_hidden_size": moe.ffn_hidden_size,
        "moe_layer_freq": Code(megatron_core.layer_pattern(job.model)),
        "moe_token_dispatcher_type": "flex" if moe.dispatcher == "deepep" else moe.dispatcher,
        "moe_grouped_gemm": megatron_core.grouped_gemm(job),
        "moe_router_fusion": job.framework.fused_router,
        "expert_model_parallel_size": recipe.ep,
        "expert_tensor_parallel_size": job.etp,
    }
    if moe.dispatcher == "deepep":
        fields["moe_flex_dispatcher_backend"] = "deepep"
    if moe.shared_ffn_hidden_size:
        fields["moe_shared_expert_intermediate_size"] = moe.shared_ffn_hidden_size
    if moe.capacity_factor is not None:
        fields |= {
            "moe_expert_capacity_factor": moe.capacity_factor,
            "moe_pad_expert_input_to_capacity": True,
        }
    return fields


def _split(job: Job) -> dict[str, object]:
    recipe = job.recipe
    if recipe.pp == 1:
        return {}
    if not megatron_core.layers_fit_plain_arguments(job):
        return {"pipeline_model_parallel_layout": megatron_core.layout(job)}
    fields: dict[str, object] = {
        "num_layers_in_first_pipeline_stage": recipe.first_stage_layers,
        "num_layers_in_last_pipeline_stage": recipe.last_stage_layers,
        "account_for_embedding_in_pipeline_split": recipe.embedding_as_layer,
        "account_for_loss_in_pipeline_split": recipe.loss_as_layer,
    }
    return {name: value for name, value in fields.items() if value}


def _recompute(job: Job) -> dict[str, object]:
    if job.recipe.recompute == "none":
        return {}
    full = megatron_core.recompute(job)
    if full is None:
        modules = megatron_core.recompute_modules(job)
        return {
            "recompute_granularity": "selective",
            "recompute_modules": list(modules) or ["core_attn"],
        }
    method, layers = full
    return {
        "recompute_granularity": "full",
        "recompute_method": method,
        "recompute_num_layers": layers,
    }


def _train(job: Job) -> dict[str, object]:
    return {
        "train_iters": max(1, math.ceil(job.training.tokens / job.tokens_per_step)),
        "global_batch_size": job.training.global_batch_size,
        "micro_batch_size": job.recipe.micro_batch,
    }


def _optimizer(job: Job) -> dict[str, object]:
    optimizer = job.training.optimizer
    fields: dict[str, object] = {
        "optimizer": "sgd" if optimizer == "sgd" else "adam",
        "lr": 1e-4,
        "min_lr": 1e-5,
        "use_distributed_optimizer": job.recipe.zero_stage >= 1,
    }
    if optimizer == "adam_bf16":
        fields |= {
            "use_precision_aware_optimizer": True,
            "exp_avg_dtype": Code("torch.bfloat16"),
            "exp_avg_sq_dtype": Code("torch.bfloat16"),
        }
    return fields


def _data_parallel(job: Job) -> dict[str, object]:
    recipe = job.recipe
    return {
        "use_distributed_optimizer": recipe.zero_stage >= 1,
        "data_parallel_sharding_strategy": megatron_core.sharding(job)
        if recipe.zero_stage >= 2
        else "no_shard",
        "use_megatron_fsdp": recipe.zero_stage >= 2,
        "grad_reduce_in_fp32": job.framework.accumulate_grads_fp32,
        "overlap_grad_reduce": megatron_core.overlaps_gradients(job),
        "overlap_param_gather": megatron_core.overlaps_parameters(job),
    }


def _distributed(job: Job) -> dict[str, object]:
    recipe = job.recipe
    return {
        "use_megatron_fsdp": recipe.zero_stage >= 2,
        "use_tp_pp_dp_mapping": recipe.use_tp_pp_dp_mapping and recipe.pp > 1,
    }


def _overlap(job: Job) -> dict[str, object]:
    recipe = job.recipe
    fields: dict[str, object] = {
        "tp_comm_overlap": recipe.tp_comm_overlap,
        # Unless told, it turns both on.
        "overlap_grad_reduce": megatron_core.overlaps_gradients(job),
        "overlap_param_gather": megatron_core.overlaps_parameters(job),
    }
    if recipe.vpp > 1 and not job.framework.overlap_p2p:
        fields |= {"overlap_p2p_comm": False, "batch_p2p_comm": True}
    if recipe.overlap_moe_expert_parallel_comm:
        fields["overlap_moe_expert_parallel_comm"] = True
    return fields


def _precision(job: Job) -> dict[str, object]:
    if job.precision in ("fp32", "tf32"):
        kind: dict[str, object] = {"fp32": True}
        dtype = "torch.float32"
    elif job.precision == "fp16":
        kind, dtype = {"fp16": True}, "torch.float16"
    else:
        kind, dtype = {"bf16": True}, "torch.bfloat16"
    fields: dict[str, object] = {
        **kind,
        "params_dtype": Code(dtype),
        "pipeline_dtype": Code(dtype),
        "grad_reduce_in_fp32": job.framework.accumulate_grads_fp32,
    }
    if job.precision in megatron_core.FP8:
        recipe, number_format = megatron_core.FP8[job.precision]
        fields |= {"fp8": number_format, "fp8_recipe": recipe}
    return fields


def _data_set(job: Job) -> dict[str, object]:
    return {
        "random_seed": 1234,
        "seq_length": job.sequence_length,
        "blend": None,
        "split": "99,1,0",
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "dataloader_type": "single",
    }


def _tokenizer(model: Model) -> dict[str, object]:
    # It counts its end-of-document token on top.
    return {"tokenizer_type": "NullTokenizer", "vocab_size": model.vocab_size - 1}


def _checkpoint(job: Job) -> dict[str, object]:
    return {
        "save": Code("CHECKPOINTS"),
        "load": Code("CHECKPOINTS"),
        "save_interval": Code('int(os.environ.get("SAVE_INTERVAL", "500"))'),
        "ckpt_format": "fsdp_dtensor" if job.recipe.zero_stage >= 2 else "torch_dist",
    }
