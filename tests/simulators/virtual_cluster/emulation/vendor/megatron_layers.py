"""Traces layers of Megatron-core with Transformer Engine on virtual GPUs: run as a process.

``python megatron_layers.py DIRECTORY GPU`` writes a trace for each case of that GPU (two
micro-batches of one layer, forward and backward) and ``figures.json`` with the bytes the second
forward pass kept. Transformer Engine remembers what device it has seen: a process each.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.virtual_cluster.emulation import ListSink, VirtualRank, emulate
from trainscout.simulators.virtual_cluster.emulation.vendor import install_vendor
from trainscout.simulators.virtual_cluster.traces.events import Header, Trace
from trainscout.simulators.virtual_cluster.traces.files import write_trace

GPT = {"hidden_size": 12288, "num_attention_heads": 96}
LLAMA = {
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_query_groups": 8,
    "ffn_hidden_size": 28672,
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "normalization": "RMSNorm",
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "apply_rope_fusion": True,
}
MIXTRAL = {
    **LLAMA,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "ffn_hidden_size": 14336,
    "num_moe_experts": 8,
    "moe_router_topk": 2,
    "moe_router_load_balancing_type": "none",
    "moe_aux_loss_coeff": 0.0,
    "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "moe_router_fusion": True,
}
FULL = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
# Megatron's own layers, with Apex's norms and weight gradients and its own scaled softmax.
LOCAL = {"local": True, "masked_softmax_fusion": True}
# Name: model, sequence length, layout and recipe.
CASES: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "gpt": (GPT, 2048, {"tp": 8}),
    "gpt_user_buffers": (GPT, 2048, {"tp": 8, "tp_comm_overlap": True}),
    "gpt_delayed_user_buffers": (
        GPT,
        2048,
        {"tp": 8, "tp_comm_overlap": True, "fp8": "hybrid", "fp8_recipe": "delayed"},
    ),
    "local": (GPT, 2048, {"tp": 8, **LOCAL}),
    "local_selective": (GPT, 2048, {"tp": 8, **LOCAL, "recompute_granularity": "selective"}),
    "local_full": (GPT, 2048, {"tp": 8, **LOCAL, **FULL}),
    "local_wide": (GPT, 2048, {"tp": 2, "micro_batch": 4, **LOCAL}),
    "llama": (LLAMA, 8192, {"tp": 8}),
    "llama_gathered": (LLAMA, 8192, {"tp": 2, "cp": 4, "cp_comm_type": "all_gather"}),
    "mixtral": (MIXTRAL, 4096, {"ep": 4}),
    "gpt_delayed": (GPT, 2048, {"tp": 8, "fp8": "hybrid", "fp8_recipe": "delayed"}),
    "gpt_current": (GPT, 2048, {"tp": 8, "fp8": "hybrid", "fp8_recipe": "tensorwise"}),
    "gpt_current_full": (
        GPT,
        2048,
        {"tp": 8, "fp8": "hybrid", "fp8_recipe": "tensorwise", **FULL},
    ),
    "gpt_mxfp8_full": (GPT, 2048, {"tp": 8, "fp8": "e4m3", "fp8_recipe": "mxfp8", **FULL}),
    "gpt_blockwise_full": (
        GPT,
        2048,
        {"tp": 8, "fp8": "e4m3", "fp8_recipe": "blockwise", **FULL},
    ),
    "gpt_mxfp8": (GPT, 2048, {"tp": 8, "fp8": "e4m3", "fp8_recipe": "mxfp8"}),
    "gpt_blockwise": (GPT, 2048, {"tp": 8, "fp8": "e4m3", "fp8_recipe": "blockwise"}),
}


def trace_case(
    virtual: VirtualRank, model: dict[str, Any], sequence: int, given: dict[str, Any]
) -> tuple[ListSink, int]:
    """Events of one case on its first rank, and what the second forward pass kept."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_local_spec,
        get_gpt_layer_with_transformer_engine_spec,
    )
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.transformer_block import TransformerBlock
    from megatron.core.transformer.transformer_config import TransformerConfig
    from transformer_engine.pytorch.module.base import destroy_ub, initialize_ub

    recipe = dict(given)
    tp, cp, ep, batch = (recipe.pop(name, 1) for name in ("tp", "cp", "ep", "micro_batch"))
    local = recipe.pop("local", False)
    sink = ListSink()
    virtual.restart(sink, world_size=max(tp * cp, ep), rank=0)
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tp,
        context_parallel_size=cp,
        expert_model_parallel_size=ep,
    )
    model_parallel_cuda_manual_seed(1)
    gated = {"activation_func": torch.nn.functional.silu} if "gated_linear_unit" in model else {}
    config = TransformerConfig(
        num_layers=1,
        params_dtype=torch.bfloat16,
        bf16=True,
        tensor_model_parallel_size=tp,
        context_parallel_size=cp,
        expert_model_parallel_size=ep,
        gradient_accumulation_fusion=True,
        **{"sequence_parallel": tp > 1, **model, **gated, **recipe},
    )
    make = get_gpt_layer_local_spec if local else get_gpt_layer_with_transformer_engine_spec
    spec = make(num_experts=config.num_moe_experts, moe_grouped_gemm=config.moe_grouped_gemm)
    if config.tp_comm_overlap:
        initialize_ub((sequence, config.hidden_size), tp, use_fp8=bool(config.fp8))
    block = TransformerBlock(config, spec, post_layer_norm=False).cuda()
    for parameter in block.parameters():
        parameter.main_grad = torch.zeros(parameter.shape, device="cuda")
    width = config.hidden_size // config.num_attention_heads
    rope = RotaryEmbedding(width, 1.0)(sequence) if "apply_rope_fusion" in model else None
    tokens = sequence // cp // (tp if config.sequence_parallel else 1)
    saved = 0
    for _ in range(2):
        shape = (tokens, batch, config.hidden_size)
        inputs = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        before = torch.cuda.memory_allocated()
        outputs = block(inputs, None, rotary_pos_emb=rope)
        saved = torch.cuda.memory_allocated() - before
        outputs.backward(torch.empty_like(outputs))
        block.zero_grad()
        del inputs, outputs
    parallel_state.destroy_model_parallel()
    destroy_ub()
    return sink, saved


def main(directory: Path, name_of_gpu: str) -> None:
    """Trace the cases of one GPU."""
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    gpu = load_catalogue().gpus[name_of_gpu]
    virtual = emulate(ListSink(), world_size=8, rank=0, gpu=gpu)
    install_vendor()

    from transformer_engine.pytorch.fp8 import FP8GlobalStateManager

    saved = {}
    for name, (model, sequence, recipe) in CASES.items():
        # MXFP8 asks for Blackwell.
        if (recipe.get("fp8_recipe") == "mxfp8") is not (name_of_gpu == "b200"):
            continue
        FP8GlobalStateManager.reset()
        sink, saved[name] = trace_case(virtual, model, sequence, recipe)
        header = Header(8, 0, 8, name_of_gpu, gpu.memory_bytes, (name,), {})
        write_trace(directory / f"{name}.trace", Trace(header, tuple(sink.events)))
    (directory / "figures.json").write_text(json.dumps(saved))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
