"""``te.pytorch.LayerNorm`` and ``RMSNorm``, and the norm in front of a linear layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.module import (
    activation_dtype,
    cast_if_needed,
)


@dataclass(frozen=True)
class NormStatistics:
    """What a norm's backward pass needs beside its input: the mean (layer norms) and 1/sigma."""

    mean: Tensor | None
    rsigma: Tensor


def normalize(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, NormStatistics]:
    """A layer norm if there is a bias, else an RMS norm."""
    if bias is None:
        out, rsigma = kernel("rms_norm_fwd")(inputs, weight, eps)
        return out, NormStatistics(None, rsigma)
    out, mean, rsigma = kernel("layer_norm_fwd")(inputs, weight, bias, eps)
    return out, NormStatistics(mean, rsigma)


def normalize_quantized(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, eps: float, recipe: str, dtype: str
) -> tuple[Tensor, NormStatistics]:
    """A norm whose kernel writes 8 bits."""
    if bias is None:
        out, rsigma = kernel("rms_norm_quantize_fwd")(inputs, weight, eps, recipe, dtype)
        return out, NormStatistics(None, rsigma)
    out, mean, rsigma = kernel("layer_norm_quantize_fwd")(inputs, weight, bias, eps, recipe, dtype)
    return out, NormStatistics(mean, rsigma)


def norm_gradients(
    grad_output: Tensor, inputs: Tensor, weight: Tensor, statistics: NormStatistics
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of input, weight and bias."""
    if statistics.mean is None:
        grad, grad_weight = kernel("rms_norm_bwd")(grad_output, inputs, weight, statistics.rsigma)
        return grad, grad_weight, None
    grad, grad_weight, grad_bias = kernel("layer_norm_bwd")(
        grad_output, inputs, weight, statistics.mean, statistics.rsigma
    )
    return grad, grad_weight, grad_bias


class _Norm(torch.autograd.Function):
    """Keeps input, weight and statistics."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        dtype = activation_dtype(inputs)
        rows = cast_if_needed(inputs.contiguous(), dtype).view(-1, weight.numel())
        weight = cast_if_needed(weight, dtype)
        added = None if bias is None else cast_if_needed(bias, dtype)
        out, statistics = normalize(rows, weight, added, eps)
        ctx.save_for_backward(rows, weight, statistics.mean, statistics.rsigma)
        return out.view(inputs.shape)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, mean, rsigma = ctx.saved_tensors
        gradient = grad_output.contiguous().view(rows.shape)
        grad, *others = norm_gradients(gradient, rows, weight, NormStatistics(mean, rsigma))
        return (grad.view(grad_output.shape), *others, None)


class _NormModule(nn.Module):
    """Weight (and bias) of a norm over the last dimension."""

    has_bias = False

    def __init__(
        self,
        normalized_shape: Any = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: int | None = None,
        *,
        device: Any = "cuda",
        dtype: torch.dtype | None = None,
        **others: Any,
    ) -> None:
        super().__init__()
        shape: Any = normalized_shape if normalized_shape is not None else hidden_size
        size = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        self.sequence_parallel = sequence_parallel
        factory = {"device": device, "dtype": dtype or params_dtype or torch.get_default_dtype()}
        self.weight = nn.Parameter(torch.empty(size, **factory))
        self.bias = nn.Parameter(torch.empty(size, **factory)) if self.has_bias else None
        if device != "meta":
            self.reset_parameters()
        mark_norm(self, ("weight", "bias"), sequence_parallel)

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Weights of one (zero, when centred there) and biases of zero."""
        if defer_init:
            return
        nn.init.constant_(self.weight, 0.0 if self.zero_centered_gamma else 1.0)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """The normalised input."""
        out: Tensor = _Norm.apply(inputs, self.weight, self.bias, self.eps)
        return out


def mark_norm(module: nn.Module, names: tuple[str, ...], sequence_parallel: bool | None) -> None:
    """Tell frameworks that gradients of these are to be summed over sequence-parallel ranks."""
    if sequence_parallel is None:
        return
    for name in names:
        parameter = getattr(module, name, None)
        if parameter is not None:
            parameter.sequence_parallel = sequence_parallel


class LayerNorm(_NormModule):
    """``te.pytorch.LayerNorm``."""

    has_bias = True


class RMSNorm(_NormModule):
    """``te.pytorch.RMSNorm``."""
