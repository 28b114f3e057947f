"""``te.pytorch.LayerNorm`` and ``RMSNorm``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trainscout.simulators.virtual_cluster.emulation.vendor.extension.elementwise import (
    layernorm_bwd,
    layernorm_fwd,
    rmsnorm_bwd,
    rmsnorm_fwd,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.gradients import differentiable
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.module import (
    activation_dtype,
    cast_if_needed,
    mark_norm,
)


@differentiable
def _norm(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, list[Any], Callable[..., Any]]:
    """Keeps input, weight and statistics."""
    dtype = activation_dtype(inputs)
    rows = cast_if_needed(inputs.contiguous(), dtype).view(-1, weight.numel())
    weight = cast_if_needed(weight, dtype)
    if bias is None:
        out, mean, rsigma = rmsnorm_fwd(rows, weight, eps, None, None)
    else:
        out, mean, rsigma = layernorm_fwd(
            rows, weight, cast_if_needed(bias, dtype), eps, None, None
        )

    def gradient(
        rows: Tensor, weight: Tensor, mean: Tensor | None, rsigma: Tensor, grad: Tensor
    ) -> tuple[Tensor, ...]:
        made = grad.contiguous().view(rows.shape)
        if mean is None:
            given, *others = rmsnorm_bwd(made, rows, rsigma, weight)
        else:
            given, *others = layernorm_bwd(made, rows, mean, rsigma, weight)
        return given.view(grad.shape), *others

    return out.view(inputs.shape), [rows, weight, mean, rsigma], gradient


class LayerNorm(nn.Module):
    """``te.pytorch.LayerNorm``: weight and bias of a norm over the last dimension."""

    has_bias = True

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
        self.reset_parameters(defer_init=device == "meta")
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
        out: Tensor = _norm(inputs, self.weight, self.bias, self.eps)
        return out


class RMSNorm(LayerNorm):
    """``te.pytorch.RMSNorm``."""

    has_bias = False
