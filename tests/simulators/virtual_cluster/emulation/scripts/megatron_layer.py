"""Megatron-core's layer of GPT-175B (no Transformer Engine), forward and backward, TP 8."""

import os
import warnings

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.spec_utils import build_module
from megatron.core.transformer.transformer_block import TransformerBlock
from megatron.core.transformer.transformer_config import TransformerConfig

warnings.simplefilter("ignore")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
parallel_state.initialize_model_parallel(tensor_model_parallel_size=8)
model_parallel_cuda_manual_seed(1)
push, pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
HIDDEN, SEQUENCE = 12288, 2048
RECOMPUTE = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
}


def block(sequence_parallel: bool, recompute: str) -> TransformerBlock:
    config = TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=96,
        tensor_model_parallel_size=8,
        sequence_parallel=sequence_parallel,
        bf16=True,
        params_dtype=torch.bfloat16,
        masked_softmax_fusion=True,
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        persist_layer_norm=True,
        attention_softmax_in_fp32=False,
        **RECOMPUTE[recompute],
    )
    return build_module(
        TransformerBlock,
        config=config,
        spec=get_gpt_layer_local_spec(),
        post_layer_norm=False,
    ).cuda()


def pass_through(layer: TransformerBlock, rows: int, name: str) -> None:
    x = torch.randn(rows, 1, HIDDEN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    before = torch.cuda.memory_allocated()
    push(f"{name} forward")
    y = layer(x, None)
    pop()
    print(f"{name} {torch.cuda.memory_allocated() - before}")
    gradient = torch.empty_like(y)
    push(f"{name} backward")
    y.backward(gradient)
    pop()


for sequence_parallel in (False, True):
    for recompute in RECOMPUTE:
        layer = block(sequence_parallel, recompute)
        rows = SEQUENCE // 8 if sequence_parallel else SEQUENCE
        # Gradients and scratch buffers come into being in the first pass.
        pass_through(layer, rows, "first")
        name = f"{'sp' if sequence_parallel else 'plain'} {recompute}"
        layer.zero_grad()
        pass_through(layer, rows, name)
        del layer
