"""Shapes of what turns tensors into 8 bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels.registry import (
    empty,
    rows_of,
    shapes_of,
)


@shapes_of
def quantize_into(input: Tensor, out: Sequence[Tensor], recipe: str) -> None:
    return None


@shapes_of
def quantize_into_bias_grad(input: Tensor, out: Sequence[Tensor], recipe: str) -> Tensor:
    return empty(input, input.shape[-1:])


@shapes_of
def amax(input: Tensor) -> Tensor:
    return empty(input, (1,), torch.float32)


@shapes_of
def scale_from_amax(amax: Tensor, dtype: str) -> Tensor:
    return empty(amax, (1,), torch.float32)


@shapes_of
def fp8_transpose(input: Tensor) -> Tensor:
    return empty(input, (input.shape[-1], rows_of(input)))


@shapes_of
def swizzle_scales(scales: Tensor) -> Tensor:
    return empty(scales, scales.shape)


@shapes_of
def update_amax_and_scale(
    reduced: Tensor, histories: Sequence[Tensor], scales: Sequence[Tensor]
) -> None:
    return None
