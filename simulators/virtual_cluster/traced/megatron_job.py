"""Megatron-Core's own objects for a declared job: configurations, layer specs, models.

Imported only where the emulator runs: needs torch, megatron-core and the emulated vendor packages.
What a launcher's arguments would say is set here as Megatron-LM's ``arguments.py`` defaults it.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name Megatron knows it by
from megatron.core import parallel_state
from megatron.core.activations import squared_relu
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models import backends
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.mamba import MambaModel
from megatron.core.models.mamba.mamba_layer_specs import mamba_stack_spec
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.moe.moe_utils import (
    MoEAuxLossAutoScaler,
    get_moe_layer_wise_logging_tracker,
)
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from trainscout.simulators.predictor.question.layers import MOE, Layer
from trainscout.simulators.predictor.question.model import Model

from .layer_spec import LOCAL, TRANSFORMER_ENGINE, LayerSpec

DROPOUT = 0.1
AUXILIARY_LOSS = 1e-2
FP8_RECIPES = {"fp8": "delayed", "fp8_current": "tensorwise", "mxfp8": "mxfp8"}
SEED = 1234


def join_ranks(spec: LayerSpec, **pipeline: Any) -> None:
    """Join the job that torchrun's environment describes, and make Megatron's groups.

    ``pipeline``: further arguments of ``initialize_model_parallel``.
    """
    parallel_state.destroy_model_parallel()
    # Experts' tensors of the rank before, on its device.
    get_moe_layer_wise_logging_tracker().clear()
    MoEAuxLossAutoScaler.main_loss_backward_scale = None
    if spec.precision in FP8_RECIPES:
        # Transformer Engine remembers the groups of layers before, which are no more.
        importlib.import_module("transformer_engine.pytorch.fp8").FP8GlobalStateManager.reset()
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=spec.tp,
        context_parallel_size=spec.cp,
        expert_model_parallel_size=spec.ep,
        expert_tensor_parallel_size=spec.etp,
        create_gloo_process_groups=False,
        **pipeline,
    )
    model_parallel_cuda_manual_seed(SEED)


def transformer_config(spec: LayerSpec, **overrides: Any) -> TransformerConfig:
    """The configuration of a layer; ``overrides`` are fields of it."""
    model = spec.model
    settings = {
        **_shape(model),
        **_precision(spec),
        **_experts(spec),
        **_state_space(model),
        **_recompute(spec),
        "tensor_model_parallel_size": spec.tp,
        "context_parallel_size": spec.cp,
        "cp_comm_type": spec.cp_comm_type,
        "expert_model_parallel_size": spec.ep,
        "expert_tensor_parallel_size": spec.etp,
        "sequence_parallel": spec.sp,
        "hidden_dropout": DROPOUT if model.dropout else 0.0,
        "attention_dropout": DROPOUT if model.dropout else 0.0,
        # Nobody reads what weights hold, so they are not filled.
        "perform_initialization": False,
        "gradient_accumulation_fusion": spec.fused_wgrad,
        "bias_activation_fusion": model.gated_mlp or model.linear_bias,
        "activation_func_fp8_input_store": spec.stores_fp8_activations,
        "bias_dropout_fusion": True,
        "masked_softmax_fusion": True,
        "cross_entropy_loss_fusion": spec.fused_loss,
        "cross_entropy_fusion_impl": "te" if spec.fused_loss else "native",
        # Which PyTorch's norms have not (torch_norm.py: WrappedTorchNorm).
        "persist_layer_norm": not _is_torch_norm(spec),
        "apply_rope_fusion": _rotates_fused(spec),
        "deallocate_pipeline_outputs": True,
        **overrides,
    }
    if model.mla is None:
        return TransformerConfig(**settings)
    mla = model.mla
    return MLATransformerConfig(
        **settings,
        q_lora_rank=mla.q_lora_rank,
        kv_lora_rank=mla.kv_lora_rank,
        qk_head_dim=mla.qk_nope_head_dim,
        qk_pos_emb_head_dim=mla.qk_rope_head_dim,
        v_head_dim=mla.v_head_dim,
        rope_type="rope",
    )


def _is_torch_norm(spec: LayerSpec) -> bool:
    """Whether norms are PyTorch's: Apex has no RMSNorm that local layers take."""
    return spec.model.normalization == "rmsnorm" and spec.implementation == LOCAL


