"""Apex's layer and RMS norms: which tensors each keeps for the backward pass."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainscout.simulators.virtual_cluster.emulation.vendor.extension.apex_norms import (
    backward_affine,
    forward_affine,
    rms_backward_affine,
    rms_forward_affine,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.gradients import differentiable
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal


def _layer_norm(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    shape: Sequence[int],
    eps: float,
    memory_efficient: bool = False,
) -> tuple[Tensor, list[Any], Callable[..., Any]]:
    """Keeps input (``memory_efficient``: output), weight, bias and the statistics."""
    input = input.contiguous()
    out, mean, rsigma = forward_affine(input, shape, weight, bias, eps)

    def gradient(
        kept: Tensor, weight: Tensor, bias: Tensor, mean: Any, rsigma: Tensor, grad: Tensor
    ) -> tuple[Tensor, ...]:
        return backward_affine(grad.contiguous(), mean, rsigma, kept, shape, weight, bias, eps)

    statistics = [None if memory_efficient else mean, rsigma]
    return out, [out if memory_efficient else input, weight, bias, *statistics], gradient


def _rms_norm(
    input: Tensor,
    weight: Tensor,
    shape: Sequence[int],
    eps: float,
    memory_efficient: bool = False,
) -> tuple[Tensor, list[Tensor], Callable[..., Any]]:
    """Keeps input (``memory_efficient``: output), weight and the statistics."""
    input = input.contiguous()
    out, rsigma = rms_forward_affine(input, shape, weight, eps)

    def gradient(kept: Tensor, weight: Tensor, rsigma: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        return rms_backward_affine(grad.contiguous(), rsigma, kept, shape, weight, eps)

    return out, [out if memory_efficient else input, weight, rsigma], gradient


def _fast_layer_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, memory_efficient: bool = False
) -> tuple[Tensor, list[Any], Callable[..., Any]]:
    """The persistent kernel: works on rows, so that its result is a view of them."""
    shape = gamma.shape
    rows = x.contiguous().view(-1, gamma.numel())
    out, kept, of_rows = _layer_norm(rows, gamma, beta, shape, epsilon, memory_efficient)
    whole = x.shape

    def gradient(*given: Any) -> tuple[Tensor, ...]:
        *kept, grad = given
        made, *others = of_rows(*kept, grad.contiguous().view(-1, shape.numel()))
        return made.view(whole), *others

    return out.view(whole), kept, gradient


FusedLayerNormAffineFunction = differentiable(_layer_norm)
FusedRMSNormAffineFunction = differentiable(_rms_norm)
FastLayerNormFN = differentiable(_fast_layer_norm)


def fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Sequence[int],
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """Layer norm over the trailing ``normalized_shape``."""
    given = (input, weight, bias, normalized_shape, eps, memory_efficient)
    out: Tensor = FusedLayerNormAffineFunction(*given)
    return out


def fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor,
    normalized_shape: Sequence[int],
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """RMS norm over the trailing ``normalized_shape``."""
    given = (input, weight, normalized_shape, eps, memory_efficient)
    out: Tensor = FusedRMSNormAffineFunction(*given)
    return out


class FusedRMSNorm(nn.Module):
    """``apex.normalization.FusedRMSNorm``; only the affine form, which transformers use."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
        **factory: Any,
    ) -> None:
        super().__init__()
        if not elementwise_affine:
            raise refusal("apex.normalization", "norms without weights", "elementwise_affine=True")
        if isinstance(normalized_shape, numbers.Integral):
            normalized_shape = (int(normalized_shape),)
        self.normalized_shape = torch.Size(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.memory_efficient = memory_efficient
        self.weight = nn.Parameter(torch.ones(self.normalized_shape, **factory))

    def forward(self, input: Tensor) -> Tensor:
        return fused_rms_norm_affine(
            input, self.weight, self.normalized_shape, self.eps, self.memory_efficient
        )


class FusedLayerNorm(FusedRMSNorm):
    """``apex.normalization.FusedLayerNorm``."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.bias = nn.Parameter(torch.zeros_like(self.weight))

    def forward(self, input: Tensor) -> Tensor:
        return fused_layer_norm_affine(
            input, self.weight, self.bias, self.normalized_shape, self.eps, self.memory_efficient
        )


class MixedFusedLayerNorm(FusedLayerNorm):
    """The mixed forms differ in what types they take and give, which is that of the weight here,
    and pass over what else they are given, as Apex's do."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
        **ignored: Any,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, memory_efficient)


class MixedFusedRMSNorm(FusedRMSNorm):
    """See ``MixedFusedLayerNorm``."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
        **ignored: Any,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, memory_efficient)


class FastLayerNorm(nn.Module):
    """``apex.contrib.layer_norm.FastLayerNorm``."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, memory_efficient: bool = False
    ) -> None:
        super().__init__()
        self.epsilon = eps
        self.memory_efficient = memory_efficient
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        given = (x, self.weight, self.bias, self.epsilon, self.memory_efficient)
        out: Tensor = FastLayerNormFN(*given)
        return out
