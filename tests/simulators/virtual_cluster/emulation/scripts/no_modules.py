"""Trains a tensor without a module, by functions, kernels and a fused optimizer."""

import copy
import os
import subprocess

import dropout_layer_norm
import fused_dense_lib
import pynvml
import pytest
import rotary_emb
import torch
import xentropy_cuda_lib
from flash_attn.bert_padding import index_first_axis
from flash_attn.modules.mha import FlashCrossAttention, FlashSelfAttention
from flash_attn.ops.activations import swiglu
from flash_attn_interface import _flash_attn_backward, _flash_attn_forward, flash_attn_varlen_func
from kernels import get_kernel
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import activate_flash_attention_impl
from torch.nn.attention.varlen import varlen_attn
from xformers.ops.fmha import memory_efficient_attention
from xformers.ops.fmha.attn_bias import BlockDiagonalCausalMask

SOURCE = 'extern "C" __global__ void doubled(const float* source, float* target, int number) {}'
doubled = torch.cuda._compile_kernel(SOURCE, "doubled")


class Adaptive(torch.autograd.Function):
    """Of an adaptive solver: how far a step goes follows from data."""

    @staticmethod
    def forward(ctx, rows):
        ctx.save_for_backward(rows)
        time = torch.zeros((), dtype=torch.float64, device=rows.device)
        while time < 2:
            size = (0.5 / rows.norm()).clamp(max=1.0).to(time.dtype)
            assert time + size > time
            time = time + size
        return 2 * rows

    @staticmethod
    def backward(ctx, grad):
        # The first that this thread makes.
        return grad * torch.as_tensor(2.0, device=grad.device)


query = [
    "nvidia-smi",
    "--query-gpu=index,memory.total,power.draw",
    "--format=csv,noheader,nounits",
]
memory_mib = torch.cuda.mem_get_info()[1] >> 20
assert subprocess.check_output(query, text=True) == f"0, {memory_mib}, [N/A]\n"
assert "NVIDIA H800" in subprocess.check_output("nvidia-smi", text=True)
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(pynvml.nvmlDeviceGetCount() - 1)
assert pynvml.nvmlDeviceGetMemoryInfo(handle).total >> 20 == memory_mib
assert "H800" in pynvml.nvmlDeviceGetName(handle)
near = pynvml.nvmlDeviceGetCpuAffinity(handle, 64)
assert sum(word.bit_count() for word in near) == len(os.sched_getaffinity(0))
with pytest.raises(pynvml.NVMLError, match="Not Supported"):
    pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
# As scripts ask which arguments a release knows.
assert "enable_gqa" in torch.nn.functional.scaled_dot_product_attention.__doc__
kept = torch.zeros(8, dtype=torch.bool, device="cuda")
kept[2:4] = True
assert copy.deepcopy(kept).nonzero().flatten().tolist() == [2, 3]


class Scan(torch.Tensor):
    """Data that says more of itself, as of medical images."""


scan = torch.ones(4, 4).as_subclass(Scan).cuda()
assert scan.as_subclass(torch.Tensor).device.type == "cuda"
product = scan @ torch.ones(4, 4, device="cuda", requires_grad=True)
product.sum().backward()
weight = torch.ones(64, 2, 16, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, fused=True)
ends = torch.tensor([0, 16, 64], dtype=torch.int32, device="cuda")
mask = BlockDiagonalCausalMask.from_seqlens([16, 48]).make_local_attention(8)
for _ in range(2):
    rows = Adaptive.apply(weight).bfloat16()
    seen = flash_attn_varlen_func(rows, rows, rows, ends, ends, 48, 48, causal=True)
    seen = memory_efficient_attention(seen[None], rows[None], rows[None], mask)
    target = torch.empty_like(seen)
    doubled((1, 1, 1), (32, 1, 1), (seen, target, seen.numel()))
    (seen - target).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