def _rotates_fused(spec: LayerSpec) -> bool:
    """Whether Transformer Engine's kernel applies rotary positions (Megatron-LM's default)."""
    rotates = spec.model.position == "rope" and spec.model.mla is None
    return rotates and spec.fused_rope and spec.implementation == TRANSFORMER_ENGINE


def _shape(model: Model) -> dict[str, Any]:
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_heads,
        "num_query_groups": model.kv_heads if model.mla is None else model.num_heads,
        "kv_channels": model.qk_head_dim,
        "ffn_hidden_size": next(iter(model.ffn_widths), model.ffn_hidden_size),
        "normalization": "RMSNorm" if model.normalization == "rmsnorm" else "LayerNorm",
        "gated_linear_unit": model.gated_mlp,
        "activation_func": _activation(model),
        "use_fused_weighted_squared_relu": _activation(model) is squared_relu,
        "add_bias_linear": model.linear_bias,
        "add_qkv_bias": model.qkv_bias,
        # Latent attention normalises what it projected down (DeepSeek-V2, equations 9-19).
        "qk_layernorm": model.qk_norm or model.mla is not None,
    }


def _activation(model: Model) -> Any:
    """SwiGLU's, GPT's where linear layers have biases, else Nemotron's."""
    return F.silu if model.gated_mlp else F.gelu if model.linear_bias else squared_relu


def _state_space(model: Model) -> dict[str, Any]:
    scans = [kind.mamba2 for kind in model.kinds.values() if kind.mamba2 is not None]
    if not scans:
        return {}
    (ssm,) = scans
    return {
        "mamba_num_heads": ssm.heads,
        "mamba_head_dim": ssm.head_dim,
        "mamba_state_dim": ssm.state,
        "mamba_num_groups": ssm.groups,
    }


def _precision(spec: LayerSpec) -> dict[str, Any]:
    half = torch.float16 if spec.precision == "fp16" else torch.bfloat16
    settings: dict[str, Any] = {
        "params_dtype": half,
        "pipeline_dtype": half,
        "fp16": half == torch.float16,
        "bf16": half == torch.bfloat16,
    }
    if spec.precision in FP8_RECIPES:
        settings |= {"fp8": "hybrid", "fp8_recipe": FP8_RECIPES[spec.precision]}
        names = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
        kept = {name: getattr(spec.model, name) for name in names}
        settings |= {"first_last_layers_bf16": any(kept.values()), **kept}
    return settings


def _experts(spec: LayerSpec) -> dict[str, Any]:
    moe = spec.model.moe
    if moe is None:
        return {}
    return {
        "num_moe_experts": moe.num_experts,
        "moe_router_topk": moe.top_k,
        "moe_router_pre_softmax": moe.top_k == 1,
        "moe_ffn_hidden_size": moe.ffn_hidden_size,
        "moe_shared_expert_intermediate_size": moe.shared_ffn_hidden_size or None,
        # DeepEP takes the router's weights in fp32.
        **(
            {"moe_token_dispatcher_type": "flex", "moe_router_dtype": "fp32"}
            if moe.dispatcher == "deepep"
            else {"moe_token_dispatcher_type": moe.dispatcher}
        ),
        "moe_grouped_gemm": True,
        "moe_permute_fusion": spec.fused_permute and spec.implementation == TRANSFORMER_ENGINE,
        "moe_router_fusion": spec.fused_router,
        "moe_aux_loss_coeff": AUXILIARY_LOSS,
        "moe_expert_capacity_factor": moe.capacity_factor,
        "moe_pad_expert_input_to_capacity": moe.padded,
    }


def _recompute(spec: LayerSpec) -> dict[str, Any]:
    if spec.recompute == "none":
        return {}
    if spec.recompute == "selective":
        modules = spec.modules.split("+")
        return {"recompute_granularity": "selective", "recompute_modules": modules}
    return {
        "recompute_granularity": "full",
        "recompute_method": "block",
        "recompute_num_layers": spec.model.num_layers,
    }


