"""The smaller extensions of flash-attn (``csrc/rotary``, ``csrc/xentropy``, ``csrc/layer_norm``):
each call is one opaque launch, with the results that their C++ functions make."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.opaque import launch
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refused

dropout_add_ln_parallel_residual_fwd = refused(
    "dropout_layer_norm.dropout_add_ln_parallel_residual_fwd", "norms of parallel residuals"
)


def apply_rotary(
    x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor, out1: Tensor, out2: Tensor, conj: bool
) -> None:
    """``rotary_emb``: both halves of each head turned, into other tensors or in place."""
    launch("rotary", [out1, out2], [x1, x2, cos, sin])


def cross_entropy(logits: Tensor, labels: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """``xentropy_cuda_lib.forward``: losses and sums of exponentials, one a row."""
    losses, sums = (logits.new_empty(len(logits), dtype=torch.float32) for _ in range(2))
    launch("cross_entropy", [losses, sums], [logits, labels])
    return losses, sums


def cross_entropy_backward(
    gradient: Tensor,
    logits: Tensor,
    sums: Tensor,
    labels: Tensor,
    smoothing: float,
    inplace: bool,
    *_: Any,
) -> Tensor:
    """``xentropy_cuda_lib.backward``: in place of the logits, if they may go."""
    made = logits if inplace else torch.empty_like(logits)
    launch("cross_entropy_backward", [made], [gradient, logits, sums, labels])
    return made


def dropout_add_ln_fwd(
    x0: Tensor,
    residual: Tensor | None,
    gamma: Tensor,
    beta: Tensor | None,
    rowscale: Tensor | None,
    colscale: Tensor | None,
    x0_subset: Tensor | None,
    z_subset: Tensor | None,
    dropout_p: float,
    epsilon: float,
    rowscale_const: float,
    z_numrows: int,
    gen: Any,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
) -> tuple[Tensor | None, ...]:
    """Norm, input of the norm where it is another than ``x0``, mask, means and deviations."""
    rows, width = x0.shape if residual is None else residual.shape
    kind = torch.float32 if residual_in_fp32 else x0.dtype
    kind = kind if residual is None else residual.dtype
    changes = (residual, rowscale, colscale, x0_subset)
    another = dropout_p > 0 or kind is not x0.dtype or any(each is not None for each in changes)
    z = x0.new_empty((rows if z_subset is None else z_numrows, width))
    x = x0.new_empty((rows, width), dtype=kind) if another else None
    mask = torch.empty_like(x0, dtype=torch.uint8) if dropout_p > 0 else None
    means, deviations = (x0.new_empty(rows, dtype=torch.float32) for _ in range(2))
    made = (z, x, mask, means, deviations)
    given = (x0, residual, gamma, beta, rowscale, colscale, x0_subset, z_subset)
    launch("dropout_add_norm", _there(made), _there(given))
    return made


def dropout_add_ln_bwd(
    dz: Tensor,
    dx: Tensor | None,
    x: Tensor,
    x0: Tensor | None,
    dmask: Tensor | None,
    mu: Tensor,
    rsigma: Tensor,
    gamma: Tensor,
    rowscale: Tensor | None,
    colscale: Tensor | None,
    x0_subset: Tensor | None,
    z_subset: Tensor | None,
    dropout_p: float,
    rowscale_const: float,
    x0_numrows: int,
    has_residual: bool,
    is_rms_norm: bool = False,
) -> tuple[Tensor | None, ...]:
    """Gradients of input, residual where it is another than the input's, weight and bias, sums of
    the last two by block, and of the scales of columns."""
    rows, width = x.shape
    changes = (rowscale, colscale, x0_subset)
    another = dropout_p > 0 or x.dtype is not dz.dtype or any(each is not None for each in changes)
    dx0 = dz.new_empty((rows if x0_subset is None else x0_numrows, width))
    dresidual = torch.empty_like(x) if has_residual and another else None
    sums = [torch.empty_like(gamma) for _ in range(2)]
    # By block of rows: one stands for all.
    sums += [gamma.new_empty((1, width), dtype=torch.float32) for _ in range(2)]
    if colscale is not None:
        sums += [torch.empty_like(colscale), colscale.new_empty((1, width), dtype=torch.float32)]
    made = (dx0, dresidual, *sums)
    given = (dz, dx, x, x0, dmask, mu, rsigma, gamma, rowscale, colscale, x0_subset, z_subset)
    launch("dropout_add_norm_backward", _there(made), _there(given))
    return made


def _there(tensors: tuple[Tensor | None, ...]) -> list[Tensor]:
    return [each for each in tensors if each is not None]
