"""``fused_layer_norm_cuda`` and ``fast_layer_norm``: Apex's norms as its own Python calls them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel


def _ones(shape: Any, like: Tensor) -> Tensor:
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device)


def forward(input: Tensor, normalized_shape: Any, eps: float) -> tuple[Tensor, ...]:
    """Output, means, reciprocal deviations, without weights."""
    return forward_affine(input, normalized_shape, _ones(normalized_shape, input), None, eps)


def forward_affine(
    input: Tensor, normalized_shape: Any, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    return tuple(kernel("layer_norm_fwd")(input, weight, bias, eps))


def rms_forward(input: Tensor, normalized_shape: Any, eps: float) -> tuple[Tensor, ...]:
    return rms_forward_affine(input, normalized_shape, _ones(normalized_shape, input), eps)


def rms_forward_affine(
    input: Tensor, normalized_shape: Any, weight: Tensor, eps: float
) -> tuple[Tensor, ...]:
    return tuple(kernel("rms_norm_fwd")(input, weight, eps))


def backward(
    grad: Tensor, mean: Tensor | None, invvar: Tensor, kept: Tensor, normalized_shape: Any, *_: Any
) -> Tensor:
    """Gradient of the input."""
    weight = _ones(normalized_shape, kept)
    return kernel("layer_norm_bwd")(grad, kept, weight, mean, invvar)[0]


def backward_affine(
    grad: Tensor,
    mean: Tensor | None,
    invvar: Tensor,
    kept: Tensor,
    normalized_shape: Any,
    weight: Tensor,
    *_: Any,
) -> tuple[Tensor, ...]:
    """Gradients of input, weight and bias."""
    return tuple(kernel("layer_norm_bwd")(grad, kept, weight, mean, invvar))


def rms_backward(
    grad: Tensor, invvar: Tensor, kept: Tensor, normalized_shape: Any, *_: Any
) -> Tensor:
    weight = _ones(normalized_shape, kept)
    return kernel("rms_norm_bwd")(grad, kept, weight, invvar)[0]


def rms_backward_affine(
    grad: Tensor, invvar: Tensor, kept: Tensor, normalized_shape: Any, weight: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return tuple(kernel("rms_norm_bwd")(grad, kept, weight, invvar))


def ln_fwd(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> list[Tensor]:
    """The persistent kernel, on rows."""
    return list(kernel("layer_norm_fwd")(x, gamma, beta, epsilon))


def ln_bwd(
    dy: Tensor, kept: Tensor, mean: Tensor | None, rsigma: Tensor, gamma: Tensor, *_: Any
) -> list[Any]:
    """Gradients of input, weight and bias, and two scratch tensors."""
    return [*kernel("layer_norm_bwd")(dy, kept, gamma, mean, rsigma), None, None]
