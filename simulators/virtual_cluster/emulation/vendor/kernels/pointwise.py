"""Shapes of norms, rotary positions, activations, losses, casts and norms of lists."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels.registry import (
    empty,
    rows_of,
    shapes_of,
    torch_dtype,
)

GATED = {"geglu", "reglu", "swiglu", "qgeglu", "sreglu"}


@shapes_of
def layer_norm_fwd(
    input: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows = (input.numel() // weight.numel(),)
    out = empty(input, input.shape)
    return out, empty(input, rows, torch.float32), empty(input, rows, torch.float32)


@shapes_of
def rms_norm_fwd(input: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows = (input.numel() // weight.numel(),)
    return empty(input, input.shape), empty(input, rows, torch.float32)


@shapes_of
def layer_norm_quantize_fwd(
    input: Tensor, weight: Tensor, bias: Tensor | None, eps: float, recipe: str, dtype: str
) -> tuple[Tensor, Tensor, Tensor]:
    _, mean, rsigma = layer_norm_fwd(input, weight, bias, eps)
    return empty(input, input.shape, torch_dtype(dtype)), mean, rsigma


@shapes_of
def rms_norm_quantize_fwd(
    input: Tensor, weight: Tensor, eps: float, recipe: str, dtype: str
) -> tuple[Tensor, Tensor]:
    _, rsigma = rms_norm_fwd(input, weight, eps)
    return empty(input, input.shape, torch_dtype(dtype)), rsigma


@shapes_of
def rope_qkv_fwd(
    qkv: Tensor,
    query_frequencies: Tensor,
    key_frequencies: Tensor,
    split: Sequence[int],
    layout: str,
    interleaved: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    # Groups of query heads, a key head and a value head lie side by side; keys set the width.
    first, second, groups = qkv.shape[0], qkv.shape[1], qkv.shape[2]
    width = split[1]
    heads = (groups * split[0] // width, groups, groups)
    query, key, value = (empty(qkv, (first, second, count, width)) for count in heads)
    return query, key, value


@shapes_of
def rope_qkv_bwd(
    grad_query: Tensor,
    grad_key: Tensor,
    grad_value: Tensor,
    query_frequencies: Tensor,
    key_frequencies: Tensor,
    split: Sequence[int],
    layout: str,
    interleaved: bool,
) -> Tensor:
    first, second, groups = grad_key.shape[:3]
    return empty(grad_query, (first, second, groups, sum(split)))


@shapes_of
def activation_fwd(input: Tensor, function: str) -> Tensor:
    width = input.shape[-1] // (2 if function in GATED else 1)
    return empty(input, (*input.shape[:-1], width))


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
def multi_tensor_l2norm(tensors: Sequence[Tensor], per_tensor: bool) -> tuple[Tensor, Tensor]:
    each = (len(tensors) if per_tensor else 0,)
    return empty(tensors[0], (1,), torch.float32), empty(tensors[0], each, torch.float32)
