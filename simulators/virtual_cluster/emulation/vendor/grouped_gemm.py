"""``grouped_gemm``: products of rows with the weight of their group.

As it is installed by default: one product launched after another (cuBLAS), not CUTLASS's single
kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import dtype_name, kernel


class _GroupedProduct(torch.autograd.Function):
    """Keeps rows and weights."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weights: Tensor, counts: Tensor, transposed: bool
    ) -> Tensor:
        splits = [int(count) for count in counts.tolist()]
        layout = "TN" if transposed else "NN"
        out: Tensor = kernel("grouped_gemm")(
            [rows], [weights], splits, layout, "forward", dtype_name(rows.dtype), False, ""
        )
        ctx.save_for_backward(rows, weights)
        ctx.splits, ctx.transposed = splits, transposed
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weights = ctx.saved_tensors
        grad = grad.contiguous()
        layout = "NN" if ctx.transposed else "TN"
        name = dtype_name(rows.dtype)
        grad_rows = kernel("grouped_gemm")(
            [grad], [weights], ctx.splits, layout, "dgrad", name, False, ""
        )
        grad_weights = torch.empty(weights.shape, dtype=weights.dtype, device=weights.device)
        first, second = (grad, rows) if ctx.transposed else (rows, grad)
        kernel("grouped_gemm_into")(
            [first], [second], [grad_weights], ctx.splits, "NT", "wgrad", False, False, ""
        )
        return grad_rows, grad_weights, None, None


def gmm(a: Tensor, b: Tensor, batch_sizes: Tensor, trans_b: bool = False) -> Tensor:
    """``a[rows of i] b[i]`` below each other; ``batch_sizes`` is in host memory."""
    out: Tensor = _GroupedProduct.apply(a, b, batch_sizes, trans_b)
    return out
