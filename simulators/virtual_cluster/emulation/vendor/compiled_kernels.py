"""Compiled parts of Apex, which Megatron-Core and Transformer Engine call too.

``amp_C``: kernels that walk lists of tensors; scaled softmaxes and the fused weight gradient;
``fused_layer_norm_cuda`` and ``fast_layer_norm``: norms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .kernels import kernel
from .opaque import launch

Lists = Sequence[Sequence[Tensor]]


class MultiTensorApply:
    """Calls a kernel with a chunk size, as Apex and Transformer Engine do."""

    available = True

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(
        self, operation: Callable[..., Any], noop_flag: Tensor, lists: Lists, *arguments: Any
    ) -> Any:
        return operation(self.chunk_size, noop_flag, lists, *arguments)


multi_tensor_applier = MultiTensorApply(2048 * 32)


def _local(lists: Lists) -> list[list[Tensor]]:
    """This rank's parts, where tensors are distributed: what a kernel is given addresses of."""
    return [[getattr(each, "_local_tensor", each) for each in tensors] for tensors in lists]


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, lists: Lists, per_tensor: bool = False
) -> tuple[Tensor, Tensor]:
    """The 2-norm over all tensors, and of each."""
    norm, each = kernel("multi_tensor_l2norm")(_local(lists)[0], bool(per_tensor))
    return norm, each


def multi_tensor_unscale_l2norm(
    chunk_size: int, noop_flag: Tensor, lists: Lists, inv_scale: Tensor, per_tensor: bool = False
) -> tuple[Tensor, Tensor]:
    """As ``multi_tensor_l2norm``, of what the tensors are once they are unscaled."""
    return multi_tensor_l2norm(chunk_size, noop_flag, lists, per_tensor)


def multi_tensor_scale(chunk_size: int, noop_flag: Tensor, lists: Lists, scale: float) -> None:
    """``outputs = scale * inputs``."""
    kernel("multi_tensor_scale")(*_local(lists), float(scale))


def multi_tensor_scale_tensor(chunk_size: int, flag: Tensor, lists: Lists, scale: Tensor) -> None:
    """As ``multi_tensor_scale``, of a scale on the device."""
    multi_tensor_scale(chunk_size, flag, lists, 1.0)


def _step(name: str, number: int) -> Callable[..., None]:
    """An optimizer's step on so many lists, of which the last may be missing."""

    def step(chunk_size: int, noop_flag: Tensor, lists: Lists, *hyperparameters: Any) -> None:
        args = _local(lists)[:number]
        kernel(name)(*args, *([] for _ in range(number - len(args))))

    return step


# On [grads, params, exp_avgs, exp_avg_sqs] and masters; on [grads, params, momenta] and copies.
multi_tensor_adam = _step("multi_tensor_adam", 5)
multi_tensor_sgd = _step("multi_tensor_sgd", 4)


def _opaque_step(name: str) -> Callable[..., None]:
    """One of which nothing is known but the tensors: gradients are read, all else written, too."""

    def step(chunk_size: int, noop_flag: Tensor, lists: Lists, *hyperparameters: Any) -> None:
        gradients, *others = _local(lists)
        written = [each for tensors in others for each in tensors]
        launch(name, written, [*gradients, *written])

    return step


multi_tensor_adagrad = _opaque_step("multi_tensor_adagrad")
multi_tensor_lamb = _opaque_step("multi_tensor_lamb")


def wgrad_gemm_accum(inputs: Tensor, grad_output: Tensor, main_grad: Tensor) -> None:
    """``main_grad[n, k] += grad_output[t, n]^T inputs[t, k]``."""
    kernel("gemm_into")(grad_output, inputs, main_grad, "NT", "wgrad", True, "")


def _softmax(kind: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Softmax of ``scale * inputs``, all of them, below the diagonal or where a mask lets it; and
    its backward pass, which writes the gradient of the inputs over that of the outputs."""

    def forward(inputs: Tensor, *args: Any) -> Tensor:
        *mask, scale = args
        return kernel("fused_softmax_fwd")(inputs, *(mask or [None]), float(scale), kind)

    def backward(grad: Tensor, out: Tensor, scale: Tensor) -> Tensor:
        grad = grad.contiguous()
        kernel("fused_softmax_bwd")(grad, out, float(scale), kind)
        return grad

    return forward, backward


causal_softmax, causal_softmax_backward = _softmax("causal")
masked_softmax, masked_softmax_backward = _softmax("masked")
plain_softmax, plain_softmax_backward = _softmax("plain")


def get_batch_per_block(query_length: int, key_length: int, batch: int, heads: int) -> int:
    """Rows one thread block takes: four warps, two rows each for keys of up to 128."""
    keys = 1 << max(0, math.ceil(math.log2(key_length)))
    warps = 128 // min(keys, 32)
    return warps * (2 if keys <= 128 else 1)


def _ones(shape: Any, like: Tensor) -> Tensor:
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device)


def forward_affine(x: Tensor, shape: Any, weight: Tensor, bias: Any, eps: float) -> Any:
    """Output, means, reciprocal deviations."""
    return tuple(kernel("layer_norm_fwd")(x, weight, bias, eps))


def rms_forward_affine(x: Tensor, shape: Any, weight: Tensor, eps: float) -> Any:
    return tuple(kernel("rms_norm_fwd")(x, weight, eps))


def forward(x: Tensor, shape: Any, eps: float) -> Any:
    return forward_affine(x, shape, _ones(shape, x), None, eps)


def rms_forward(x: Tensor, shape: Any, eps: float) -> Any:
    return rms_forward_affine(x, shape, _ones(shape, x), eps)


def backward_affine(
    grad: Tensor, mean: Any, invvar: Tensor, kept: Tensor, shape: Any, weight: Tensor, *_: Any
) -> Any:
    """Gradients of input, weight and bias."""
    return tuple(kernel("layer_norm_bwd")(grad, kept, weight, mean, invvar))


def rms_backward_affine(
    grad: Tensor, invvar: Tensor, kept: Tensor, shape: Any, weight: Tensor, *_: Any
) -> Any:
    return tuple(kernel("rms_norm_bwd")(grad, kept, weight, invvar))


def backward(grad: Tensor, mean: Any, invvar: Tensor, kept: Tensor, shape: Any, *_: Any) -> Tensor:
    return backward_affine(grad, mean, invvar, kept, shape, _ones(shape, kept))[0]


def rms_backward(grad: Tensor, invvar: Tensor, kept: Tensor, shape: Any, *_: Any) -> Tensor:
    return rms_backward_affine(grad, invvar, kept, shape, _ones(shape, kept))[0]


def ln_fwd(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> list[Tensor]:
    """The persistent kernel, on rows."""
    return list(forward_affine(x, (), gamma, beta, epsilon))


def ln_bwd(
    dy: Tensor, kept: Tensor, mean: Any, rsigma: Tensor, gamma: Tensor, *_: Any
) -> list[Any]:
    """Gradients of input, weight and bias, and two scratch tensors."""
    return [*backward_affine(dy, mean, rsigma, kept, (), gamma), None, None]
