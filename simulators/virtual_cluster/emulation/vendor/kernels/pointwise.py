"""Shapes of norms, softmaxes, rotary positions, activations and losses."""

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
def layer_norm_bwd(
    grad_output: Tensor, input: Tensor, weight: Tensor, mean: Tensor | None, rsigma: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    grad_weight = empty(weight, weight.shape), empty(weight, weight.shape)
    return empty(input, input.shape), *grad_weight


@shapes_of
def rms_norm_fwd(input: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows = (input.numel() // weight.numel(),)
    return empty(input, input.shape), empty(input, rows, torch.float32)


@shapes_of
def rms_norm_bwd(
    grad_output: Tensor, input: Tensor, weight: Tensor, rsigma: Tensor
) -> tuple[Tensor, Tensor]:
    return empty(input, input.shape), empty(weight, weight.shape)


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
def fused_softmax_fwd(input: Tensor, mask: Tensor | None, scale: float, kind: str) -> Tensor:
    return empty(input, input.shape)


@shapes_of
def fused_softmax_bwd(grad: Tensor, out: Tensor, scale: float, kind: str) -> None:
    return None


@shapes_of
def rope_fwd(input: Tensor, frequencies: Tensor, layout: str, interleaved: bool) -> Tensor:
    return empty(input, input.shape)


@shapes_of
def rope_bwd(grad_output: Tensor, frequencies: Tensor, layout: str, interleaved: bool) -> Tensor:
    return empty(grad_output, grad_output.shape)


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
def activation_bwd(grad_output: Tensor, input: Tensor, function: str) -> Tensor:
    return empty(input, input.shape)


@shapes_of
def cross_entropy_stats(logits: Tensor, target: Tensor) -> Tensor:
    return empty(logits, (3 * rows_of(logits),), torch.float32)


@shapes_of
def cross_entropy_fwd(logits: Tensor, target: Tensor, stats: Tensor, reduce: bool) -> Tensor:
    return empty(logits, () if reduce else logits.shape[:-1], torch.float32)


@shapes_of
def cross_entropy_bwd(grad_logits: Tensor, grad_output: Tensor) -> None:
    return None