# Attention over a ring of ranks calls what stands below autograd.
heads = torch.zeros(2, 32, 4, 16, dtype=torch.bfloat16, device="cuda")
few = heads[:, :, :2].contiguous()
seen, sums, *_ = _flash_attn_forward(heads, few, few, causal=True, window_size=(7, -1))
assert sums.shape == (2, 4, 32)
given = torch.empty_like(few)
grads = _flash_attn_backward(seen, heads, few, few, seen, sums, dk=given, causal=True)
assert [each.shape for each in grads[:3]] == [heads.shape, few.shape, few.shape]
assert grads[1] is given
flat, lengths = heads.flatten(0, 1), {"max_seqlen_q": 48, "max_seqlen_k": 48}
packed = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, **lengths}
_flash_attn_forward(flat, flat, flat, **packed)
assert flash_attn_varlen_func(heads, heads, heads, None, None, 48, 48).shape == heads.shape
assert index_first_axis(flat[:0], torch.arange(0, device="cuda")).shape == flat[:0].shape
# Modules of flash-attn: over rows, and over packed sequences of their own.
whole = torch.stack([heads] * 3, dim=2)
assert FlashSelfAttention(causal=True)(whole).shape == heads.shape
cross = FlashCrossAttention(attention_dropout=0.1)
assert cross(heads, whole[:, :, 1:]).shape == heads.shape
others = {"cu_seqlens_k": ends, "max_seqlen_k": 48}
rows = whole.flatten(0, 1)
assert cross(flat, rows[:, 1:], cu_seqlens=ends, max_seqlen=48, **others).shape == flat.shape
assert FlashSelfAttention().eval()(rows, cu_seqlens=ends, max_seqlen=48).shape == flat.shape
with pytest.raises(ValueError, match="qv"):
    _flash_attn_forward(heads, few, few, qv=heads)
logits = torch.ones(8, 32, device="cuda")
labels = torch.zeros(8, dtype=torch.int64, device="cuda")
gate = logits.clone().requires_grad_()
swiglu(gate, logits).sum().backward()
assert gate.grad.shape == logits.shape
losses, sums = xentropy_cuda_lib.forward(logits, labels, 0.0)
assert xentropy_cuda_lib.backward(losses, logits, sums, labels, 0.0, True) is logits
rotary_emb.apply_rotary(*logits.chunk(2, -1), *logits.chunk(2, -1), *logits.chunk(2, -1), False)
given = (logits, logits, logits[0], None, None, None, None, None, 0.0, 1e-6, 1.0, 0, None)
normed, kept, dropped, *rows = dropout_layer_norm.dropout_add_ln_fwd(*given, False, True)
assert (normed.shape, kept.shape, dropped) == (logits.shape, logits.shape, None)
given = (normed, None, kept, None, None, *rows, logits[0], None, None, None, None, 0.0, 1.0, 0)
grads = dropout_layer_norm.dropout_add_ln_bwd(*given, True, True)
assert (grads[0].shape, grads[1], grads[2].shape) == (logits.shape, None, (32,))
weight = logits.new_empty(48, 32)
for is_gelu, kept_columns in ((True, 48), (False, 6)):
    out, kept = fused_dense_lib.linear_act_forward(logits, weight, weight[:, 0], is_gelu, True, 0)
    assert (out.shape, kept.shape) == ((8, 48), (8, kept_columns))
    before, bias = fused_dense_lib.bias_act_linear_dgrad_bgrad(weight.T, logits, kept, is_gelu, 0)
    assert (before.shape, bias.shape) == ((8, 48), (48,))
assert len(fused_dense_lib.linear_act_forward(logits, weight, None, True, False, 0)) == 1
grads = fused_dense_lib.linear_bias_wgrad(logits, out, True)
assert [each.shape for each in grads] == [(48, 32), (48,)]
assert fused_dense_lib.linear_bias_wgrad(logits, out, False)[1] is None
with pytest.raises(ValueError, match="uncompiled"):
    make_fx(torch.sin, tracing_mode="symbolic")(logits)
assert make_fx(torch.sin, tracing_mode="symbolic")(torch.ones(2)).graph
activate_flash_attention_impl("FA3")
half = torch.ones(64, 2, 16, dtype=torch.bfloat16, device="cuda")
assert varlen_attn(half, half, half, ends, ends, 48, 48).shape == half.shape
assert get_kernel("kernels-community/flash-attn2").flash_attn_func
assert get_kernel("someone/flash-attention-3").flash_attn_interface.flash_attn_func
get_kernel("kernels-community/activation")
