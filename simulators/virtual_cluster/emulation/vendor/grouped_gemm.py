"""``grouped_gemm``: products of rows with the weight of their group.

As it is installed by default: one product launched after another (cuBLAS), not CUTLASS's single
kernel. And the rows' way to their groups and back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .kernels import kernel
from .opaque import OpaqueKernel, differentiable, opaque


def _product(use: str, layout: str, left: Tensor, right: Tensor, out: Tensor, splits: Any) -> None:
    kernel("grouped_gemm_into")([left], [right], [out], splits, layout, use, False, False, "")


@differentiable
def _grouped(
    rows: Tensor, weights: Tensor, counts: Tensor, transposed: bool
) -> tuple[Tensor, list[Tensor], Callable[..., Any]]:
    """Keeps rows and weights."""
    splits = [int(count) for count in counts.tolist()]
    out = rows.new_empty((rows.shape[0], weights.shape[1 if transposed else 2]))
    _product("forward", "TN" if transposed else "NN", rows, weights, out, splits)

    def gradient(rows: Tensor, weights: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        grad = grad.contiguous()
        grads = torch.empty_like(rows), torch.empty_like(weights)
        _product("dgrad", "NN" if transposed else "TN", grad, weights, grads[0], splits)
        first, second = (grad, rows) if transposed else (rows, grad)
        _product("wgrad", "NT", first, second, grads[1], splits)
        return grads

    return out, [rows, weights], gradient


def gmm(a: Tensor, b: Tensor, batch_sizes: Tensor, trans_b: bool = False) -> Tensor:
    """``a[rows of i] b[i]`` below each other; ``batch_sizes`` is in host memory."""
    return _grouped(a, b, batch_sizes, trans_b)


def permute(
    input_act: Tensor, indices: Tensor, num_out_tokens: int = 0, max_token_num: int = 0
) -> tuple[Tensor, Tensor]:
    """Rows in the order of their experts, once for each, and where each row went."""
    _, places = indices.flatten().sort()
    number = num_out_tokens if num_out_tokens > 0 else indices.numel()
    form = OpaqueKernel("moe_permute", (number, input_act.shape[1]), input_act.dtype)
    return opaque(form, input_act, places), places.to(torch.int32)


def unpermute(input_act: Tensor, row_id_map: Tensor, probs: Tensor | None = None) -> Tensor:
    """The rows of each token summed, weighed by ``probs``, in the order that they came in."""
    tokens = probs.shape[0] if probs is not None else row_id_map.numel()
    form = OpaqueKernel("moe_unpermute", (tokens, input_act.shape[1]), input_act.dtype)
    return opaque(form, input_act, row_id_map, probs)
