"""``grouped_gemm``: products of rows with the weight of their group.

As it is installed by default: one product launched after another (cuBLAS), not CUTLASS's single
kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.gradients import differentiable
from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel


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
    out: Tensor = _grouped(a, b, batch_sizes, trans_b)
    return out
