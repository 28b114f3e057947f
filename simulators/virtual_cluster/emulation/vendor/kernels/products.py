"""Shapes of matrix products and fused attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels.registry import (
    empty,
    shapes_of,
    torch_dtype,
)


def _product_shape(left: Tensor, right: Tensor, layout: str) -> tuple[int, ...]:
    if layout == "NT":
        return (left.shape[-1], right.shape[-1])
    return (*left.shape[:-1], right.shape[0] if layout == "TN" else right.shape[-1])


@shapes_of
def gemm(
    left: Tensor,
    right: Tensor,
    layout: str,
    use: str,
    out_dtype: str,
    bias: Tensor | None,
    recipe: str,
) -> Tensor:
    return empty(left, _product_shape(left, right, layout), torch_dtype(out_dtype))


@shapes_of
def gemm_bias_grad(
    left: Tensor, right: Tensor, layout: str, use: str, out_dtype: str, recipe: str
) -> tuple[Tensor, Tensor]:
    shape = _product_shape(left, right, layout)
    dtype = torch_dtype(out_dtype)
    return empty(left, shape, dtype), empty(left, shape[:1], dtype)


@shapes_of
def gemm_into_bias_grad(
    left: Tensor,
    right: Tensor,
    out: Tensor,
    layout: str,
    use: str,
    accumulate: bool,
    bias_dtype: str,
    recipe: str,
) -> Tensor:
    return empty(left, out.shape[:1], torch_dtype(bias_dtype))


@shapes_of
def attention_fwd(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: str,
    mask: str,
    window: Sequence[int],
    dropout: float,
    scale: float,
    sequences: int,
    max_q: int,
    max_k: int,
    kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:
    out = empty(query, (*query.shape[:-1], value.shape[-1]))
    heads = query.shape[-2]
    stats = (heads, query.shape[0]) if layout == "thd" else (sequences, heads, max_q)
    return out, empty(query, stats, torch.float32), empty(query, (2,), torch.int64)