def module_spec(spec: LayerSpec, config: TransformerConfig, *, is_moe: bool) -> Any:
    """Megatron-Core's own spec of one layer."""
    shared = {
        "num_experts": config.num_moe_experts if is_moe else None,
        "moe_grouped_gemm": config.moe_grouped_gemm,
        "qk_layernorm": config.qk_layernorm,
        "multi_latent_attention": spec.model.mla is not None,
    }
    if spec.implementation == TRANSFORMER_ENGINE:
        return get_gpt_layer_with_transformer_engine_spec(**shared)
    apex = backends.LNImpl
    try:
        return get_gpt_layer_local_spec(normalization=config.normalization, **shared)
    finally:
        # PyTorch's norm takes its place for good (``LocalSpecProvider.layer_norm``).
        backends.LNImpl = apex


def final_norm(spec: LayerSpec) -> Any:
    """The norm after the last layer, as Megatron-Core's block specs choose it."""
    if spec.implementation == TRANSFORMER_ENGINE:
        from megatron.core.extensions.transformer_engine import TENorm

        return TENorm
    if _is_torch_norm(spec):
        return WrappedTorchNorm
    from megatron.core.models.gpt import gpt_layer_specs

    return gpt_layer_specs.LNImpl


def gpt_model(
    spec: LayerSpec, config: TransformerConfig, layers: list[bool], **options: Any
) -> GPTModel:
    """A GPT model, or a stage of one, of a layer for each of ``layers``: whether it has experts.

    ``options``: further arguments of ``GPTModel``.
    """
    model = spec.model
    submodules = TransformerBlockSubmodules(
        layer_specs=[module_spec(spec, config, is_moe=is_moe) for is_moe in layers],
        layer_norm=final_norm(spec),
    )
    return GPTModel(
        config=config,
        transformer_layer_spec=submodules,
        vocab_size=model.padded_vocab_size(spec.tp),
        max_sequence_length=max(model.sequence_length, spec.sequence_length),
        **_positions(model),
        **options,
    )


def _positions(model: Model) -> dict[str, Any]:
    learned = model.position == "learned"
    return {
        "position_embedding_type": "learned_absolute" if learned else model.position,
        "rotary_percent": model.rotary_fraction,
    }


def hybrid_model(spec: LayerSpec, config: TransformerConfig, **options: Any) -> MambaModel:
    """This rank's stage of a hybrid model whose layers are halves, as ``spec`` has them.

    ``options``: further arguments of ``MambaModel``.
    """
    model = spec.model
    return MambaModel(
        config=config,
        mamba_stack_spec=mamba_stack_spec,
        vocab_size=model.padded_vocab_size(spec.tp),
        max_sequence_length=model.sequence_length,
        hybrid_override_pattern="".join(_letter(model, layer) for layer in model.pattern),
        **_positions(model),
        **options,
    )


def _letter(model: Model, layer: Layer) -> str:
    """Megatron-Core's symbol of half a layer."""
    mixer = model.mixer(layer)
    if mixer is None:
        return "E" if layer.mlp == MOE else "-"
    return "M" if mixer.mamba2 else "*"


def replicated(
    spec: LayerSpec,
    config: TransformerConfig,
    module: torch.nn.Module,
    *,
    later: bool = False,
    **options: Any,
) -> DistributedDataParallel:
    """A model with Megatron-Core's gradient buffers and hooks.

    ``later``: it is not the first chunk of its rank; ``options``: fields of the DDP configuration.
    """
    ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=spec.accumulate_grads_fp32, **options)
    return DistributedDataParallel(config, ddp, module, disable_bucketing=later)


def token_tensors(spec: LayerSpec) -> dict[str, torch.Tensor]:
    """Tokens, positions, labels and loss mask of one micro-batch on this rank's device."""
    shape = (spec.micro_batch, spec.sequence_length // spec.cp)
    return {
        "tokens": torch.zeros(shape, dtype=torch.int64, device="cuda"),
        "position_ids": torch.zeros(shape, dtype=torch.int64, device="cuda"),
        "labels": torch.zeros(shape, dtype=torch.int64, device="cuda"),
        "loss_mask": torch.ones(shape, dtype=torch.float32, device="cuda"),
    }


def masked_loss(
    loss_mask: torch.Tensor, losses: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Summed loss, number of tokens, and both for the log (``pretrain_gpt.loss_func``)."""
    flat = loss_mask.view(-1).float()
    loss = torch.sum(losses.view(-1).float() * flat)
    tokens = flat.sum().clone().detach().to(torch.int)
    reporting = torch.cat([loss.clone().detach().view(1), tokens.view(1)])
    return loss, tokens, {"lm loss": reporting}
