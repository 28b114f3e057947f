"""CUDA extensions Megatron-core calls by name: scaled softmaxes and the fused weight gradient."""

from __future__ import annotations

import math

from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel


def wgrad_gemm_accum(inputs: Tensor, grad_output: Tensor, main_grad: Tensor) -> None:
    """``main_grad[n, k] += grad_output[t, n]^T inputs[t, k]``."""
    kernel("gemm_into")(grad_output, inputs, main_grad, "NT", "wgrad", True, "")


def causal_softmax(inputs: Tensor, scale: Tensor) -> Tensor:
    """Softmax of ``scale * inputs[batch, q, k]`` below the diagonal."""
    return kernel("fused_softmax_fwd")(inputs, None, float(scale), "causal")


def masked_softmax(inputs: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
    """Softmax of ``scale * inputs[batch, heads, q, k]`` where the mask lets it."""
    return kernel("fused_softmax_fwd")(inputs, mask, float(scale), "masked")


def plain_softmax(inputs: Tensor, scale: Tensor) -> Tensor:
    """Softmax of ``scale * inputs``."""
    return kernel("fused_softmax_fwd")(inputs, None, float(scale), "plain")


def _backward(grad: Tensor, out: Tensor, scale: Tensor, kind: str) -> Tensor:
    # The gradient of the inputs replaces that of the outputs, in the same memory.
    grad = grad.contiguous()
    kernel("fused_softmax_bwd")(grad, out, float(scale), kind)
    return grad


def causal_softmax_backward(grad: Tensor, out: Tensor, scale: Tensor) -> Tensor:
    return _backward(grad, out, scale, "causal")


def masked_softmax_backward(grad: Tensor, out: Tensor, scale: Tensor) -> Tensor:
    return _backward(grad, out, scale, "masked")


def plain_softmax_backward(grad: Tensor, out: Tensor, scale: Tensor) -> Tensor:
    return _backward(grad, out, scale, "plain")


def get_batch_per_block(query_length: int, key_length: int, batch: int, heads: int) -> int:
    """Rows one thread block takes: four warps, two rows each for keys of up to 128."""
    keys = 1 << max(0, math.ceil(math.log2(key_length)))
    warps = 128 // min(keys, 32)
    return warps * (2 if keys <= 128 else 1)
