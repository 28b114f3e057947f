"""Apex's layer and RMS norms: which tensors each keeps for the backward pass."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal


class FusedLayerNormAffineFunction(torch.autograd.Function):
    """Keeps input (``memory_efficient``: output), weight, bias and the statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        input = input.contiguous()
        out, mean, rsigma = kernel("layer_norm_fwd")(input, weight, bias, eps)
        if memory_efficient:
            ctx.save_for_backward(out, weight, bias, None, rsigma)
        else:
            ctx.save_for_backward(input, weight, bias, mean, rsigma)
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        kept, weight, _, mean, rsigma = ctx.saved_tensors
        grads = kernel("layer_norm_bwd")(grad_output.contiguous(), kept, weight, mean, rsigma)
        return (*grads, None, None, None)


class FusedRMSNormAffineFunction(torch.autograd.Function):
    """Keeps input (``memory_efficient``: output), weight and the statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        input = input.contiguous()
        out, rsigma = kernel("rms_norm_fwd")(input, weight, eps)
        ctx.save_for_backward(out if memory_efficient else input, weight, rsigma)
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        kept, weight, rsigma = ctx.saved_tensors
        grads = kernel("rms_norm_bwd")(grad_output.contiguous(), kept, weight, rsigma)
        return (*grads, None, None, None)


class FastLayerNormFN(torch.autograd.Function):
    """The persistent kernel: works on rows, so that its result is a view of them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        epsilon: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        rows = x.contiguous().view(-1, gamma.numel())
        out, mean, rsigma = kernel("layer_norm_fwd")(rows, gamma, beta, epsilon)
        if memory_efficient:
            ctx.save_for_backward(out, gamma, beta, None, rsigma)
        else:
            ctx.save_for_backward(x, gamma, beta, mean, rsigma)
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        kept, gamma, _, mean, rsigma = ctx.saved_tensors
        rows = grad_output.contiguous().view(-1, gamma.numel())
        grad, *others = kernel("layer_norm_bwd")(
            rows, kept.view(-1, gamma.numel()), gamma, mean, rsigma
        )
        return (grad.view(grad_output.shape), *others, None, None)


def fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Sequence[int],
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """Layer norm over the trailing ``normalized_shape``."""
    return FusedLayerNormAffineFunction.apply(
        input, weight, bias, normalized_shape, eps, memory_efficient
    )


def fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor,
    normalized_shape: Sequence[int],
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """RMS norm over the trailing ``normalized_shape``."""
    return FusedRMSNormAffineFunction.apply(input, weight, normalized_shape, eps, memory_efficient)


class _Norm(nn.Module):
    """Parameters of a norm; only the affine form, which is what transformers use."""

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


class FusedLayerNorm(_Norm):
    """``apex.normalization.FusedLayerNorm``."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.bias = nn.Parameter(torch.zeros_like(self.weight))

    def forward(self, input: Tensor) -> Tensor:
        return fused_layer_norm_affine(
            input, self.weight, self.bias, self.normalized_shape, self.eps, self.memory_efficient
        )


class FusedRMSNorm(_Norm):
    """``apex.normalization.FusedRMSNorm``."""

    def forward(self, input: Tensor) -> Tensor:
        return fused_rms_norm_affine(
            input, self.weight, self.normalized_shape, self.eps, self.memory_efficient
        )


# The mixed forms differ in what types they take and give, which is that of the weight here.
MixedFusedLayerNorm = FusedLayerNorm
MixedFusedRMSNorm = FusedRMSNorm


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
        return FastLayerNormFN.apply(
            x, self.weight, self.bias, self.epsilon, self.memory_efficient
        )
